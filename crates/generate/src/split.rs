//! How the autoencoder may be split where it does not fit: what was asked for.

use crate::GenerateError;
use crate::place::SplitMode;
use crate::settings::Settings;

/// How the autoencoder may be split.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The split mode that is tried first.
    pub from: SplitMode,
    /// The last that may be taken. With [`SplitMode::Elsewhere`] nothing is forbidden.
    pub to: SplitMode,
    /// The tile, across and down: in pixels of a latent, or as shares of one.
    pub tile: Option<Tile>,
    /// The share of a tile that the next one covers too.
    pub overlap: f64,
    /// Bytes that the decoder may use beside its weights.
    pub arena: Option<u64>,
}

/// How large a tile is, across and down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tile {
    /// In pixels of a latent.
    Pixels([usize; 2]),
    /// As shares of the latent; from 1 on, so many tiles.
    Shares([f64; 2]),
}

impl Default for Split {
    fn default() -> Self {
        Split { from: SplitMode::Whole, to: SplitMode::Elsewhere, tile: None, overlap: 0.5, arena: None }
    }
}

impl Split {
    /// What the settings ask for.
    pub fn of(settings: &Settings) -> Result<Split, GenerateError> {
        let asked = |problem: String| Err(GenerateError::Asked(problem));
        let forced = settings.vae_tiling == Some(true);
        let from = settings.vae_split.and_then(|split| split.0);
        let named = forced || from.is_some();
        if forced && from.is_some_and(|from| from != SplitMode::Tiled) {
            return asked("--vae-tiling asks for tiles and --vae-split for something else".into());
        }
        let from = if forced { SplitMode::Tiled } else { from.unwrap_or(SplitMode::Whole) };
        let pixels = settings.vae_tile_size.map(|[w, h]| Tile::Pixels([w, h].map(|n| n as usize)));
        if settings.vae_tile_size.is_some_and(|size| size.iter().any(|n| *n < 1.0 || n.fract() != 0.0)) {
            return asked("--vae-tile-size is in whole pixels of a latent, such as 32x32".into());
        }
        let mut arena = None;
        for item in settings.extra_tiling_args.iter().flat_map(|text| text.split(',')).filter(|i| !i.trim().is_empty())
        {
            match item.split_once('=').map(|(key, value)| (key.trim(), value.trim().parse::<u64>())) {
                Some(("max_buffer_size", Ok(bytes))) => arena = Some(bytes).filter(|&bytes| bytes > 0),
                _ => return asked(format!("--extra-tiling-args knows max_buffer_size=BYTES, not '{}'", item.trim())),
            }
        }
        Ok(Split {
            from,
            to: match settings.no_vae_tiling_fallback {
                Some(true) if named => from,
                Some(true) => SplitMode::Banded,
                _ => SplitMode::Elsewhere,
            },
            // As in sd-cli, shares go before pixels.
            tile: settings.vae_relative_tile_size.map(Tile::Shares).or(pixels),
            overlap: settings.vae_tile_overlap.map_or(0.5, f64::from),
            arena,
        })
    }

    /// Whether the autoencoder may take this split mode.
    pub fn allows(&self, split_mode: SplitMode) -> bool {
        (self.from..=self.to).contains(&split_mode)
    }
}
