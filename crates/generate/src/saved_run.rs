//! The state of a run between two steps, and its file: all that it takes to go on, in another process and on another device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Noise;
use crate::begin::OutsideMask;
use crate::bits::Numbers;
use crate::sampling::Sampler;
use crate::settings::{Settings, SettingsError};

/// Where a run stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The picture, from 0.
    pub picture: usize,
    /// The first picture's seed.
    pub seed: u64,
    /// Channels, height and width of the latent.
    pub shape: [usize; 3],
    pub(crate) sampler: Sampler,
    pub(crate) noise: Noise,
    pub(crate) kept: Option<OutsideMask>,
    pub(crate) extra: Option<Numbers>,
}

impl Run {
    /// Steps taken, and all of them.
    pub fn steps(&self) -> (usize, usize) {
        (self.sampler.taken(), self.sampler.steps())
    }

    /// What there is to decode: of a run that is not done, what the network saw last.
    pub fn latent(&self) -> &[f32] {
        match self.sampler.denoised() {
            Some(seen) if !self.sampler.done() => seen,
            _ => self.sampler.latent(),
        }
    }
}

/// A run with what it was asked for, as it is kept in a file: safetensors, of which `latent` can be read by anybody.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedRun {
    /// The settings, by name.
    pub settings: BTreeMap<String, String>,
    /// Which model it is.
    pub fingerprint: String,
    /// The picture's file.
    pub output: PathBuf,
    /// Where it stands.
    pub run: Run,
}

/// A file that holds no run.
#[derive(Debug, thiserror::Error)]
#[error("{path} holds no run that could be resumed: {problem}")]
pub struct SavedRunError {
    path: PathBuf,
    problem: String,
}

const FORMAT: &str = "impasto.run.1";
/// No run is larger: a header that says so is damaged.
const MOST: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<String, String>,
    latent: Tensor,
}

#[derive(Serialize, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl SavedRun {
    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let latent = self.run.latent();
        let state = serde_json::to_string(self).unwrap_or_default();
        let metadata = [("format".to_string(), FORMAT.to_string()), ("state".to_string(), state)].into();
        let [channels, height, width] = self.run.shape;
        let shape = vec![1, channels, height, width];
        let tensor = Tensor { dtype: "F32".into(), shape, data_offsets: [0, 4 * latent.len()] };
        let mut header = serde_json::to_vec(&Header { metadata, latent: tensor }).unwrap_or_default();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(latent.iter().flat_map(|x| x.to_le_bytes()));
        bytes
    }

    /// The settings of the run.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        self.settings.iter().try_for_each(|(name, text)| settings.set(name, text))?;
        Ok(settings)
    }

    /// Read a file; nothing in it is believed unchecked.
    pub fn read(path: &Path) -> Result<SavedRun, SavedRunError> {
        let wrong = |problem: String| SavedRunError { path: path.into(), problem };
        let bytes = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len)).filter(|&len| len < MOST);
        let header =
            len.and_then(|len| bytes.get(8..8 + len as usize)).ok_or_else(|| wrong("it is too short".into()))?;
        let header: Header = serde_json::from_slice(header).map_err(|e| wrong(e.to_string()))?;
        let state = match header.metadata.get("format").map(String::as_str) {
            Some(FORMAT) => header.metadata.get("state").map_or("", String::as_str),
            _ => return Err(wrong("it was not written by impasto".into())),
        };
        let saved: SavedRun = serde_json::from_str(state).map_err(|e| wrong(e.to_string()))?;
        let Run { shape, sampler, kept, extra, .. } = &saved.run;
        let area = shape[1].saturating_mul(shape[2]);
        let len = shape[0].saturating_mul(area);
        let kept_fits = kept.as_ref().is_none_or(|kept| kept.fits(len, area));
        let extra_fits = extra.as_ref().is_none_or(|extra| area > 0 && extra.0.len().is_multiple_of(area));
        if sampler.latent().len() != len || len == 0 || !kept_fits || !extra_fits {
            return Err(wrong("its latents have different sizes".into()));
        }
        Ok(saved)
    }
}

/// The file beside a picture in which its run is kept.
pub fn run_file(picture: &Path) -> PathBuf {
    let stem = picture.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    picture.with_file_name(format!("{stem}.latent.safetensors"))
}
