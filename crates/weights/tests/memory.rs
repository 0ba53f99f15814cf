//! Reading a model must not hold its file in memory beside the packed weights.

#![cfg(target_os = "linux")]

use impasto_backend::WeightSource;
use impasto_weights::Checkpoint;

/// Bytes of mapped files that this process holds.
fn file_pages() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|l| l.starts_with("RssFile:")).expect("a line of it");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn pages_that_were_read_are_let_go() {
    const EACH: usize = 16 << 20;
    let names: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
    let tensors = names.iter().enumerate().map(|(i, name)| {
        format!(r#""{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}}"#, EACH / 4, i * EACH, (i + 1) * EACH)
    });
    let header = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..8 * EACH).map(|i| (i % 251) as u8));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.safetensors");
    std::fs::write(&path, bytes).expect("written");

    let file = Checkpoint::open(&path).expect("a model file");
    let before = file_pages();
    let sum = |name: &str| file.read(name).expect("there").bytes.iter().map(|&b| u64::from(b)).sum::<u64>();
    let mut most = 0;
    let sums: Vec<u64> = names
        .iter()
        .map(|name| {
            let sum = sum(name);
            most = most.max(file_pages().saturating_sub(before));
            file.release(name);
            sum
        })
        .collect();
    println!("at most {most} bytes of the file were held, of {}", 8 * EACH);
    assert!(most < 2 * EACH as u64, "{most} bytes of the file are held at once");
    // What was let go of is still there.
    assert_eq!(sum(&names[3]), sums[3]);
}
