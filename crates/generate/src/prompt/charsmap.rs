//! The table by which SentencePiece replaces letters before it cuts text (its `precompiled_charsmap`): a trie of what is replaced, as a double
//! array, and the texts that replace it.

use unicode_segmentation::UnicodeSegmentation;

/// Longer clusters are replaced letter by letter.
const LONGEST_CLUSTER: usize = 5;

/// Replacements of letters, as tokenizers' `Precompiled` does them.
#[derive(Clone)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    /// Each ends with a zero.
    replacements: Vec<u8>,
}

impl Charsmap {
    /// From the bytes of a file: the length of the trie, the trie, the replacements. An empty table replaces nothing.
    pub(super) fn new(bytes: &[u8]) -> Option<Charsmap> {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
            return bytes.is_empty().then(|| Charsmap { units: vec![], replacements: vec![] });
        };
        let (trie, replacements) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (units, rest) = trie.as_chunks::<4>();
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        std::str::from_utf8(replacements).ok().filter(|_| rest.is_empty())?;
        Some(Charsmap { units, replacements: replacements.to_vec() })
    }

    /// The text with everything replaced. A cluster that begins with something in the table becomes that alone, even where it goes on: so does
    /// the reference.
    pub(super) fn replace(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for cluster in text.graphemes(true) {
            if let Some(replaced) = (cluster.len() <= LONGEST_CLUSTER).then(|| self.find(cluster)).flatten() {
                out.push_str(replaced);
                continue;
            }
            for letter in cluster.chars() {
                match self.find(letter.encode_utf8(&mut [0; 4])) {
                    Some(replaced) => out.push_str(replaced),
                    None => out.push(letter),
                }
            }
        }
        out
    }

    /// What the shortest entry that `text` begins with is replaced by.
    fn find(&self, text: &str) -> Option<&str> {
        // A unit: 8 bits of label, whether a leaf follows, where the children are (22 bits, in units of 256 where bit 9 is set).
        let offset = |unit: u32| ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize;
        let mut at = offset(*self.units.first()?);
        for &byte in text.as_bytes() {
            at ^= usize::from(byte);
            let unit = *self.units.get(at).filter(|_| byte != 0)?;
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                return None;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let leaf = (self.units.get(at)? & !(1 << 31)) as usize;
                let replacement = self.replacements.get(leaf..)?.split(|b| *b == 0).next()?;
                return std::str::from_utf8(replacement).ok();
            }
        }
        None
    }
}
