//! Quantised numbers: blocks of every [`Storage`], decoded and made.
//!
//! A row of floats is cut into blocks of 32 or 256 numbers that share scales. The layouts are those of GGUF, the numbers those of its reference
//! implementation: [`decode`] gives equal bits to it for every block, and [`encode`] equal bytes where the reference quantises by one rule. The other
//! types leave the choice of scales to the encoder; ours searches for the least squared error ([`search`]).
//!
//! Every block is a function of fixed-size arrays without branches over elements, which compilers vectorise.

mod decode;
mod encode;
mod float;
mod k_quants;
mod search;

use impasto_graph::Storage;

pub use decode::{decode, decode_from, scale_rows};
pub use encode::encode;

/// The steps of `IQ4_NL` and `IQ4_XS`: closer around zero, where most weights are.
const UNEVEN_STEPS: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// The numbers of `MXFP4`, doubled: one bit of sign, two of exponent, one of mantissa.
const FOUR_BIT_FLOATS: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Makes sure that so many bytes hold so many numbers.
fn check_lengths(storage: Storage, bytes: usize, numbers: usize) {
    let whole = (numbers as u64).is_multiple_of(storage.block_elements());
    let fits = whole && storage.bytes_of(numbers as u64) == Some(bytes as u64);
    assert!(fits, "{numbers} numbers as {storage} do not take {bytes} bytes");
}
