//! Runs kernels on an NVIDIA GPU and compares with the executor: random programs, real kernels, the corners of the emitter, products of matrices and
//! the file tests. Needs nothing but the driver, prints a table, and ends with an error if anything differs.
//!
//! `cargo run --release -p impasto-ptx --example on_device`, with `IMPASTO_KERNEL_PROGRAMS=1000` for more random programs, and
//! `IMPASTO_PTX_TARGET=sm_80` to run code for an older target than the device.

mod driver;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use driver::Device;
use impasto_kernel::{BufferData, Kernel, KernelError, Launch, execute, lower_matrices};
use impasto_ptx::{PtxTarget, compiler};
use impasto_testkit::kernel::{edges, gemm, kernels, programs, random, same};
use impasto_testkit::ptx::{cases, files};

/// What a group of programs came to.
#[derive(Default)]
struct Tally {
    run: u32,
    equal: u32,
    different: Vec<String>,
    /// Why, and how often.
    refused: BTreeMap<String, u32>,
    time: Duration,
}

struct Session {
    device: Device,
    target: PtxTarget,
    tallies: Vec<(&'static str, Tally)>,
}

/// Whether what a GPU computed is right.
type Judge<'a> = &'a dyn Fn(Vec<BufferData>) -> Result<(), String>;

impl Session {
    fn group(&mut self, name: &'static str) {
        self.tallies.push((name, Tally::default()));
    }

    fn tally(&mut self) -> &mut Tally {
        if self.tallies.is_empty() {
            self.group("programs");
        }
        let last = self.tallies.len() - 1;
        &mut self.tallies[last].1
    }

    /// Runs a kernel as it is optimised and as it was written.
    fn run(&mut self, kernel: &Kernel, launch: &Launch, what: &str, judge: Judge<'_>) {
        for (compiler, how) in [(compiler(self.target), ""), (compiler(self.target).unoptimised(), ", unoptimised")] {
            let begin = Instant::now();
            let module = match compiler.compile(std::slice::from_ref(kernel)) {
                Ok(module) => module,
                Err(e) => {
                    let why = match e {
                        KernelError::NoMatrix { needs, .. } => format!("the target has no {needs}"),
                        e => e.to_string(),
                    };
                    *self.tally().refused.entry(why).or_default() += 1;
                    continue;
                }
            };
            let result = self.device.run(&module, kernel, launch).and_then(judge);
            let tally = self.tally();
            tally.run += 1;
            tally.time += begin.elapsed();
            match result {
                Ok(()) => tally.equal += 1,
                Err(e) => tally.different.push(format!("{what}{how}: {e}")),
            }
        }
    }

    /// The same, judged by the executor's bits.
    fn compare(&mut self, kernel: &Kernel, launch: &Launch, what: &str) {
        let mut expected = launch.clone();
        match execute(kernel, &mut expected) {
            Ok(()) => self.run(kernel, launch, what, &|got| same(&expected.buffers, &got)),
            Err(e) => *self.tally().refused.entry(format!("by the executor: {e}")).or_default() += 1,
        }
    }

    fn matrices(&mut self) {
        for seed in programs(100) {
            let case = gemm::case(seed, 32);
            let (kernel, launch) = (gemm::kernel(&case), gemm::launch(&case));
            let mut expected = launch.clone();
            if let Err(e) = execute(&kernel, &mut expected) {
                *self.tally().refused.entry(format!("by the executor: {e}")).or_default() += 1;
                continue;
            }
            self.run(&kernel, &launch, &format!("{case:?}"), &|got| {
                let error = gemm::error(&case, &expected.buffers[2], &got[2]);
                if error < 1.0 { Ok(()) } else { Err(format!("{error} of the error that is allowed")) }
            });
        }
    }

    fn lowered_matrices(&mut self) {
        for seed in programs(30) {
            let case = gemm::case(seed, 32);
            let (kernel, launch) = (gemm::kernel(&case), gemm::launch(&case));
            match lower_matrices(&kernel, 32) {
                Ok(lowered) => self.compare(&lowered, &launch, &format!("{case:?}, taken apart")),
                Err(e) => *self.tally().refused.entry(e.to_string()).or_default() += 1,
            }
        }
    }

    fn edges(&mut self) {
        let (kernel, launch) = edges::undefined_elsewhere();
        self.compare(&kernel, &launch, "what others leave undefined");
        let (kernel, launch, words) = edges::small_floats();
        let mut expected = launch.clone();
        if let Err(e) = execute(&kernel, &mut expected) {
            *self.tally().refused.entry(format!("by the executor: {e}")).or_default() += 1;
            return;
        }
        self.run(&kernel, &launch, "small floats", &|mut got| {
            edges::leave_out_nan(&words, &expected.buffers, &mut got);
            same(&expected.buffers, &got)
        });
    }

    fn all(&mut self) {
        self.group("random programs");
        for seed in programs(100) {
            let kernel = random::kernel(seed, 10 + (seed % 40) as usize);
            self.compare(&kernel, &random::launch(seed), &format!("seed {seed}"));
        }
        self.group("corners of the emitter");
        for case in cases::all() {
            let mut expected = case.launch.clone();
            match execute(&case.kernel, &mut expected) {
                Ok(()) => self.run(&case.kernel, &case.launch, &case.kernel.name, &|got| {
                    cases::right(&case, &expected.buffers, &got)
                }),
                Err(e) => *self.tally().refused.entry(format!("by the executor: {e}")).or_default() += 1,
            }
        }
        self.group("edges of numbers");
        self.edges();
        self.group("file tests");
        for case in files::kernels() {
            self.run(&case.kernel, &case.launch, &case.kernel.name, &|got| files::right(&case, &got));
        }
        self.group("real kernels");
        for case in kernels::all(0) {
            self.run(&case.kernel, &case.launch, &case.kernel.name, &|got| kernels::right(&case, &got));
        }
        self.group("twins in Rust");
        for twin in impasto_testkit::kernel::twins::all() {
            let Ok(kernel) = (twin.kernel)() else { continue };
            for seed in 0..3 {
                let (launch, want) = twin.launch(seed);
                let judge = |got: Vec<BufferData>| match got[5].bits == want {
                    true => Ok(()),
                    false => Err("other results than plain Rust".to_owned()),
                };
                self.run(&kernel, &launch, &format!("{}, seed {seed}", twin.name), &judge);
            }
        }
        self.group("products of matrices");
        self.matrices();
        self.group("matrices taken apart");
        self.lowered_matrices();
    }

    /// The table; whether nothing differs.
    fn report(&self) -> bool {
        println!("{:24} {:>6} {:>6} {:>9} {:>7} {:>8}", "group", "run", "equal", "different", "refused", "seconds");
        for (name, t) in &self.tallies {
            let (refused, seconds) = (t.refused.values().sum::<u32>(), t.time.as_secs_f64());
            println!("{name:24} {:6} {:6} {:9} {refused:7} {seconds:8.1}", t.run, t.equal, t.different.len());
        }
        for (name, t) in &self.tallies {
            t.refused.iter().for_each(|(why, n)| println!("refused, {name}, {n} times: {why}"));
            if let Some(first) = t.different.first() {
                println!("DIFFERENT, {name}: {first}");
            }
            t.different.iter().skip(1).take(20).for_each(|d| println!("  also {d}"));
        }
        self.tallies.iter().all(|(_, t)| t.different.is_empty())
    }
}

fn main() -> ExitCode {
    let device = match Device::open() {
        Ok(device) => device,
        Err(e) => {
            eprintln!("no device: {e}");
            return ExitCode::from(2);
        }
    };
    let (major, minor) = device.capability;
    let named = std::env::var("IMPASTO_PTX_TARGET").ok();
    let found = match &named {
        Some(name) => PtxTarget::ALL.into_iter().find(|t| t.name() == name),
        None => PtxTarget::for_device(major, minor),
    };
    let Some(target) = found else {
        eprintln!("there is no target {} for {}, {major}.{minor}", named.unwrap_or_default(), device.name);
        return ExitCode::from(2);
    };
    println!("{}, compute capability {major}.{minor}, driver {}, code for {target}", device.name, device.version);
    let mut session = Session { device, target, tallies: Vec::new() };
    session.all();
    if session.report() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
