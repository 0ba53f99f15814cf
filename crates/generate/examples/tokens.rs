//! Tokens of texts, to compare with another tokenizer: texts come in as lines of JSON strings, and go out as lines of JSON lists.
//!
//!     tokens clip|clip_padded_with_zero|clip:FOLDER|t5|qwen|FOLDER|FILE < texts.jsonl > tokens.jsonl
//!
//! Says on standard error how long opening and encoding took.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use impasto_generate::prompt::{BytePairs, SequenceTokenizer, Tokenizer, Unigram};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let which =
        std::env::args().nth(1).ok_or("usage: tokens clip|clip_padded_with_zero|clip:FOLDER|t5|qwen|FOLDER|FILE")?;
    let begun = Instant::now();
    let tokenizer = match which.as_str() {
        "clip" => SequenceTokenizer::Clip(Tokenizer::clip()),
        "clip_padded_with_zero" => SequenceTokenizer::Clip(Tokenizer::clip_padded_with_zero()),
        "t5" => SequenceTokenizer::Unigram(Unigram::t5()),
        "qwen" => SequenceTokenizer::BytePairs(BytePairs::qwen()),
        of_clip if of_clip.starts_with("clip:") => {
            SequenceTokenizer::Clip(Tokenizer::from_folder(of_clip[5..].as_ref())?)
        }
        path if Path::new(path).is_dir() => SequenceTokenizer::from_folder(Path::new(path))?,
        path => SequenceTokenizer::from_model_file(Path::new(path))?.ok_or("the file has no tokenizer")?,
    };
    let opened = begun.elapsed();
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let texts = input.lines().map(serde_json::from_str).collect::<Result<Vec<String>, _>>()?;
    let begun = Instant::now();
    let all: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text, usize::MAX)).collect();
    let encoded = begun.elapsed();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for ids in &all {
        serde_json::to_writer(&mut out, ids)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    eprintln!("opened in {:.3} s, {} texts in {:.3} s", opened.as_secs_f64(), texts.len(), encoded.as_secs_f64());
    Ok(())
}
