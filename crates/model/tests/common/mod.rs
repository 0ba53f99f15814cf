//! Files like those that people have, without their weights: a header, and a hole where the numbers would be.

use std::fs;
use std::path::{Path, PathBuf};

/// One tensor: name, element type, shape.
pub type Entry = (String, &'static str, Vec<usize>);

fn bytes_of(element: &str) -> usize {
    match element {
        "F64" | "I64" => 8,
        "F32" | "I32" => 4,
        "F16" | "BF16" | "I16" => 2,
        _ => 1,
    }
}

/// Write a file with these tensors, all zero. It takes no room on a disk that knows holes.
pub fn sparse(path: &Path, entries: &[Entry], metadata: &[(&str, &str)]) -> PathBuf {
    let mut fields = vec![];
    if !metadata.is_empty() {
        let pairs: Vec<String> = metadata.iter().map(|(k, v)| format!("{k:?}:{v:?}")).collect();
        fields.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    let mut at = 0;
    for (name, element, shape) in entries {
        let end = at + shape.iter().product::<usize>() * bytes_of(element);
        fields.push(format!(r#""{name}":{{"dtype":"{element}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#));
        at = end;
    }
    let header = format!("{{{}}}", fields.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("it can be made");
    fs::write(path, &bytes).expect("it can be written");
    let file = fs::OpenOptions::new().write(true).open(path).expect("it is ours");
    file.set_len((bytes.len() + at) as u64).expect("a hole costs nothing");
    path.into()
}
