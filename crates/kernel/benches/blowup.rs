//! The blow-up series: seconds, ids and peak memory of our pipeline, and of `spirv-opt` on our unoptimised words, in the same run.
//!
//! ```text
//! cargo bench -p impasto-kernel --bench blowup                          ours on the whole series, spirv-opt on the small one
//! cargo bench -p impasto-kernel --bench blowup -- sparse 2048 2048 2    both on one kernel
//! ```

#[path = "../tests/common/blowup.rs"]
mod blowup;

use std::process::Command;
use std::time::Instant;

use impasto_kernel::{compile, compile_unoptimised, execute, optimise};

const SERIES: &[(&str, u32, u32, u32)] = &[
    ("sparse", 500, 500, 2),
    ("sparse", 2048, 2048, 2),
    ("sparse", 8000, 530, 43),
    ("loop", 200, 200, 2),
    ("loop", 1700, 1700, 2),
    ("sparse", 20000, 2000, 40),
];

/// The most memory that this process has held, in bytes; 0 where the system does not say.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// One kernel, in this process: what is printed is the line of the table.
fn one(name: &str, v: u32, j: u32, k: u32, baseline: bool) -> Result<(), Box<dyn std::error::Error>> {
    let kernel = blowup::kernel(name == "loop", v, j, k, 2)?;
    let built = peak();
    let module = compile(&kernel)?;
    let time = || -> Result<f64, impasto_kernel::KernelError> {
        let start = Instant::now();
        compile(&kernel)?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The best of three: machines are noisy.
    let seconds = time()?.min(time()?).min(time()?);
    let memory = peak();
    let (mut a, mut b) = (blowup::launch(v, j, 2), blowup::launch(v, j, 2));
    execute(&kernel, &mut a)?;
    execute(&optimise(&kernel)?, &mut b)?;
    let equal = a.buffers == b.buffers;
    print!(
        "{name} {v} {j} {k}: {seconds:.3} s, {} ids, peak {:.0} MB ({:.0} MB before)",
        module.bound,
        memory as f64 / 1e6,
        built as f64 / 1e6
    );
    print!(", {}", if equal { "equal on the executor" } else { "NOT EQUAL ON THE EXECUTOR" });
    if baseline {
        let folder = std::env::temp_dir().join(format!("impasto-blowup-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (input, output) = (folder.join("in.spv"), folder.join("out.spv"));
        let plain = compile_unoptimised(&kernel)?;
        std::fs::write(&input, plain.words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
        let start = Instant::now();
        let done = Command::new("spirv-opt")
            .args(["-O", "--max-id-bound=67108863", "--compact-ids"])
            .arg(&input)
            .arg("-o")
            .arg(&output)
            .output()?;
        let theirs = start.elapsed().as_secs_f64();
        let out = std::fs::read(&output).unwrap_or_default();
        let bound = out.get(12..16).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        print!("; spirv-opt: {theirs:.3} s ({:.0} x), {bound} ids, from {} ids", theirs / seconds, plain.bound);
        if !done.status.success() {
            print!(", FAILED: {}", String::from_utf8_lossy(&done.stderr).lines().next().unwrap_or(""));
        }
        std::fs::remove_dir_all(&folder)?;
    }
    println!();
    if equal { Ok(()) } else { Err("the optimised kernel computes something else".into()) }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [name, v, j, k, rest @ ..] = &args[..] {
        return one(name, v.parse()?, j.parse()?, k.parse()?, !rest.iter().any(|r| r == "--ours"));
    }
    // A process for each, so that peaks do not add up.
    for (name, v, j, k) in SERIES {
        let mut child = Command::new(std::env::current_exe()?);
        child.args([name.to_string(), v.to_string(), j.to_string(), k.to_string()]);
        if *v > 500 {
            child.arg("--ours");
        }
        if !child.status()?.success() {
            return Err(format!("{name} {v} {j} {k} failed").into());
        }
    }
    Ok(())
}
