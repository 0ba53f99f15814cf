//! The textual form: what file tests and dumps are written in. `Display` prints it and `FromStr` reads it.

mod lex;
mod parse;
mod print;

pub use print::{op_text, type_text};
