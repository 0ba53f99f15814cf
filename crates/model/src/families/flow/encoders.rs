//! The text encoders of a family, each in its place.

use std::path::PathBuf;

use crate::ModelError;
use crate::discovery::{Discovered, NetworkInFile, TextEncoderInFile};
use crate::families::VocabularySource;

/// A place for a text encoder.
pub(in crate::families) struct EncoderSlot {
    /// What users know it as.
    pub name: &'static str,
    /// The flag that names its file.
    pub flag: &'static str,
    /// Whether a network may stand here.
    pub accepts: fn(&NetworkInFile) -> bool,
}

/// The text encoders that were found, by slot: those with a flag of their own, then those of the file or folder in their order. One that fits nowhere is
/// refused if it was named.
pub(in crate::families) fn encoders_by_slot(
    files: &mut Discovered,
    family: &str,
    slots: &[EncoderSlot],
) -> Result<Vec<Option<TextEncoderInFile>>, ModelError> {
    let mut found: Vec<Option<TextEncoderInFile>> = vec![None; slots.len()];
    for (pick, tokenizer) in std::mem::take(&mut files.text) {
        let free = (0..slots.len()).find(|&i| found[i].is_none() && (slots[i].accepts)(&pick));
        if let Some(slot) = free {
            found[slot] = Some((pick, tokenizer));
        }
    }
    for (flag, picks) in std::mem::take(&mut files.named_text) {
        let Some(slot) = slots.iter().position(|slot| slot.flag == flag) else {
            return Err(ModelError::Mismatch(format!("{flag}: {family} has no such text encoder; leave it out")));
        };
        let EncoderSlot { name, accepts, .. } = &slots[slot];
        let Some(pick) = picks.iter().find(|pick| accepts(pick)).cloned() else {
            let path = picks.first().map(|pick| pick.path().display().to_string()).unwrap_or_default();
            let there = picks.first().map(|pick| pick.found.network.to_string()).unwrap_or_default();
            return Err(ModelError::Mismatch(format!("{flag}: {path} has no {name}; found: {there}")));
        };
        let tokenizer = found[slot].take().and_then(|(_, tokenizer): (_, Option<PathBuf>)| tokenizer);
        found[slot] = Some((pick, tokenizer));
    }
    Ok(found)
}

/// All of them, or an error that names those that are missing, and their flags.
pub(in crate::families) fn all_encoders(
    files: &mut Discovered,
    family: &str,
    slots: &[EncoderSlot],
) -> Result<Vec<TextEncoderInFile>, ModelError> {
    let found = encoders_by_slot(files, family, slots)?;
    let empty = slots.iter().zip(&found).filter(|(_, found)| found.is_none());
    let mut missing: Vec<_> = empty.map(|(slot, _)| (slot.name, slot.flag)).collect();
    if missing.is_empty() {
        return Ok(found.into_iter().flatten().collect());
    }
    if files.autoencoder.is_none() {
        missing.push(("autoencoder", "--vae"));
    }
    Err(files.missing(&missing))
}

/// Where the words of an encoder come from: the folder beside it, else its own file.
pub(in crate::families) fn vocabulary(folder: Option<&PathBuf>, pick: &NetworkInFile) -> VocabularySource {
    match folder {
        Some(folder) => VocabularySource::Folder(folder.clone()),
        None => VocabularySource::ModelFile(pick.path().into()),
    }
}

/// Refuses an autoencoder whose latents are not those of the denoiser.
pub(in crate::families) fn check_channels(vae: &NetworkInFile, gives: usize, reads: usize) -> Result<(), ModelError> {
    if gives == reads {
        return Ok(());
    }
    Err(ModelError::Mismatch(format!(
        "{}: is an autoencoder of {gives} latent channels, the diffusion model has {reads}: it belongs to another model",
        vae.path().display(),
    )))
}
