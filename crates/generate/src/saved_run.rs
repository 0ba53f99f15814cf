//! The state of a run between two steps, and its file: all that it takes to go on, in another process and on another device.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use impasto_store::Checksum;
use serde::{Deserialize, Serialize};

use crate::Noise;
use crate::begin::OutsideMask;
use crate::bits::{Numbers, put_back_tensors, take_tensors};
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

    /// Whether its latents fit together.
    fn check(&self) -> Result<(), String> {
        let Run { shape, sampler, kept, extra, .. } = self;
        let area = shape[1].saturating_mul(shape[2]);
        let len = shape[0].saturating_mul(area);
        let kept_fits = kept.as_ref().is_none_or(|kept| kept.fits(len, area));
        let extra_fits = extra.as_ref().is_none_or(|extra| area > 0 && extra.0.len().is_multiple_of(area));
        match sampler.latent().len() == len && len > 0 && kept_fits && extra_fits {
            true => Ok(()),
            false => Err("its latents have different sizes".into()),
        }
    }

    /// What there is to decode: of a run that is not done, what the network saw last.
    pub fn latent(&self) -> &[f32] {
        match self.sampler.denoised() {
            Some(seen) if !self.sampler.done() => seen,
            _ => self.sampler.latent(),
        }
    }
}

/// A run with what it was asked for, as it is kept in a file: safetensors with a checksum over all of it, whose tensors are the run's, and
/// `latent`, what it has made so far.
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

const FORMAT: &str = "impasto.run.2";
/// What a file begins with after the length of its header; the checksum follows, as 16 digits.
const BEGIN: &str = r#"{"__metadata__":{"checksum":""#;
const NO_CHECKSUM: &str = "0000000000000000";
/// Settings of a run that do not count when it is resumed, since they let files be written which are not its picture.
const NOT_RESUMED: [&str; 3] = ["force", "preview", "preview-path"];

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Metadata,
    #[serde(flatten)]
    tensors: BTreeMap<String, Entry>,
}

/// In this order, so that the checksum is first.
#[derive(Serialize, Deserialize)]
struct Metadata {
    checksum: String,
    format: String,
    state: String,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// The tensor that shows what the run has made so far.
const LATENT: &str = "latent";

impl SavedRun {
    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut state, mut tensors) = (serde_json::to_value(self).unwrap_or_default(), BTreeMap::new());
        take_tensors(&mut state, "", &mut tensors);
        tensors.insert(LATENT.into(), self.run.latent().to_vec());
        let [channels, height, width] = self.run.shape;
        let mut data: Vec<u8> = vec![];
        let mut entries = BTreeMap::new();
        for (name, numbers) in tensors {
            let begin = data.len();
            data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            let shape = if name == LATENT { vec![1, channels, height, width] } else { vec![numbers.len()] };
            entries.insert(name, Entry { dtype: "F32".into(), shape, data_offsets: [begin, data.len()] });
        }
        let (checksum, format, state) = (NO_CHECKSUM.into(), FORMAT.into(), state.to_string());
        let header = Header { metadata: Metadata { checksum, format, state }, tensors: entries };
        let mut header = serde_json::to_vec(&header).unwrap_or_default();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(data);
        let sum = format!("{:016x}", Checksum::new().over(&bytes).value());
        bytes[checksum_place()].copy_from_slice(sum.as_bytes());
        bytes
    }

    /// The settings of the run, without those that would let it overwrite files.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        let resumed = self.settings.iter().filter(|(name, _)| !NOT_RESUMED.contains(&name.as_str()));
        resumed.into_iter().try_for_each(|(name, text)| settings.set(name, text))?;
        Ok(settings)
    }

    /// Reads a file; nothing in it is believed unchecked.
    pub fn read(path: &Path) -> Result<SavedRun, SavedRunError> {
        let wrong = |problem: String| SavedRunError { path: path.into(), problem };
        let mut bytes = vec![];
        let read = impasto_weights::open_file(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|e| wrong(e.to_string()))?;
        SavedRun::from_bytes(bytes).map_err(wrong)
    }

    fn from_bytes(mut bytes: Vec<u8>) -> Result<SavedRun, String> {
        let place = checksum_place();
        let begins = bytes.get(8..place.start).is_some_and(|begin| begin == BEGIN.as_bytes());
        let Some(sum) = bytes.get_mut(place).filter(|_| begins) else {
            return Err("it was not written by this version of impasto, or its beginning is damaged".into());
        };
        let kept = String::from_utf8_lossy(sum).into_owned();
        sum.copy_from_slice(NO_CHECKSUM.as_bytes());
        if kept != format!("{:016x}", Checksum::new().over(&bytes).value()) {
            return Err("it was changed or damaged since it was written: its checksum is another".into());
        }
        let len = bytes.first_chunk().map_or(u64::MAX, |len| u64::from_le_bytes(*len));
        let parts = usize::try_from(len).ok().and_then(|len| bytes[8..].split_at_checked(len));
        let (header, data) = parts.ok_or("its header is longer than the file")?;
        let Header { metadata, tensors } = serde_json::from_slice(header).map_err(|e| e.to_string())?;
        if metadata.format != FORMAT {
            return Err(format!("it has the format '{}', this version reads '{FORMAT}'", metadata.format));
        }
        let numbers = |(name, entry): (String, Entry)| {
            let [begin, end] = entry.data_offsets;
            let (words, rest) = data.get(begin..end).unwrap_or(&[0]).as_chunks::<4>();
            match rest {
                [] => Ok((name, words.iter().map(|word| f32::from_le_bytes(*word)).collect())),
                _ => Err(format!("its tensor '{name}' lies outside of it")),
            }
        };
        let tensors = tensors.into_iter().map(numbers).collect::<Result<BTreeMap<String, Vec<f32>>, _>>()?;
        let mut state = serde_json::from_str(&metadata.state).map_err(|e| e.to_string())?;
        put_back_tensors(&mut state, &tensors);
        let saved: SavedRun = serde_json::from_value(state).map_err(|e| e.to_string())?;
        saved.run.check()?;
        Ok(saved)
    }
}

fn checksum_place() -> Range<usize> {
    let begin = 8 + BEGIN.len();
    begin..begin + NO_CHECKSUM.len()
}

/// The file beside a picture in which its run is kept. Its name is the picture's and an end, or where file systems would not take a name so
/// long, the beginning of it and a checksum.
pub fn run_file(picture: &Path) -> PathBuf {
    let stem = picture.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = match stem.len() {
        ..=LONGEST_STEM => stem,
        _ => {
            let sum = Checksum::new().over(stem.as_bytes()).value();
            let ends = |at: &usize| stem.is_char_boundary(*at);
            let end = (0..=LONGEST_STEM - 16).rev().find(ends).unwrap_or(0);
            format!("{}{sum:016x}", &stem[..end])
        }
    };
    picture.with_file_name(format!("{stem}.latent.safetensors"))
}

/// Bytes of a picture's name that fit a name of 255 with what [`run_file`] and an unfinished file add to it.
const LONGEST_STEM: usize = 200;
