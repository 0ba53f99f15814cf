//! The command line: what it takes, and what it shows.

pub mod arguments;
pub mod convert;
pub mod devices;
pub mod kernel;
pub mod module;
pub mod paint;
pub mod peers;
pub mod plan;
mod progress;
pub mod serve;
pub mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use impasto::backend::cpu::{CpuOptions, Precision};
use impasto::bench::Published;
use impasto::generate::settings::{Isolate, SettingValue};
use impasto::graph::Storage;
use impasto::kernel::blowup::Case;
use impasto::weights::parse_storage;

#[derive(Subcommand)]
pub enum Command {
    /// Show what is in a model file: modules, parameters, element types, sizes.
    Inspect {
        /// A .safetensors, .gguf, .ckpt, .pt, .pth or .bin file (also .zst), the index of one in shards, a folder with one of them, or a diffusers folder.
        file: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Write a model anew, as GGUF or safetensors and in other types: smaller, or so that other programs read it.
    Convert(Convert),
    /// Show which devices are here, which of them are healthy, and what to do about the others.
    Devices(Devices),
    /// Look at the GPU kernels of this program: what they are, and what the compiler makes of them.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Measure how near to the machine's limit things run.
    #[command(subcommand)]
    Bench(Bench),
    /// Print what a shell needs to complete our commands.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man,
}

#[derive(Args)]
#[command(after_help = CONVERT_HELP)]
pub struct Convert {
    /// The model: any file that `inspect` reads, or a folder.
    #[arg(short, long, value_name = "PATH", required_unless_present = "diffusion_model")]
    pub model: Option<PathBuf>,
    /// A diffusion model, to be merged with the files of the next flags under the names of single checkpoints.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub diffusion_model: Option<PathBuf>,
    /// Its autoencoder.
    #[arg(long, value_name = "FILE", requires = "diffusion_model", conflicts_with = "model")]
    pub vae: Option<PathBuf>,
    /// Its text encoder CLIP-L.
    #[arg(long = "clip_l", value_name = "FILE", requires = "diffusion_model", conflicts_with = "model")]
    pub clip_l: Option<PathBuf>,
    /// Its text encoder OpenCLIP-G.
    #[arg(long = "clip_g", value_name = "FILE", requires = "diffusion_model", conflicts_with = "model")]
    pub clip_g: Option<PathBuf>,
    /// Its text encoder T5-XXL.
    #[arg(long, value_name = "FILE", requires = "diffusion_model", conflicts_with = "model")]
    pub t5xxl: Option<PathBuf>,
    /// Its language model.
    #[arg(long, value_name = "FILE", requires = "diffusion_model", conflicts_with = "model")]
    pub llm: Option<PathBuf>,
    /// The file to write: .gguf or .safetensors.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The type of weights, such as f16, q8_0, q4_k (.gguf) or f8_e4m3 (.safetensors); by default each stays as it is.
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_storage)]
    pub storage: Option<Storage>,
    /// Types by name, such as "^vae\\.=f16,attn=q8_0": regular expressions, the first that is found in a tensor's name decides.
    #[arg(long, value_name = "RULES", default_value = "")]
    pub tensor_type_rules: String,
    /// All components of a diffusers folder into one file, under the names of original checkpoints (GGUF), or each under the name of its folder.
    #[arg(long, requires = "model", conflicts_with = "component")]
    pub merge: bool,
    /// GGUF with the names of a diffusers folder, where other programs would expect those of original checkpoints.
    #[arg(long, requires = "model")]
    pub keep_names: bool,
    /// One component of a diffusers folder, such as unet.
    #[arg(long, value_name = "NAME", requires = "model")]
    pub component: Option<String>,
    /// Replace the file if it is there.
    #[arg(long)]
    pub force: bool,
    /// Threads; by default as many as this process may use.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// One JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

const CONVERT_HELP: &str = "\
Vectors, small tensors, embeddings and the layers at the ends of a network stay dense, and so do kernels of 3x3, whose rows are no whole blocks; where
rows do not fill blocks of 256, one of 32 is taken. A rule with a name decides otherwise, as far as rows fill blocks. Scales of fp8 and int8 are applied.

Exit codes: 0 the file was written, 1 it failed or was refused, 2 bad arguments, 130 interrupted; only with 0 is there a new file.";

#[derive(Args)]
pub struct Devices {
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// Ask every driver anew, also those that crashed before.
    #[arg(long)]
    pub fresh: bool,
    /// Seconds until a driver that does not answer is given up.
    #[arg(long, value_name = "S", default_value_t = 15.0)]
    pub timeout: f64,
    /// Write everything that is known to a file, for a bug report, without your name and that of the machine.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Remove all verdicts of earlier runs, and what is held against drivers that crashed.
    #[arg(long, conflicts_with_all = ["json", "fresh", "report", "timeout"])]
    pub forget: bool,
}

#[derive(Subcommand)]
pub enum KernelCommand {
    /// The kernels, each for a shape that Stable Diffusion 1 has.
    List {
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// One kernel, at a stage of its way to words.
    Show(KernelShow),
    /// Optimise a SPIR-V module of compute shaders, from any compiler.
    Opt(module::KernelOpt),
    /// Compare two modules by what they do: the same random buffers into both, on the CPU and on a device.
    Diff(module::KernelDiff),
}

#[derive(Args)]
pub struct KernelShow {
    /// Its name in the list.
    pub name: String,
    /// built, the name of a pass (after its last turn), optimised, or spirv.
    #[arg(long, value_name = "STAGE", default_value = "optimised")]
    pub stage: String,
    /// 0 for the kernel as it is written, 1 for all passes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub opt: u8,
    /// Its adjoint instead: the kernel that computes derivatives backwards.
    #[arg(long)]
    pub grad: bool,
    /// What the adjoint keeps of each loop, what it computes again, and how many bytes that takes.
    #[arg(long, requires = "grad")]
    pub tape: bool,
    /// Write every stage, and exactly the words that would be shipped, into a folder in this one.
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Check the kernel after each pass, and name the pass that breaks it.
    #[arg(long)]
    pub verify: bool,
}

#[derive(Subcommand)]
pub enum Bench {
    /// The decoding of a picture in bands against the same as a whole: time, or with --memory what plans of all numbers of bands take, with --least in how little memory they work.
    Bands(BenchBands),
    /// Matrix products, convolutions and attention on the CPU, as a share of the peak of the same run.
    Cpu(BenchCpu),
    /// The kernel compiler on kernels that break optimisers of SPIR-V, against spirv-opt where it is installed.
    Kernel(BenchKernel),
    /// The weights of a diffusion model from their file to a device, against reading the same bytes into memory.
    Load(BenchLoad),
    /// Whole networks of true size on random weights, as a share of the peak of the same run, with a profile.
    Model(BenchModel),
    /// Single products, convolutions and attention of true size on a device, by its own clock; tools/torch_ops.py measures the same on PyTorch.
    Ops(BenchOps),
    /// Plans of the real networks: memory, how near to the least possible, and the time that planning takes.
    Plan(Common),
    /// A running server under load: many clients at once, jobs among cheap requests. Or what a server costs its jobs.
    Serve(BenchServe),
    /// A diffusion model in ever less memory: what streamed weights cost, and how much of the copying is hidden.
    Stream(BenchStream),
    /// A step with weights of several types, in turns: what decoding them costs.
    Types(BenchTypes),
    /// A step of the model inside the program, in this process and in a worker process in turns: what the worker costs.
    Worker(BenchWorker),
}

#[derive(Args)]
pub struct Common {
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Threads; by default as many as this process may use.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// What products are computed in: auto, f32 or bf16.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub precision: Precision,
}

#[derive(Args)]
pub struct BenchBands {
    #[command(flatten)]
    pub common: Common,
    /// Pixels along a side of the picture.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4096))]
    pub size: u32,
    /// Bands.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub bands: u32,
    /// Runs, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Plan only.
    #[arg(long, conflicts_with_all = ["bands", "runs"])]
    pub memory: bool,
    /// Plan only: the least memory of a GPU in which bands still work, on it alone and with bands that rest in host memory.
    #[arg(long, conflicts_with_all = ["bands", "runs", "memory"])]
    pub least: bool,
    /// Write the whole picture, that of tiles, and how they differ, eightfold, beside each other as a PNG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["memory", "least"])]
    pub difference: Option<std::path::PathBuf>,
}

#[derive(Args)]
pub struct BenchCpu {
    #[command(flatten)]
    pub common: Common,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Seconds for each case.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,
    /// Slices of the cases, of a few milliseconds, before and after which nobody else used the same cores (amx); one thread
    /// looks for a quiet core.
    #[arg(long)]
    pub undisturbed: bool,
}

#[derive(Args)]
pub struct BenchKernel {
    /// Which kernels, such as "sparse 2048 2048 2" or "loop 200 200 2"; by default a series of six.
    #[arg(value_name = "KERNEL")]
    pub cases: Vec<Case>,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Without spirv-opt, which takes minutes.
    #[arg(long)]
    pub no_baseline: bool,
    /// Modules of others instead.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "cases")]
    pub module: Vec<PathBuf>,
    /// Elements of the arrays at the ends of their buffers, with which they are run.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub elements: u32,
}

#[derive(Args)]
pub struct BenchLoad {
    #[command(flatten)]
    pub common: Common,
    /// The model: a file or a diffusers folder; by default the one inside the program.
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Where the weights go: cpu, or a device that `impasto devices` lists, such as vulkan0.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub backend: String,
    /// Runs, of which the medians count.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// In a process of its own (auto) or in this one (off).
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = Isolate::parse)]
    pub isolate: Isolate,
}

#[derive(Args)]
pub struct BenchOps {
    #[command(flatten)]
    pub common: Common,
    /// Where they run: a device that `impasto devices` lists.
    #[arg(long, value_name = "NAME", default_value = "cuda0")]
    pub backend: String,
    /// Runs, of which the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub runs: usize,
}

#[derive(Args)]
pub struct BenchModel {
    #[command(flatten)]
    pub common: Common,
    /// Which networks: sd15, sd21, sdxl, flux-dev, klein-4b, z-image, sd35-large or qwen-image.
    #[arg(long, value_name = "NAME", default_value = "sd15", value_parser = Published::named)]
    pub family: Published,
    /// Where they run: cpu, or a device that `impasto devices` lists, such as vulkan0.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub backend: String,
    /// Pixels along a side of the picture.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4096))]
    pub size: u32,
    /// Runs, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// In a process of its own (auto) or in this one (off), which loads weights faster, since these are made up here.
    #[arg(long, value_name = "HOW", default_value = "off", value_parser = Isolate::parse)]
    pub isolate: Isolate,
    /// Time each op by itself, also where the whole is slower then: on CUDA, which runs a step as one graph otherwise.
    #[arg(long)]
    pub by_op: bool,
    /// Decode in so many bands, in less memory.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub bands: u64,
}

/// What types of weights cost.
#[derive(Args)]
pub struct BenchTypes {
    #[command(flatten)]
    pub model: BenchModel,
    /// The types, the first of which the others are compared with.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "f16,q8_0,q4_0")]
    pub types: Vec<Storage>,
    /// Also with a LoRA of this rank beside all layers of attention, at run time.
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub lora: Option<u32>,
}

/// A server under load.
#[derive(Args)]
pub struct BenchServe {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7860")]
    pub server: std::net::SocketAddr,
    /// Instead, jobs a minute without other clients: by a server of its own and by an engine alone, in so many turns of 10 jobs.
    #[arg(long, value_name = "TURNS", conflicts_with_all = ["server", "clients", "seconds"])]
    pub against_engine: Option<usize>,
    /// Clients at once.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub clients: usize,
    /// For how long.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub seconds: u64,
    /// One JSON object for each route.
    #[arg(long)]
    pub json: bool,
}

/// What a worker process costs.
#[derive(Args)]
pub struct BenchWorker {
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// A device that `impasto devices` lists, such as vulkan0.
    #[arg(long, value_name = "NAME", default_value = "vulkan0")]
    pub backend: String,
    /// Pixels along a side of the picture.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4096))]
    pub size: u32,
    /// Runs of each, in turns, of which the medians count.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
}

#[derive(Args)]
pub struct BenchStream {
    #[command(flatten)]
    pub common: Common,
    /// Which diffusion model: sd15, sd21 or sdxl.
    #[arg(long, value_name = "NAME", default_value = "sd15", value_parser = Published::named)]
    pub family: Published,
    /// Where it runs: cpu, vulkan0, ...
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub backend: String,
    /// Pixels along a side of the picture.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4096))]
    pub size: u32,
    /// Runs in each budget, of which the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Write time against budget as a drawing to this file (SVG).
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

impl Common {
    pub fn options(&self) -> anyhow::Result<CpuOptions> {
        let threads = self.threads.map(|n| n as usize);
        Ok(CpuOptions { threads, precision: self.precision, ..CpuOptions::from_env()? })
    }
}
