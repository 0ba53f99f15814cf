//! The words of a tokeniser: which pieces it knows, and which two pieces become one.
//!
//! Text is bytes here. Files write a byte as a printable letter (their "byte alphabet") and mark the last piece of a word with `</w>`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// How vocabularies mark a piece that ends a word.
const END: &str = "</w>";

/// Two neighbours to their rank (the lowest is merged first) and what they become.
pub(super) type Merges = HashMap<(u32, u32), (u32, u32)>;

/// What files say a tokeniser knows, and byte pair encoding with it.
pub(super) struct Vocabulary {
    /// Id to piece.
    pieces: HashMap<u32, Piece>,
    /// The id of each byte, inside a word and at its end.
    bytes: [[u32; 256]; 2],
    merges: Merges,
}

/// One token's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    bytes: Vec<u8>,
    ends_word: bool,
}

impl Vocabulary {
    /// From what `vocab.json` and `merges.txt` hold. A byte that has no token becomes `unknown`.
    pub(super) fn new(
        vocab: &HashMap<String, u32>,
        merges: &[(&str, &str)],
        unknown: u32,
    ) -> Result<Vocabulary, VocabularyFault> {
        let letters = alphabet();
        let byte_of: HashMap<char, u8> = (0..=255).map(|b| (letters[b as usize], b)).collect();
        let mut bytes = [[0; 256]; 2];
        for (ends, row) in bytes.iter_mut().enumerate() {
            for (byte, id) in row.iter_mut().enumerate() {
                let text = format!("{}{}", letters[byte], ["", END][ends]);
                *id = vocab.get(&text).copied().unwrap_or(unknown);
            }
        }
        let pieces = vocab.iter().map(|(text, &id)| {
            let (body, ends_word) = text.strip_suffix(END).map_or((text.as_str(), false), |body| (body, true));
            // A token with other letters was never cut from bytes: it stands for itself.
            let bytes = body.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>();
            (id, Piece { bytes: bytes.unwrap_or_else(|| body.as_bytes().to_vec()), ends_word })
        });
        Ok(Vocabulary { pieces: pieces.collect(), bytes, merges: ranks(vocab, merges)? })
    }

    /// From what `vocab.json` and `merges.txt` hold, of a tokenizer that does not mark where a word ends.
    pub(super) fn without_ends(
        vocab: &HashMap<String, u32>,
        merges: &[(&str, &str)],
    ) -> Result<Vocabulary, VocabularyFault> {
        let bytes = alphabet().map(|letter| vocab.get(letter.encode_utf8(&mut [0; 4]) as &str).copied().unwrap_or(0));
        Ok(Vocabulary::of_bytes(bytes, ranks(vocab, merges)?))
    }

    /// The bytes of each token that is written in the letters of bytes.
    pub(super) fn texts(vocab: &HashMap<String, u32>) -> HashMap<Vec<u8>, u32> {
        let byte_of: HashMap<char, u8> = alphabet().into_iter().zip(0..=255).collect();
        let bytes = |text: &str| text.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>();
        vocab.iter().filter_map(|(text, &id)| Some((bytes(text)?, id))).collect()
    }

    /// Of bytes in the order of files, where each merge is the next token.
    pub(super) fn of_pairs(pairs: impl Iterator<Item = (u32, u32)>) -> Vocabulary {
        let mut bytes = [0; 256];
        bytes_in_order().zip(0..).for_each(|(byte, id)| bytes[usize::from(byte)] = id);
        let merges = pairs.zip(0..).map(|(pair, rank)| (pair, (rank, 256 + rank))).collect();
        Vocabulary { pieces: HashMap::new(), bytes: [bytes; 2], merges }
    }

    /// The same where bytes that end a word follow the others. It knows the text of each token.
    pub(super) fn of_pairs_with_ends(pairs: impl Iterator<Item = (u32, u32)>) -> Vocabulary {
        let mut bytes = [[0; 256]; 2];
        let mut pieces = vec![];
        for (ends, row) in bytes.iter_mut().enumerate() {
            for byte in bytes_in_order() {
                row[usize::from(byte)] = pieces.len() as u32;
                pieces.push(Piece { bytes: vec![byte], ends_word: ends == 1 });
            }
        }
        let mut merges = HashMap::new();
        for (pair, rank) in pairs.zip(0..) {
            let [left, right] = [pair.0, pair.1].map(|id| &pieces[id as usize]);
            let whole = Piece { bytes: [&left.bytes[..], &right.bytes].concat(), ends_word: right.ends_word };
            merges.insert(pair, (rank, 512 + rank));
            pieces.push(whole);
        }
        Vocabulary { pieces: (0..).zip(pieces).collect(), bytes, merges }
    }

    /// Of bytes and the merges of their ids, with rank and result.
    pub(super) fn of_bytes(bytes: [u32; 256], merges: Merges) -> Vocabulary {
        Vocabulary { pieces: HashMap::new(), bytes: [bytes; 2], merges }
    }

    /// The ids of a word in a vocabulary that does not mark its end.
    pub(super) fn inside(&self, word: &str) -> Vec<u32> {
        self.cut(word.as_bytes(), false)
    }

    /// The ids of a word: its bytes, the last one marked, merged until no two neighbours can be.
    pub(super) fn word(&self, word: &str) -> Vec<u32> {
        self.cut(word.as_bytes(), true)
    }

    /// The text of a token and whether it ends a word.
    pub(super) fn piece(&self, id: u32) -> Option<(&[u8], bool)> {
        self.pieces.get(&id).map(|p| (&p.bytes[..], p.ends_word))
    }

    /// The merges in the order of their ranks.
    pub(super) fn merges(&self) -> Vec<(u32, u32)> {
        let mut merges: Vec<_> = self.merges.iter().collect();
        merges.sort_by_key(|&(_, rank)| *rank);
        merges.into_iter().map(|(&pair, _)| pair).collect()
    }

    /// Merge the lowest rank first, of equal ones the leftmost. A queue keeps this at n log n: a prompt may be one long word.
    fn cut(&self, bytes: &[u8], ends_word: bool) -> Vec<u32> {
        const GONE: usize = usize::MAX;
        let mut ids: Vec<u32> = bytes.iter().map(|&b| self.bytes[0][usize::from(b)]).collect();
        if let (Some(last), Some(&byte), true) = (ids.last_mut(), bytes.last(), ends_word) {
            *last = self.bytes[1][usize::from(byte)];
        }
        let count = ids.len();
        // Neighbours of each place; `count` is the end.
        let mut next: Vec<usize> = (1..=count).collect();
        let mut before: Vec<usize> = (0..count).map(|at| at.wrapping_sub(1)).collect();
        let pair = |ids: &[u32], left: usize, right: usize| self.merges.get(&(ids[left], ids[right])).copied();
        let mut queue: BinaryHeap<Reverse<(u32, usize, u32)>> = (1..count)
            .filter_map(|right| pair(&ids, right - 1, right).map(|(rank, whole)| Reverse((rank, right - 1, whole))))
            .collect();
        while let Some(Reverse((_, at, whole))) = queue.pop() {
            let right = next[at];
            // Entries are not taken out when their pair is changed by another merge: those no longer name what stands there.
            if right >= count || pair(&ids, at, right).is_none_or(|(_, id)| id != whole) {
                continue;
            }
            ids[at] = whole;
            next[at] = next[right];
            next[right] = GONE;
            if next[at] < count {
                before[next[at]] = at;
                queue.extend(pair(&ids, at, next[at]).map(|(rank, whole)| Reverse((rank, at, whole))));
            }
            if before[at] < count {
                queue.extend(pair(&ids, before[at], at).map(|(rank, whole)| Reverse((rank, before[at], whole))));
            }
        }
        (0..count).filter(|&at| next[at] != GONE).map(|at| ids[at]).collect()
    }
}

/// Two neighbours to their rank and what they become.
fn ranks(vocab: &HashMap<String, u32>, merges: &[(&str, &str)]) -> Result<Merges, VocabularyFault> {
    let mut ranks = HashMap::with_capacity(merges.len());
    for (rank, &(first, second)) in merges.iter().enumerate() {
        let id = |text: &str| vocab.get(text).copied().ok_or(VocabularyFault { rank, text: text.into() });
        let whole = id(&format!("{first}{second}"))?;
        ranks.entry((id(first)?, id(second)?)).or_insert((rank as u32, whole));
    }
    Ok(ranks)
}

/// The merge of this rank names a token that is not in the vocabulary.
pub(super) struct VocabularyFault {
    pub(super) rank: usize,
    pub(super) text: String,
}

/// Bytes in the order of their ids: first those that print.
fn bytes_in_order() -> impl Iterator<Item = u8> {
    let prints = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    (0..=255u8).filter(prints).chain((0..=255).filter(move |b| !prints(b)))
}

/// The letter that stands for each byte in files: itself where it prints, else one from U+0100 on.
fn alphabet() -> [char; 256] {
    let mut letters = ['\0'; 256];
    for (at, byte) in bytes_in_order().enumerate() {
        let code = if at < 188 { u32::from(byte) } else { 256 + at as u32 - 188 };
        letters[usize::from(byte)] = char::from_u32(code).unwrap_or_default();
    }
    letters
}
