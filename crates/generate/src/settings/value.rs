//! What the text of a setting can be.

use std::path::PathBuf;
use std::str::FromStr;

use impasto_backend::cpu::Precision;
use impasto_graph::Storage;
use impasto_model::Prediction;

use crate::NoiseKind;
use crate::place::SplitMode;
use crate::sampling::{Method, Schedule};

/// The kind of a setting's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// Given or not; in a file or a variable `true` or `false`.
    Flag,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// Any text.
    Text,
    /// A path.
    File,
    /// Texts with commas between them; the flag may be given several times.
    List,
    /// One of these.
    Choice(&'static [&'static str]),
}

/// A type that settings can have.
pub trait SettingValue: Sized {
    /// What its text may be.
    const KIND: SettingKind;

    /// The value of a text, or why it is none.
    fn parse(text: &str) -> Result<Self, String>;
}

/// How a picture is shown while it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preview {
    /// Not at all.
    #[default]
    None,
    /// A projection of the latent onto colours, an eighth of the size: costs nothing.
    Proj,
    /// By the tiny autoencoder of `--taesd`.
    Tae,
    /// By the autoencoder: exact, and as slow as decoding is.
    Vae,
}

/// Which GPUs may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gpu {
    /// The best one that is healthy, else the CPU.
    #[default]
    Auto,
    /// None; no driver is asked.
    Disable,
    /// Only by way of Vulkan.
    Vulkan,
    /// Only by way of CUDA.
    Cuda,
}

/// Whether GPU modules run in a process of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolate {
    /// In a worker process for each device, where the system has them.
    #[default]
    Auto,
    /// In this process.
    Off,
}

/// LoRA files, and how much of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoraChoices(pub Vec<(PathBuf, f32)>);

impl SettingValue for LoraChoices {
    const KIND: SettingKind = SettingKind::List;

    fn parse(text: &str) -> Result<LoraChoices, String> {
        let one = |text: &str| {
            let strength = |text: &str| text.trim().parse::<f32>().ok();
            let (path, strength) = match text.rsplit_once('=').map(|(path, x)| (path, strength(x))) {
                Some((path, Some(strength))) => (path, strength),
                _ => (text, 1.0),
            };
            match (path.trim(), strength.is_finite()) {
                ("", _) => Err("names no file".to_string()),
                (_, false) => Err("has a strength that is no number".into()),
                (path, true) => Ok((PathBuf::from(path), strength)),
            }
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(LoraChoices)
    }
}

impl LoraChoices {
    /// The same, those files that are found from here under names that are good everywhere.
    pub(crate) fn absolute(&self) -> LoraChoices {
        let absolute = |path: &PathBuf| std::path::absolute(path).ok().filter(|path| path.exists());
        LoraChoices(self.0.iter().map(|(path, x)| (absolute(path).unwrap_or_else(|| path.clone()), *x)).collect())
    }
}

/// The text that is read as these choices.
impl std::fmt::Display for LoraChoices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: Vec<String> = self.0.iter().map(|(path, x)| format!("{}={x}", path.display())).collect();
        f.write_str(&texts.join(","))
    }
}

/// When LoRAs change weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoraMode {
    /// As it suits the weights.
    #[default]
    Auto,
    /// While they are read.
    Immediately,
    /// Beside them, in each product.
    AtRuntime,
}

/// The split mode that the autoencoder tries first; none is auto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaeSplit(pub Option<SplitMode>);

/// Across and down: `32x24`, or `32` for both.
impl SettingValue for [f64; 2] {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<[f64; 2], String> {
        let (across, down) = text.split_once(['x', 'X']).unwrap_or((text, text));
        let side = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
        let sides = side(across).zip(side(down));
        sides.map(|(across, down)| [across, down]).ok_or_else(|| "is no size such as 32x24".into())
    }
}

impl SettingValue for bool {
    const KIND: SettingKind = SettingKind::Flag;

    fn parse(text: &str) -> Result<bool, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" | "" => Ok(false),
            _ => Err("is neither true nor false".into()),
        }
    }
}

impl SettingValue for String {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<String, String> {
        Ok(text.into())
    }
}

impl SettingValue for PathBuf {
    const KIND: SettingKind = SettingKind::File;

    fn parse(text: &str) -> Result<PathBuf, String> {
        if text.is_empty() { Err("is no path".into()) } else { Ok(text.into()) }
    }
}

macro_rules! number {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: SettingKind = SettingKind::Number;

            fn parse(text: &str) -> Result<$type, String> {
                <$type>::from_str(text.trim()).ok().filter(|x| x.is_finite()).ok_or_else(|| "is no number".into())
            }
        }
    )+};
}
number!(f32, f64);

macro_rules! whole {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: SettingKind = SettingKind::Whole;

            fn parse(text: &str) -> Result<$type, String> {
                text.trim().parse().map_err(|_| "is no whole number that fits".to_string())
            }
        }
    )+};
}
whole!(u32, i32, i64);

/// A type whose values have names.
macro_rules! choice {
    ($type:ty: $($name:literal => $value:expr),+ $(; $($other:literal => $same:expr),+)?) => {
        impl SettingValue for $type {
            const KIND: SettingKind = SettingKind::Choice(&[$($name),+]);

            fn parse(text: &str) -> Result<$type, String> {
                match text.trim() {
                    $($name => Ok($value),)+
                    $($($other => Ok($same),)+)?
                    _ => Err(format!("is not one of {}", [$($name),+].join(", "))),
                }
            }
        }
    };
}
choice!(Preview: "none" => Preview::None, "proj" => Preview::Proj, "tae" => Preview::Tae, "vae" => Preview::Vae);
choice!(VaeSplit: "auto" => VaeSplit(None), "whole" => VaeSplit(Some(SplitMode::Whole)), "bands" => VaeSplit(Some(SplitMode::Banded)), "tiles" => VaeSplit(Some(SplitMode::Tiled)));
choice!(Gpu: "auto" => Gpu::Auto, "disable" => Gpu::Disable, "vulkan" => Gpu::Vulkan, "cuda" => Gpu::Cuda);
choice!(LoraMode: "auto" => LoraMode::Auto, "immediately" => LoraMode::Immediately, "at_runtime" => LoraMode::AtRuntime);
choice!(Isolate: "auto" => Isolate::Auto, "off" => Isolate::Off);
choice!(NoiseKind: "cuda" => NoiseKind::Cuda, "cpu" => NoiseKind::Cpu);
choice!(Prediction: "eps" => Prediction::Epsilon, "v" => Prediction::V; "epsilon" => Prediction::Epsilon, "v_prediction" => Prediction::V);
choice!(Precision: "auto" => Precision::Auto, "f32" => Precision::F32, "f16" => Precision::F16, "bf16" => Precision::Bf16);

impl SettingValue for Storage {
    const KIND: SettingKind = SettingKind::Choice(&{
        let mut names = [""; Storage::FLOATS.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = Storage::FLOATS[i].name();
            i += 1;
        }
        names
    });

    fn parse(text: &str) -> Result<Storage, String> {
        let known = Storage::FLOATS.into_iter().find(|storage| storage.name() == text.trim().to_lowercase());
        known.ok_or_else(|| format!("is not one of {}", Storage::FLOATS.map(Storage::name).join(", ")))
    }
}

/// The same for types that know their own names.
macro_rules! named {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: SettingKind = SettingKind::Choice(&{
                let mut names = [""; <$type>::ALL.len()];
                let mut i = 0;
                while i < names.len() {
                    names[i] = <$type>::ALL[i].name();
                    i += 1;
                }
                names
            });

            fn parse(text: &str) -> Result<$type, String> {
                let names = || <$type>::ALL.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
                text.trim().parse().map_err(|_| format!("is not one of {}", names()))
            }
        }
    )+};
}
named!(Method, Schedule);
