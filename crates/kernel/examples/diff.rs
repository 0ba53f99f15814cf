use impasto_kernel::*;
fn words(p: &str) -> Vec<u32> { std::fs::read(p).unwrap().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect() }
fn main() {
    let a: Vec<String> = std::env::args().collect();
    for p in &a[1..] {
        let x = words(p);
        let y = match optimise_words(&x, ModuleOptions::default()) { Ok(m) => m.words, Err(e) => { println!("{p}: {e}"); continue } };
        let d = match Diff::new(&x, &y, DiffOptions::default()) { Ok(d) => d, Err(e) => { println!("{p}: {e}"); continue } };
        for e in d.entries() {
            match d.on_cpu(e) { Ok(c) => { if c.first.is_some() || c.changed == 0 { println!("{p}: {c:?}") } }, Err(e) => println!("{p}: {e}") }
        }
    }
}
