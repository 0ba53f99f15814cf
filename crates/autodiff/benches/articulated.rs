//! The adjoint of a chain of rigid bodies: our compiler on it, and `spirv-opt` on the same kernel as it would be emitted with a variable for
//! each adjoint, in the same run.
//!
//! ```text
//! cargo bench -p impasto-autodiff --bench articulated -- 16
//! ```

#[allow(dead_code, reason = "a bench uses a part of this")]
#[path = "../tests/derivatives/mod.rs"]
mod derivatives;

use std::collections::HashSet;
use std::fmt::Write;
use std::process::Command;
use std::time::Instant;

use derivatives::articulated;
use impasto_autodiff::Differentiate;
use impasto_kernel::Kernel;
use impasto_spirv::{Words, compile, compile_unoptimised};

/// The kernel with a variable for each float that an op gives, declared at the start: set where it is made, read where it is used.
fn naive(kernel: &Kernel) -> Result<Kernel, Box<dyn std::error::Error>> {
    let text = kernel.to_string();
    let simple = |line: &str| {
        let head = line.trim_start().split_once(" = ")?;
        let one = head.0.starts_with('%') && !head.0.contains(',');
        let structure = ["for ", "if ", "loop ", "switch ", "const "].iter().any(|s| head.1.starts_with(s));
        (one && !structure && line.ends_with(": f32")).then(|| head.0[1..].parse::<u32>().ok())?
    };
    let floats: HashSet<u32> = text.lines().filter_map(simple).collect();
    let mut next = text.lines().count() as u32 * 4;
    let mut out = String::new();
    let mut declared = false;
    for line in text.lines() {
        let declaration =
            ["kernel ", "buffer ", "scalar ", "shared ", "private "].iter().any(|s| line.trim_start().starts_with(s));
        if !declaration && !declared {
            declared = true;
            next += 1;
            writeln!(out, "%{next} = const 0.0 : f32")?;
            let mut all: Vec<&u32> = floats.iter().collect();
            all.sort_unstable();
            for v in all {
                writeln!(out, "var v{v}: f32 = %{next}")?;
            }
        }
        // What a line uses is read before it, except by its own definitions.
        let used = line.split_once(" = ").filter(|_| line.trim_start().starts_with('%')).map_or(line, |x| x.1);
        let prefix = &line[..line.len() - used.len()];
        let mut rest = String::new();
        let mut parts = used.split('%');
        rest.push_str(parts.next().unwrap_or(""));
        for part in parts {
            let digits = part.chars().take_while(char::is_ascii_digit).count();
            let number: u32 = part[..digits].parse()?;
            // The names of a loop's own arguments stand before a colon.
            if floats.contains(&number) && !part[digits..].starts_with(':') {
                next += 1;
                writeln!(out, "%{next} = get v{number} : f32")?;
                write!(rest, "%{next}{}", &part[digits..])?;
            } else {
                write!(rest, "%{part}")?;
            }
        }
        writeln!(out, "{prefix}{rest}")?;
        if let Some(v) = simple(line) {
            writeln!(out, "set v{v} = %{v}")?;
        }
    }
    Ok(out.parse()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bodies = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(16);
    let kernel = articulated::kernel(bodies)?;
    let start = Instant::now();
    let grad = kernel.grad()?;
    let differentiated = start.elapsed().as_secs_f64();
    let mut seconds = f64::MAX;
    for _ in 0..15 {
        let start = Instant::now();
        compile(&grad.kernel)?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    let ours = compile(&grad.kernel)?;
    println!(
        "{bodies} bodies: primal {} ids; adjoint in {differentiated:.3} s, compiled in {seconds:.3} s, {} ids",
        compile(&kernel)?.bound(),
        ours.bound()
    );
    print!("{}", grad.report);
    let plain = compile_unoptimised(&naive(&grad.kernel)?)?;
    println!("one variable for each float: {} ids", plain.bound());
    let folder = std::env::temp_dir().join(format!("impasto-articulated-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (input, output) = (folder.join("in.spv"), folder.join("out.spv"));
    let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    std::fs::write(&input, bytes(&ours.words()))?;
    let valid = Command::new("spirv-val").args(["--target-env", "vulkan1.1"]).arg(&input).status()?;
    println!("ours: spirv-val {}", if valid.success() { "accepts it" } else { "REFUSES IT" });
    std::fs::write(&input, bytes(&plain.words()))?;
    for bound in [None, Some("--max-id-bound=67108863")] {
        let start = Instant::now();
        let done = Command::new("timeout")
            .arg("900")
            .arg("spirv-opt")
            .arg("-O")
            .args(bound)
            .arg("--compact-ids")
            .arg(&input)
            .arg("-o")
            .arg(&output)
            .output()?;
        let taken = start.elapsed().as_secs_f64();
        let said = String::from_utf8_lossy(&done.stderr);
        let said = said.lines().find(|l| l.contains("overflow")).unwrap_or("");
        println!(
            "spirv-opt -O {}: {taken:.2} s, {}, {:.0} times ours {said}",
            bound.unwrap_or("with the default bound"),
            done.status,
            taken / seconds
        );
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
