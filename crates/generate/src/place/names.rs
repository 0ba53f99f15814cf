//! Modules by the names that people know them by.

use std::fmt;

use impasto_model::NetworkId;

/// A part of a model that computes and has weights of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModuleName {
    /// The text encoders.
    Te,
    /// The encoder of pictures as prompts.
    ClipVision,
    /// The diffusion model.
    Diffusion,
    /// The autoencoder, large or tiny.
    Vae,
    /// ControlNet.
    Controlnet,
    /// PhotoMaker's encoder of faces.
    Photomaker,
    /// What enlarges pictures.
    Upscaler,
    /// What finds faces and the like in pictures.
    Detector,
}

/// Every name, without `-` and `_`; the first of each is how we write it.
const NAMES: [(ModuleName, &str, &[&str]); 8] = [
    (
        ModuleName::Te,
        "te",
        &["clip", "text", "textencoder", "textencoders", "conditioner", "cond", "llm", "t5", "t5xxl"],
    ),
    (ModuleName::ClipVision, "clip_vision", &["clipvision", "vision"]),
    (ModuleName::Diffusion, "diffusion", &["model", "unet", "dit"]),
    (ModuleName::Vae, "vae", &["firststage", "autoencoder", "tae"]),
    (ModuleName::Controlnet, "controlnet", &["control"]),
    (ModuleName::Photomaker, "photomaker", &["photomakerid", "pmid", "photo"]),
    (ModuleName::Upscaler, "upscaler", &["esrgan", "hires"]),
    (ModuleName::Detector, "detector", &["adetailer", "yolo"]),
];

impl ModuleName {
    /// How we write it.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(module, ..)| *module == self).map_or("module", |(_, name, _)| name)
    }

    /// The module of a name; case, `-` and `_` do not count.
    pub(super) fn named(text: &str) -> Option<ModuleName> {
        let key = plain(text);
        let is_it =
            |(_, name, others): &&(ModuleName, &str, &[&str])| plain(name) == key || others.contains(&key.as_str());
        NAMES.iter().find(is_it).map(|(module, ..)| *module)
    }

    /// Every name that is understood.
    pub(super) fn all_names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().flat_map(|(_, name, others)| std::iter::once(*name).chain(others.iter().copied()))
    }

    /// The names that we write.
    pub(super) fn our_names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(_, name, _)| *name)
    }
}

impl From<NetworkId> for ModuleName {
    /// The module that a network is placed with.
    fn from(network: NetworkId) -> ModuleName {
        match network {
            NetworkId::TextEncoder(_) => ModuleName::Te,
            NetworkId::Denoiser => ModuleName::Diffusion,
            NetworkId::VaeEncoder | NetworkId::VaeDecoder | NetworkId::TinyDecoder => ModuleName::Vae,
        }
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name without what does not count in it.
fn plain(text: &str) -> String {
    text.trim().chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// The names that are nearest to what was written, if that is a slip or two away.
pub(super) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let written = plain(written);
    let most = 1 + written.chars().count() / 4;
    let mut near: Vec<(usize, &str)> =
        names.map(|name| (distance(&written, &plain(name)), name)).filter(|(d, _)| *d <= most).collect();
    let least = near.iter().map(|(d, _)| *d).min();
    near.retain(|(d, _)| Some(*d) == least);
    near.into_iter().map(|(_, name)| name).take(3).collect()
}

/// Letters to add, leave out, change or exchange with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_name_is_understood_however_it_is_written() {
        for (module, name, others) in NAMES {
            for name in others.iter().chain([&name]) {
                let odd: String = name.chars().map(|c| format!("{}_-", c.to_uppercase())).collect();
                assert_eq!(ModuleName::named(name), Some(module), "{name}");
                assert_eq!(ModuleName::named(&odd), Some(module), "{odd}");
            }
        }
        let mut all: Vec<&str> = ModuleName::all_names().collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), ModuleName::all_names().count(), "no name is two modules'");
    }

    proptest! {
        #[test]
        fn slips_are_counted(text in "[a-z]{3,8}", at in 0usize..8, letter in "[a-z]") {
            let at = at % text.len();
            let mut longer = text.clone();
            longer.insert_str(at, &letter);
            prop_assert_eq!(distance(&text, &longer), 1);
            prop_assert_eq!(distance(&longer, &text), 1);
            prop_assert_eq!(distance(&text, &text), 0);
            prop_assert_eq!(nearest(&longer, [text.as_str()].into_iter()), [text.as_str()]);
        }
    }
}
