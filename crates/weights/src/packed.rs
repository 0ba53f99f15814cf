//! Compressed model files, unpacked in memory.

use std::io::Read;
use std::path::Path;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::WeightsError;

/// How every zstd frame begins. As the length of a safetensors header it would be four gigabytes, so a file is one or the other.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Weights shrink to a half or a quarter; a table of words that were never seen is zeros and shrinks to nothing. What grows beyond
/// this is made to fill memory.
const MAX_RATIO: u64 = 64;
const ALWAYS: u64 = 256 << 20;
/// Bytes decoded at a time.
const PIECE: usize = 128 << 10;

/// Whether these are the first bytes of a compressed file.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The most that a compressed file of so many bytes may unpack to, on a machine that may use so much memory.
fn limit(packed: u64, memory: Option<u64>) -> u64 {
    let believable = packed.saturating_mul(MAX_RATIO).max(ALWAYS);
    memory.map_or(believable, |memory| believable.min(memory / 2))
}

/// Unpack a compressed file. Memory grows with what is really there, never with what the file says of its size.
pub(crate) fn unpack(path: &Path, bytes: &[u8]) -> Result<Vec<u8>, WeightsError> {
    let most = limit(bytes.len() as u64, impasto_graph::host::memory().map(|m| m.limit));
    unpack_within(bytes, most).map_err(|problem| WeightsError::NotAModel { path: path.into(), problem })
}

fn unpack_within(mut source: &[u8], most: u64) -> Result<Vec<u8>, String> {
    let broken = |e: &dyn std::fmt::Display| format!("is a damaged zstd file: {e}; download it again");
    let mut out: Vec<u8> = vec![];
    while !source.is_empty() {
        let mut decoder = match StreamingDecoder::new(&mut source) {
            Ok(decoder) => decoder,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                source = source.get(length as usize..).ok_or_else(|| broken(&"a frame is cut off"))?;
                continue;
            }
            Err(e) => return Err(broken(&e)),
        };
        loop {
            let have = out.len();
            let piece = PIECE.min(usize::try_from(most + 1 - have as u64).unwrap_or(PIECE));
            out.try_reserve(piece)
                .map_err(|_| format!("unpacks to more than {have} bytes, for which there is no memory"))?;
            out.resize(have + piece, 0);
            let read = decoder.read(&mut out[have..]).map_err(|e| broken(&e))?;
            out.truncate(have + read);
            if out.len() as u64 > most {
                return Err(format!(
                    "unpacks to more than {most} bytes, which is not believable or more than half of the memory"
                ));
            }
            if read == 0 {
                break;
            }
        }
        check_sum(&decoder.decoder).map_err(|problem| broken(&problem))?;
    }
    Ok(out)
}

fn check_sum(decoder: &FrameDecoder) -> Result<(), &'static str> {
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(said), Some(is)) if said != is => Err("its checksum is wrong"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_with_the_file_up_to_half_of_the_memory() {
        assert_eq!(limit(1000, None), ALWAYS);
        assert_eq!(limit(100 << 20, None), 6400 << 20);
        assert_eq!(limit(100 << 20, Some(4 << 30)), 2 << 30);
    }

    /// Zeros, four bytes for each 128 KiB of them: written by hand, since nothing here packs.
    fn zeros(blocks: u32) -> Vec<u8> {
        // Magic, no content size and no checksum, a window of 1 MiB, then blocks that repeat one byte.
        let mut bytes = [&MAGIC[..], &[0x00, 0x50]].concat();
        for i in 0..blocks {
            let header = u32::from(i + 1 == blocks) | 1 << 1 | (128 << 10) << 3;
            bytes.extend(&header.to_le_bytes()[..3]);
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn a_file_made_to_fill_memory_is_refused_early() {
        let bytes = zeros(64);
        assert_eq!(unpack_within(&bytes, 8 << 20).expect("it fits exactly").len(), 8 << 20);
        let refused = unpack_within(&bytes, (8 << 20) - 1).expect_err("one byte too many");
        assert!(refused.contains("8388607"), "{refused}");
        // 16 GiB in half a megabyte.
        let bomb = zeros(1 << 17);
        let refused = unpack_within(&bomb, 16 << 20).expect_err("it is a bomb");
        assert!(refused.contains("not believable"), "{refused}");
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let good = include_bytes!("../tests/fixtures/small.safetensors.zst");
        let whole = unpack_within(good, 1 << 20).expect("it is good");
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        for _ in 0..3_000 {
            let mut bytes = good.to_vec();
            match next(3) {
                0 => bytes.truncate(next(good.len())),
                1 => bytes[4 + next(good.len() - 4)] ^= 1 << next(8),
                _ => bytes[4 + next(good.len() - 4)] = next(256) as u8,
            }
            // The checksum finds what the format does not.
            if let Ok(out) = unpack_within(&bytes, 1 << 20) {
                assert!(out == whole || bytes.len() < good.len());
            }
        }
        for end in (1..good.len()).step_by(7) {
            assert!(unpack_within(&good[..end], 1 << 20).is_err(), "cut off at byte {end} of {}", good.len());
        }
    }
}
