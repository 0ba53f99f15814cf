//! What several tests use: random kernels, and inputs for them.
#![allow(dead_code, reason = "each test uses a part of this")]

pub mod articulated;
pub mod cases;
pub mod differentiable;
pub mod gemm;
pub mod gradients;
pub mod kernels;
pub mod members;
pub mod modules;
pub mod on_device;
pub mod poses;
pub mod random;
pub mod together;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use impasto_kernel::{Builder, Data, Kernel, Launch, Module, Scalar, execute};

/// Runs a kernel of [`random`] on the inputs of its seed, and gives what it wrote.
pub fn outputs(kernel: &Kernel, seed: u64) -> Result<Vec<Data>, String> {
    outputs_of(kernel, &random::launch(seed))
}

/// Runs a kernel on these inputs, and gives what it wrote.
pub fn outputs_of(kernel: &Kernel, launch: &Launch) -> Result<Vec<Data>, String> {
    let mut launch = launch.clone();
    execute(kernel, &mut launch).map_err(|e| e.to_string())?;
    Ok(launch.buffers)
}

/// Bit-equal, but one NaN is as good as another: devices choose its bits.
pub fn same(a: &[Data], b: &[Data]) -> Result<(), String> {
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        for (j, (&p, &q)) in x.bits.iter().zip(&y.bits).enumerate() {
            let nan = |b: u64| match x.ty {
                Scalar::F32 => f32::from_bits(b as u32).is_nan(),
                Scalar::F16 => half::f16::from_bits(b as u16).is_nan(),
                Scalar::Bf16 => half::bf16::from_bits(b as u16).is_nan(),
                _ => false,
            };
            if p != q && !(nan(p) && nan(q)) {
                let show = |b: u64| format!("{b:#x} ({:?})", f32::from_bits(b as u32));
                return Err(format!("buffer {i}, element {j}: {} and {}", show(p), show(q)));
            }
        }
    }
    if a.len() == b.len() { Ok(()) } else { Err("other buffers".to_owned()) }
}

/// Asks `spirv-val`; without it nothing is proven, so that is a failure, too.
pub fn valid(words: &[u32]) -> Result<(), String> {
    valid_by("spirv-val", words)
}

/// Asks another validator.
pub fn valid_by(validator: &str, words: &[u32]) -> Result<(), String> {
    valid_for(validator, "vulkan1.1", words)
}

/// Asks a validator about another environment.
pub fn valid_for(validator: &str, environment: &str, words: &[u32]) -> Result<(), String> {
    let missing = |e| format!("{validator} cannot be run ({e}): install spirv-tools, as tools/test.sh does");
    let mut child = Command::new(validator)
        .args(["--target-env", environment, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).map_err(|e| e.to_string())?;
    let done = child.wait_with_output().map_err(|e| e.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))),
    }
}

/// What `spirv-opt -O` leaves of a module, and the time that takes without the start and the files of the process.
pub fn spirv_opt(words: &[u32]) -> (Vec<u32>, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.spv"), folder.path().join("out.spv"));
    std::fs::write(&input, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let run = |passes: &[&str]| {
        let begin = Instant::now();
        let done = Command::new("spirv-opt").args(passes).arg(&input).arg("-o").arg(&output).status();
        assert!(done.expect("spirv-opt cannot be run: install spirv-tools, as tools/test.sh does").success());
        begin.elapsed()
    };
    let nothing = run(&[]);
    let time = run(&["-O"]).saturating_sub(nothing);
    let bytes = std::fs::read(&output).unwrap();
    (modules::words(&bytes), time)
}

/// Every id below the bound is defined once.
pub fn dense(module: &Module) -> Result<(), String> {
    dense_words(&module.words)
}

/// Every id below the bound is defined once.
pub fn dense_words(words: &[u32]) -> Result<(), String> {
    struct Ids(Vec<u32>);
    impl rspirv::binary::Consumer for Ids {
        fn initialize(&mut self) -> rspirv::binary::ParseAction {
            rspirv::binary::ParseAction::Continue
        }
        fn finalize(&mut self) -> rspirv::binary::ParseAction {
            rspirv::binary::ParseAction::Continue
        }
        fn consume_header(&mut self, _: rspirv::dr::ModuleHeader) -> rspirv::binary::ParseAction {
            rspirv::binary::ParseAction::Continue
        }
        fn consume_instruction(&mut self, i: rspirv::dr::Instruction) -> rspirv::binary::ParseAction {
            self.0.extend(i.result_id);
            rspirv::binary::ParseAction::Continue
        }
    }
    let mut ids = Ids(Vec::new());
    rspirv::binary::parse_words(words, &mut ids).map_err(|e| format!("{e:?}"))?;
    ids.0.sort_unstable();
    let all: Vec<u32> = (1..words[3]).collect();
    if ids.0 == all { Ok(()) } else { Err(format!("{} ids of {}", ids.0.len(), words[3])) }
}

/// Writes to so many places in each of seven buffers.
pub fn places(name: &str, n: u32) -> Kernel {
    let made = Builder::kernel(name, [1, 1, 1], |k| {
        let y = ["a", "b", "c", "d", "e", "f", "g"].map(|y| k.buffer_mut::<u32>(y));
        let i = k.global_id(0);
        for at in 0..n {
            let at = k.lit(at);
            y.iter().for_each(|y| y.store(at, i));
        }
    });
    made.unwrap()
}

/// Which random programs a test tries: the first so many, or as many as the variable says, or those of its range such as `596..10000`.
pub fn programs(ci: u64) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("IMPASTO_KERNEL_PROGRAMS") else { return 0..ci };
    let (from, to) = text.split_once("..").unwrap_or(("0", &text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) => from..to,
        _ => panic!("IMPASTO_KERNEL_PROGRAMS is {text}, neither a number nor a range"),
    }
}
