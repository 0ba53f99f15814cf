//! How many different things there are among many, by what they are, without a table that is larger than the processor's caches: keys are only
//! written down, and told apart in parts that fit there.

use std::collections::BTreeMap;

/// Bits of a key that say what it is of; the others are those of a hash.
const TAG: u32 = 16;
/// Keys of one part, about.
const PART: usize = 1 << 14;
/// Parts into which keys are put at a time.
const MOST_PARTS: usize = 1 << 10;
/// Keys that came a moment ago, and are not written down again.
const RECENT: usize = 1 << 11;

/// Different keys. Two that differ may be taken for the same, rarely: there are never more of them than there are.
pub(super) struct Tally {
    /// Of each key the hash, and the number of what it is of.
    keys: Vec<u64>,
    recent: Vec<u64>,
    /// What keys are of, with the loop that it stands in, and how many there are that are known to be different.
    tags: Vec<(&'static str, u32)>,
    certain: Vec<u64>,
    /// The loop that is counted now, and where its tags begin.
    home: u32,
    first: usize,
    /// So many keys are put in order before more are taken.
    room: usize,
    /// How many there were when that was done last.
    settled: u64,
}

impl Tally {
    pub(super) fn new() -> Tally {
        let (tags, certain) = (Vec::new(), Vec::new());
        Tally { keys: Vec::new(), recent: vec![0; RECENT], tags, certain, home: 0, first: 0, room: 1 << 22, settled: 0 }
    }

    fn tag(&mut self, what: &'static str, home: u32) -> usize {
        let is = |t: &(&'static str, u32)| std::ptr::eq(t.0, what) && t.1 == home;
        if let Some(i) = self.tags[self.first..].iter().position(is) {
            return self.first + i;
        }
        if home != 0 && home != self.home {
            (self.home, self.first) = (home, self.tags.len());
        }
        self.tags.push((what, home));
        self.certain.push(0);
        self.tags.len() - 1
    }

    /// A thing with this hash. Of several with one hash the first counts.
    pub(super) fn add(&mut self, what: &'static str, home: u32, hash: u64) {
        let recent = &mut self.recent[(hash >> TAG) as usize % RECENT];
        if std::mem::replace(recent, hash) == hash {
            return;
        }
        let tag = self.tag(what, home) as u64;
        if tag >> TAG == 0 {
            if self.keys.len() >= self.room {
                self.settle();
            }
            self.keys.push(hash >> TAG << TAG | tag);
        }
    }

    /// So many that are surely different from each other and from all others.
    pub(super) fn add_certain(&mut self, what: &'static str, many: u64) {
        let tag = self.tag(what, 0);
        self.certain[tag] += many;
    }

    /// At most so many.
    fn at_most(&self) -> u64 {
        self.keys.len() as u64 + self.certain.iter().sum::<u64>()
    }

    /// Leaves each key once. Cost: linear.
    fn settle(&mut self) {
        let parts = (self.keys.len() / PART).next_power_of_two().min(MOST_PARTS);
        // A shift by all bits is none.
        let part = |key: u64| if parts == 1 { 0 } else { (key >> (64 - parts.ilog2())) as usize };
        let mut ends = vec![0usize; parts + 1];
        self.keys.iter().for_each(|&key| ends[part(key) + 1] += 1);
        (1..=parts).for_each(|i| ends[i] += ends[i - 1]);
        let largest = ends.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        let begins = ends.clone();
        let mut sorted = vec![0u64; self.keys.len()];
        for &key in &self.keys {
            let to = &mut ends[part(key)];
            sorted[*to] = key;
            *to += 1;
        }
        self.keys.clear();
        let log = (2 * largest).max(2).next_power_of_two().ilog2();
        let mut places = vec![0u64; 1 << log];
        for w in begins.windows(2) {
            let keys = &sorted[w[0]..w[1]];
            let used = (2 * keys.len()).max(2).next_power_of_two().ilog2().min(log);
            let places = &mut places[..1 << used];
            places.fill(0);
            for &key in keys {
                // No key is 0 above its tag.
                let own = (key >> TAG).max(1);
                let mut at = (own.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - used)) as usize;
                while places[at] != 0 && places[at] != own {
                    at = (at + 1) & (places.len() - 1);
                }
                if places[at] == 0 {
                    places[at] = own;
                    self.keys.push(key);
                }
            }
        }
        self.room = self.room.max(2 * self.keys.len());
        self.settled = self.at_most();
    }

    /// Whether there are more than this many. Where only putting them in order would tell, that is done when enough came that it is worth it.
    pub(super) fn exceeds(&mut self, limit: u64) -> bool {
        let worth = limit.max(self.settled + self.settled / 4);
        if self.at_most() > worth {
            self.settle();
        }
        self.settled > limit
    }

    /// Takes over what another one has, of the first kind of things.
    pub(super) fn absorb(&mut self, other: Tally) {
        for key in other.keys {
            self.add(other.tags[0].0, 0, key);
        }
    }

    /// How many there are of each kind, and how many of each of this many loops.
    pub(super) fn counted(&mut self, homes: usize) -> (BTreeMap<&'static str, u64>, Vec<u64>) {
        self.settle();
        let mut counts = self.certain.clone();
        self.keys.iter().for_each(|key| counts[(key & ((1 << TAG) - 1)) as usize] += 1);
        let (mut found, mut sizes) = (BTreeMap::new(), vec![0; homes]);
        for (&(what, home), n) in self.tags.iter().zip(counts) {
            // A name may stand in the program twice.
            *found.entry(what).or_insert(0) += n;
            sizes[home as usize] += n;
        }
        (found, sizes)
    }
}
