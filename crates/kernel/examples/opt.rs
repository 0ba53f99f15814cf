use impasto_kernel::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let bytes = std::fs::read(&a[1]).unwrap();
    let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let dump = a.len() > 3;
    let t = std::time::Instant::now();
    let mut last = std::time::Instant::now(); let times = std::env::var_os("TIMES").is_some();
    let made = optimise_words_seen(&words, ModuleOptions::default(), &mut |p, _, k| { if dump { eprintln!("== {p}\n{k}") } if times { eprintln!("{p}: {:?}", last.elapsed()); last = std::time::Instant::now(); } });
    if times { eprintln!("write: {:?}", last.elapsed()); }
    let t = t.elapsed();
    match made {
        Ok(m) => {
            for p in &m.passed { println!("passed: {p:?}"); }
            println!("{} -> {} instructions, {} ids, {t:?}", count_instructions(&words), count_instructions(&m.words), m.words[3]);
            std::fs::write(&a[2], m.words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        }
        Err(e) => println!("ERROR {e}"),
    }
}
