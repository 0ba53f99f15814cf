//! The settings, in one table: the command line, `IMPASTO_*` variables, the settings file, help, completions and the manual page
//! are all made from it.
//!
//! A layer of settings says only what was asked for there; layers are laid over each other (file, then variables, then flags),
//! and what nobody asked for comes from the model's family ([`crate::Job`]).
//!
//! ```
//! use impasto_generate::settings::Settings;
//! let file = Settings::from_toml("steps = 30\nprompt = 'a cat'", "config.toml".as_ref())?;
//! let mut flags = Settings::default();
//! flags.set("steps", "8")?;
//! let both = flags.over(file);
//! assert_eq!((both.steps, both.prompt.as_deref()), (Some(8), Some("a cat")));
//! # Ok::<(), impasto_generate::settings::SettingsError>(())
//! ```

mod layers;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

use impasto_backend::cpu::Precision;
use impasto_graph::Storage;
use impasto_model::{ModelPaths, Prediction};

use crate::NoiseKind;
use crate::place::Budget;
use crate::sampling::{Method, Schedule};
pub use layers::{config_path, from_variables, layered};
pub use value::{Gpu, Isolate, LoraChoices, LoraMode, Preview, SettingKind, SettingValue, VaeSplit};

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A name that is in no row of the table.
    #[error("there is no setting '{0}'; `impasto --help` lists them")]
    Unknown(String),
    /// A value that does not fit.
    #[error("{name}: '{text}' {problem}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What was given.
        text: String,
        /// Why that cannot be.
        problem: String,
    },
    /// A settings file that is none.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Under which heading a setting stands in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// What the picture shows.
    Picture,
    /// Which files the networks come from.
    Model,
    /// How it is sampled.
    Sampling,
    /// Where it begins, if not with noise alone.
    Start,
    /// Where it goes, and what is shown on the way.
    Output,
    /// How the machine is used.
    Machine,
}

impl Group {
    /// The heading.
    pub fn heading(self) -> &'static str {
        match self {
            Group::Picture => "The picture",
            Group::Model => "The model",
            Group::Sampling => "Sampling",
            Group::Start => "From a picture",
            Group::Output => "Output",
            Group::Machine => "The machine",
        }
    }
}

/// One row of the table.
pub struct Setting {
    /// The name: `--name`, `IMPASTO_NAME`, `name = ...` in the settings file.
    pub name: &'static str,
    /// The short flag.
    pub short: Option<char>,
    /// What the value is called in the help.
    pub value: &'static str,
    /// The heading that it stands under.
    pub group: Group,
    /// One or two sentences.
    pub help: &'static str,
    /// What its text may be.
    pub kind: SettingKind,
    /// The least and the greatest number.
    pub range: Option<(f64, f64)>,
    parse: fn(&mut Settings, &str) -> Result<(), String>,
    cover: fn(&mut Settings, &Settings),
}

impl Setting {
    /// The row of this name or flag; `-` and `_` are one.
    pub fn named(name: &str) -> Option<&'static Setting> {
        let same = |known: &str| known.replace('_', "-") == name.replace('_', "-");
        TABLE.iter().find(|s| same(s.name) || same(s.flag()))
    }

    /// The flag: its name, but for the type of weights, which users of stable-diffusion.cpp know as `--type`.
    pub fn flag(&self) -> &'static str {
        if self.name == "weight-type" { "type" } else { self.name }
    }

    /// The variable that sets it.
    pub fn variable(&self) -> String {
        format!("IMPASTO_{}", self.name.replace('-', "_").to_uppercase())
    }

    fn set(&self, settings: &mut Settings, text: &str) -> Result<(), SettingsError> {
        let wrong = |problem: String| SettingsError::Value { name: self.name, text: text.into(), problem };
        (self.parse)(settings, text).map_err(wrong)?;
        if let (Some((least, most)), Ok(number)) = (self.range, text.trim().parse::<f64>())
            && !(least..=most).contains(&number)
        {
            return Err(wrong(format!("is not between {least} and {most}")));
        }
        settings.texts.insert(self.name.into(), text.into());
        Ok(())
    }
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $field:ident: $type:ty = $group:ident $name:literal $($short:literal)? <$value:literal> $([$least:literal, $most:literal])?;)+) => {
        /// A layer of settings: what was asked for, and nothing else.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Settings {
            $($(#[doc = $help])+ pub $field: Option<$type>,)+
            /// The same as they were written, by name: what a stored run is made again from.
            pub texts: BTreeMap<String, String>,
        }

        /// The table.
        pub static TABLE: &[Setting] = &[$(Setting {
            name: $name,
            short: [$(Some($short),)? None][0],
            value: $value,
            group: Group::$group,
            help: concat!($($help),+),
            kind: <$type as SettingValue>::KIND,
            range: [$(Some(($least as f64, $most as f64)),)? None][0],
            parse: |settings, text| {
                settings.$field = Some(<$type as SettingValue>::parse(text)?);
                Ok(())
            },
            cover: |settings, above| {
                if above.$field.is_some() {
                    settings.$field.clone_from(&above.$field);
                }
            },
        }),+];
    };
}

settings! {
    /// What to show. `(a)`, `(a:1.3)` and `[a]` weigh words, `BREAK` begins a new chunk of 75 tokens.
    prompt: String = Picture "prompt" 'p' <"TEXT">;
    /// What not to show.
    negative_prompt: String = Picture "negative-prompt" 'n' <"TEXT">;
    /// Pixels across; by default what the model was made for.
    width: u32 = Picture "width" 'W' <"N"> [16, 16384];
    /// Pixels down; by default what the model was made for.
    height: u32 = Picture "height" 'H' <"N"> [16, 16384];
    /// The number that the noise comes from (42); a negative one takes a random one and prints it.
    seed: i64 = Picture "seed" 's' <"N">;
    /// Pictures, each with the next seed (1).
    batch_count: u32 = Picture "batch-count" 'b' <"N"> [1, 100000];

    /// A model: a .safetensors, .gguf, .ckpt, .pt or .bin file, the index of one in shards, or a diffusers folder. Without it, the one inside the program.
    model: PathBuf = Model "model" 'm' <"FILE">;
    /// The type of weights, converted while they are loaded: q8_0 halves f16. Biases, norms and embeddings stay as they are. By default what the file has.
    weight_type: Storage = Model "weight-type" <"NAME">;
    /// Types by the names of tensors in the file, before --type: ^first_stage_model=f16,attn=q8_0. The first pattern that is found in a name decides.
    tensor_type_rules: String = Model "tensor-type-rules" <"PATTERN=TYPE,...">;
    /// The diffusion model alone.
    diffusion_model: PathBuf = Model "diffusion-model" <"FILE">;
    /// The autoencoder alone.
    vae: PathBuf = Model "vae" <"FILE">;
    /// The text encoder CLIP-L alone.
    clip_l: PathBuf = Model "clip_l" <"FILE">;
    /// The text encoder OpenCLIP-G (XL) or OpenCLIP-H (2) alone.
    clip_g: PathBuf = Model "clip_g" <"FILE">;
    /// The text encoder T5-XXL alone (FLUX.1, Stable Diffusion 3).
    t5xxl: PathBuf = Model "t5xxl" <"FILE">;
    /// The language model that reads the text, alone: Qwen3 (Z-Image, FLUX.2 klein) or Qwen2.5-VL (Qwen-Image).
    llm: PathBuf = Model "llm" <"FILE">;
    /// A tiny autoencoder, which decodes instead of the large one: fast, a little coarser.
    taesd: PathBuf = Model "taesd" <"FILE">;
    /// What the diffusion model predicts, where its file does not tell.
    prediction: Prediction = Model "prediction" <"NAME">;
    /// LoRA files, each with how much of it counts (1): fur.safetensors=0.8. Several are separated by commas, or given one by one.
    lora: LoraChoices = Model "lora" <"FILE[=X]">;
    /// The folder of LoRA files that prompts name: `<lora:fur:0.8>` is fur.safetensors there (or .gguf, .pt, .ckpt).
    lora_model_dir: PathBuf = Model "lora-model-dir" <"DIR">;
    /// When LoRAs are applied: immediately, while weights are read, or at_runtime, beside weights that stay as they are; auto is at_runtime where weights are quantised, or were loaded for other LoRAs before.
    lora_apply_mode: LoraMode = Model "lora-apply-mode" <"HOW">;

    /// Steps; by default what suits the model: 20 for Stable Diffusion, 28 for FLUX.1 dev, 4 for turbo models.
    steps: u32 = Sampling "steps" <"N"> [1, 1000];
    /// How much the prompt counts; 1 is without guidance and twice as fast. By default what suits the model, or what its file says: 7 for Stable Diffusion, 1 for FLUX and turbo models.
    cfg_scale: f32 = Sampling "cfg-scale" <"X"> [0, 100];
    /// How much the prompt counts, told to models that read it as a number: FLUX.1 dev. By default 3.5.
    guidance: f32 = Sampling "guidance" <"X"> [0, 100];
    /// How far noise levels of flow matching are moved towards noise: a factor (3 for Stable Diffusion 3 and Z-Image), its logarithm for FLUX and Qwen-Image. By default what suits the model and the size.
    flow_shift: f32 = Sampling "flow-shift" <"X"> [-100, 100];
    /// The sampling method; by default euler_a, for models of flow matching euler.
    sampling_method: Method = Sampling "sampling-method" <"NAME">;
    /// How the noise levels are spread over the steps (discrete).
    scheduler: Schedule = Sampling "scheduler" <"NAME">;
    /// How much fresh noise a step adds, in methods that add any: 1 by default, 0 in ddim_trailing.
    eta: f32 = Sampling "eta" <"X"> [0, 1];
    /// Whose noise: cuda as webui has it (the default), cpu as ComfyUI has it.
    rng: NoiseKind = Sampling "rng" <"NAME">;
    /// The layer of the text encoder whose state is used, counted from its end: 1 is the last. By default what the model was trained with, 1 for SD1, 2 for SD2 and XL.
    clip_skip: i32 = Sampling "clip-skip" <"N"> [-1, 100];

    /// Begin with this picture.
    init_img: PathBuf = Start "init-img" 'i' <"FILE">;
    /// How much of that picture is made anew, from 0 to 1 (0.75; with a mask 1).
    strength: f64 = Start "strength" <"X"> [0, 1];
    /// Where it is made anew: white in this picture.
    mask: PathBuf = Start "mask" <"FILE">;

    /// The file, PNG, JPEG or WebP by its end; %03d in it is a number (./output.png).
    output: PathBuf = Output "output" 'o' <"FILE">;
    /// Overwrite files.
    force: bool = Output "force" <"">;
    /// Show the picture while it is made: a projection of the latent, the tiny autoencoder or the large one.
    preview: Preview = Output "preview" <"HOW">;
    /// The preview's file (./preview.png).
    preview_path: PathBuf = Output "preview-path" <"FILE">;
    /// Steps between two previews (1).
    preview_interval: u32 = Output "preview-interval" <"N"> [1, 1000];
    /// Keep the run's file (picture.latent.safetensors) when the picture is done.
    keep_latent: bool = Output "keep-latent" <"">;
    /// Results as JSON, one object for each picture.
    json: bool = Output "json" <"">;
    /// Say more.
    verbose: bool = Output "verbose" 'v' <"">;
    /// Show where the time went, by module and kind of op.
    profile: bool = Output "profile" <"">;

    /// Threads; by default as many as this process may use.
    threads: i32 = Machine "threads" 't' <"N"> [-1, 4096];
    /// What products are computed in; auto is what the device is fastest in. f16 is for GPUs (the CPU then computes in f32), bf16 for the CPU.
    precision: Precision = Machine "precision" <"NAME">;
    /// Which GPUs may be used: auto takes what is healthy and last the CPU, disable asks no driver.
    gpu: Gpu = Machine "gpu" <"NAME">;
    /// Whether GPU modules run in a process of their own, so that a driver that dies costs a step (auto), or in this one (off).
    isolate: Isolate = Machine "isolate" <"HOW">;
    /// Where modules compute: a device that `impasto devices` lists, auto, gpu, or by module as te=cpu,diffusion=vulkan0. By default where they are done soonest.
    backend: String = Machine "backend" <"SPEC">;
    /// Where weights are kept: cpu (host memory), disk, or by module as diffusion=cpu,te=disk. By default where the module computes.
    params_backend: String = Machine "params-backend" <"SPEC">;
    /// Memory of GPUs that may be used: 6 (GiB), 512MiB, -1 (all that is free but 1 GiB), or by device as vulkan0=6,cuda0=4.
    max_vram: Budget = Machine "max-vram" <"SPEC">;
    /// The largest single allocation on a GPU, written as for --max-vram.
    max_buffer: Budget = Machine "max-buffer" <"SPEC">;
    /// How the autoencoder is split: whole, bands (the same picture in less memory) or tiles (slightly another picture). What does not fit is split further; auto begins with whole.
    vae_split: VaeSplit = Machine "vae-split" <"HOW">;
    /// The same as --vae-split tiles.
    vae_tiling: bool = Machine "vae-tiling" <"">;
    /// Never tiles unless they are asked for, never another device: what does not fit is refused before sampling.
    no_vae_tiling_fallback: bool = Machine "no-vae-tiling-fallback" <"">;
    /// Size of a tile in pixels of the latent; by default the largest that fits.
    vae_tile_size: [f64; 2] = Machine "vae-tile-size" <"WxH">;
    /// The same as a share of the latent, or from 1 on as a number of tiles.
    vae_relative_tile_size: [f64; 2] = Machine "vae-relative-tile-size" <"WxH">;
    /// The share of a tile that the next one covers too (0.5).
    vae_tile_overlap: f32 = Machine "vae-tile-overlap" <"X"> [0, 0.95];
    /// max_buffer_size=BYTES: memory that decoding may use beside its weights; 0 is no limit.
    extra_tiling_args: String = Machine "extra-tiling-args" <"KEY=VALUE">;
    /// Say why modules are where they are.
    explain: bool = Machine "explain" <"">;
    /// Check every plan, and every kernel after each pass of the compiler; kernels are compiled anew, so this is slower.
    verify: bool = Machine "verify" <"">;
    /// The same as --params-backend cpu.
    offload_to_cpu: bool = Machine "offload-to-cpu" <"">;
    /// The same as --backend te=cpu.
    clip_on_cpu: bool = Machine "clip-on-cpu" <"">;
    /// The same as --backend vae=cpu.
    vae_on_cpu: bool = Machine "vae-on-cpu" <"">;
}

impl Settings {
    /// Set one by its name and text. `type` was once the name of what products are computed in: what stands so in older files is read as such.
    ///
    /// ```
    /// use impasto_generate::settings::Settings;
    /// use impasto_graph::Storage;
    /// let mut settings = Settings::default();
    /// settings.set("type", "bf16")?;
    /// assert!(settings.precision.is_some() && settings.weight_type.is_none());
    /// settings.set("type", "q8_0")?;
    /// assert_eq!(settings.weight_type, Some(Storage::Q8_0));
    /// # Ok::<(), impasto_generate::settings::SettingsError>(())
    /// ```
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), SettingsError> {
        let older = name == "type" && ["auto", "f32", "bf16"].contains(&text.trim());
        Setting::named(if older { "precision" } else { name })
            .ok_or_else(|| SettingsError::Unknown(name.into()))?
            .set(self, text)
    }

    /// The model that is named; nothing is the one inside the program.
    pub fn model_paths(&self) -> ModelPaths {
        ModelPaths {
            model: self.model.clone(),
            diffusion: self.diffusion_model.clone(),
            vae: self.vae.clone(),
            clip_l: self.clip_l.clone(),
            clip_g: self.clip_g.clone(),
            t5xxl: self.t5xxl.clone(),
            llm: self.llm.clone(),
            taesd: self.taesd.clone(),
            weight_type: self.weight_type,
            type_rules: self.tensor_type_rules.clone(),
        }
    }

    /// These, and below them those of another layer.
    pub fn over(&self, mut below: Settings) -> Settings {
        TABLE.iter().for_each(|s| (s.cover)(&mut below, self));
        below.texts.extend(self.texts.clone());
        below
    }
}
