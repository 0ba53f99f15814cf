//! Words, as a text encoder reads them: a prompt in the syntax of webui, cut into tokens and chunks.
//!
//! ```
//! use impasto_generate::prompt::{Tokenizer, chunks, parse};
//! let tokenizer = Tokenizer::clip();
//! let pieces = parse("a (red:1.3) fox, [blurry]");
//! let chunks = chunks(&tokenizer, &pieces, 77, tokenizer.pad())?;
//! assert_eq!(chunks.len(), 1);
//! assert_eq!(chunks[0].ids[..4], [49406, 320, 736, 3240]);
//! assert_eq!(chunks[0].weights[..4], [1.0, 1.0, 1.3, 1.0]);
//! # Ok::<(), impasto_generate::prompt::PromptError>(())
//! ```

mod brought;
mod bytes;
mod charsmap;
mod chunks;
mod embedded;
mod folder;
mod parse;
mod protobuf;
mod sequence;
mod tokens;
mod unigram;
mod vocabulary;

use std::path::PathBuf;

pub use bytes::BytePairs;
pub use chunks::{Chunk, chunks, emphasise, sequences};
pub use parse::{PromptSpan, parse};
pub use sequence::SequenceTokenizer;
pub use tokens::{TokenText, Tokenizer};
pub use unigram::Unigram;

/// Why a prompt cannot become tokens.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// A file of a tokeniser cannot be read.
    #[error("{}: cannot be opened: {source}; a tokeniser is a folder with vocab.json and merges.txt", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of a tokeniser is not what it should be.
    #[error("{}: {problem}; take the folder from the model's own source again", path.display())]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, at which place.
        problem: String,
    },
    /// No text encoder reads so few or so many tokens.
    #[error(
        "a text encoder of {length} tokens: from 3, which leave room for a word, to 65536 can be read; check the model's configuration"
    )]
    Length {
        /// The number of tokens that it reads.
        length: usize,
    },
    /// A token id that the encoder's input cannot hold.
    #[error("the tokeniser gives token {id}, which no text encoder has; its vocab.json is damaged")]
    Token {
        /// The id.
        id: u32,
    },
    /// The tokenizer of this encoder is in none of the files, and the program has none.
    #[error(
        "no file brings the tokenizer of {encoder}; give its text encoder as a GGUF file, as one with the tensor tekken_model, or in a folder beside its tokenizer folder"
    )]
    NotBrought {
        /// The text encoder.
        encoder: &'static str,
    },
    /// A tokenizer that cannot be this encoder's.
    #[error("the tokenizer beside the text encoder {encoder} is of another kind; take both from the same model")]
    OtherKind {
        /// The text encoder.
        encoder: &'static str,
    },
    /// The output of a text encoder that is not so many rows.
    #[error(
        "{numbers} numbers are not the rows of {tokens} tokens; pass one chunk of the encoder's output with the weights of that chunk"
    )]
    Shape {
        /// The numbers given.
        numbers: usize,
        /// The weights given.
        tokens: usize,
    },
}
