//! What the text of a setting can be.

use std::path::PathBuf;
use std::str::FromStr;

use impasto_backend::cpu::Precision;
use impasto_model::Prediction;

use crate::NoiseKind;
use crate::sampling::{Method, Schedule};

/// The kind of a setting's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// One of these.
    Choice(&'static [&'static str]),
}

/// A type that settings can have.
pub trait SettingValue: Sized {
    /// What its text may be.
    const KIND: Kind;

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

/// Bytes, of one device or of whichever is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The device, where it was named.
    pub device: Option<String>,
    /// How many.
    pub bytes: u64,
}

impl Amount {
    /// The bytes, if they are meant for this device.
    pub fn of(&self, device: &str) -> Option<u64> {
        self.device.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(device)).then_some(self.bytes)
    }
}

/// Letters behind a number of bytes, as people write them.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

impl SettingValue for Amount {
    const KIND: Kind = Kind::Text;

    fn parse(text: &str) -> Result<Amount, String> {
        let (device, size) = match text.rsplit_once('=') {
            Some((device, size)) => (Some(device.trim().to_owned()), size),
            None => (None, text),
        };
        let size = size.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find(|(letters, _)| size.ends_with(letters));
        let (number, unit) = unit.map_or((&*size, 1), |(letters, n)| (&size[..size.len() - letters.len()], *n));
        let bytes = number.trim().parse::<f64>().ok().filter(|n| *n >= 0.0 && n.is_finite()).map(|n| n * unit as f64);
        match bytes {
            Some(bytes) if bytes < u64::MAX as f64 && device.as_deref() != Some("") => {
                Ok(Amount { device, bytes: bytes as u64 })
            }
            _ => Err("is no amount of memory; one is written as 6GiB, 512MB, or for one device vulkan0=6GiB".into()),
        }
    }
}

impl SettingValue for bool {
    const KIND: Kind = Kind::Flag;

    fn parse(text: &str) -> Result<bool, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" | "" => Ok(false),
            _ => Err("is neither true nor false".into()),
        }
    }
}

impl SettingValue for String {
    const KIND: Kind = Kind::Text;

    fn parse(text: &str) -> Result<String, String> {
        Ok(text.into())
    }
}

impl SettingValue for PathBuf {
    const KIND: Kind = Kind::File;

    fn parse(text: &str) -> Result<PathBuf, String> {
        if text.is_empty() { Err("is no path".into()) } else { Ok(text.into()) }
    }
}

macro_rules! number {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: Kind = Kind::Number;

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
            const KIND: Kind = Kind::Whole;

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
            const KIND: Kind = Kind::Choice(&[$($name),+]);

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
choice!(Gpu: "auto" => Gpu::Auto, "disable" => Gpu::Disable, "vulkan" => Gpu::Vulkan, "cuda" => Gpu::Cuda);
choice!(NoiseKind: "cuda" => NoiseKind::Cuda, "cpu" => NoiseKind::Cpu);
choice!(Prediction: "eps" => Prediction::Epsilon, "v" => Prediction::V; "epsilon" => Prediction::Epsilon, "v_prediction" => Prediction::V);
choice!(Precision: "auto" => Precision::Auto, "f32" => Precision::F32, "bf16" => Precision::Bf16);

/// The same for types that know their own names.
macro_rules! named {
    ($($type:ty),+) => {$(
        impl SettingValue for $type {
            const KIND: Kind = Kind::Choice(&{
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
