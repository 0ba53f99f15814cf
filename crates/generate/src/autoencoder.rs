//! Pictures to latents and back.

use std::sync::Arc;

use impasto_graph::HostTensor;
use impasto_model::{Gaussian, LatentShape, Model, NetworkId, Pipeline};

use crate::module::{Module, built, load, megabytes};
use crate::picture::Picture;
use crate::pipeline::{Event, Watcher, tell};
use crate::place::{Bounds, Place, SplitMode};
use crate::tiles::Tiles;
use crate::{GenerateError, Job, Split, Tile};

/// The decoder, and where a run begins with a picture the encoder.
pub(crate) struct Autoencoder {
    pub decoder: Module,
    pub encoder: Option<Module>,
    /// Where they work in tiles.
    decoder_tiles: Option<Tiles>,
    encoder_tiles: Option<Tiles>,
    split: Split,
    pipeline: Arc<dyn Pipeline>,
    /// The latent as it is sampled.
    pub latent: LatentShape,
    /// The latent's pixels as autoencoders have them, `[height, width]`.
    grid: [usize; 2],
}

/// One half of the autoencoder to be fitted to a place.
struct Half<'a> {
    network: NetworkId,
    model: &'a Model,
    split: &'a Split,
    /// `[height, width]` of the latent's pixels.
    grid: [usize; 2],
}

/// Tiles that are not asked for otherwise are at most this large if tiles are asked for, and never smaller than the second.
const USUAL_TILE: usize = 32;
const LEAST_TILE: usize = 8;

impl Half<'_> {
    /// The network for latents of this size.
    fn module(&self, place: &Place, grid: [usize; 2], bounds: Bounds) -> Result<Module, GenerateError> {
        let build = |numbers| self.model.pipeline.autoencoder(self.network, grid, numbers);
        Ok(Module::new(self.network, self.model, place, bounds, format!("{grid:?}"), &[&build])?.0)
    }

    /// The first split mode that fits a place.
    fn fit(&self, place: &Place) -> Result<(Module, Option<Tiles>), GenerateError> {
        let Split { from, arena, .. } = *self.split;
        let mut refused = None;
        if from <= SplitMode::Banded {
            let bounds = Bounds { from, to: self.split.to.min(SplitMode::Banded), arena };
            match self.module(place, self.grid, bounds) {
                Err(error @ GenerateError::Plan { .. }) if self.split.allows(SplitMode::Tiled) => refused = Some(error),
                planned => return Ok((planned?, None)),
            }
        }
        for tile in self.tiles() {
            let tiles = Tiles::new(self.grid, tile, self.split.overlap);
            match self.module(place, tiles.tile, Bounds { arena, ..Bounds::WHOLE }) {
                Err(error @ GenerateError::Plan { .. }) => refused = Some(error),
                planned => return Ok((planned?.tiled(tiles.places().len()), Some(tiles))),
            }
        }
        Err(refused.unwrap_or(GenerateError::Refused("there is no tile to decode".into())))
    }

    /// Tiles to try, `[height, width]`, the largest first.
    fn tiles(&self) -> Vec<[usize; 2]> {
        let [height, width] = self.grid;
        match self.split.tile {
            Some(Tile::Pixels([across, down])) => vec![[down, across]],
            Some(Tile::Shares([across, down])) => {
                // A share, or from 1 on a number of tiles.
                let side = |size: usize, by: f64| if by < 1.0 { size as f64 * by } else { (size as f64 / by).ceil() };
                vec![[side(height, down), side(width, across)].map(|n| (n as usize).max(1))]
            }
            None => {
                let largest = height.max(width).saturating_sub(1).max(1);
                // Asked for, tiles are tiles, also where the whole would fit one.
                let usual = USUAL_TILE.min((3 * largest).div_ceil(4));
                let most = if self.split.from == SplitMode::Tiled { usual } else { largest };
                let mut sides: Vec<usize> = (LEAST_TILE.min(most)..=most).rev().step_by(4).collect();
                sides.push(LEAST_TILE.min(most));
                sides.dedup();
                sides.into_iter().map(|n| [n, n]).collect()
            }
        }
    }
}

/// In which way half of the autoencoder runs, in the user's words.
fn way(module: &Module, tiles: Option<&Tiles>) -> String {
    let Some(tiles) = tiles else { return module.way() };
    let ([height, width], arena) = (tiles.tile, megabytes(module.arena_bytes()));
    let (count, name, device) = (tiles.places().len(), module.id(), module.device().name());
    format!(
        "{name} on {device} in {count} tiles of {width}x{height} and {arena} MB: the picture differs a little from the whole"
    )
}

/// Run an image through a module, whole or tile by tile. `[channels, from, to]`: of the image, its pixels for one of the grid, and those of the
/// result.
fn run_tiled(
    module: &mut Module,
    tiles: Option<&Tiles>,
    grid: [usize; 2],
    name: &str,
    image: &[f32],
    [channels, from, to]: [usize; 3],
    watch: &mut Watcher,
) -> Result<Vec<f32>, GenerateError> {
    load(module, watch)?;
    let id = module.id();
    if id == NetworkId::VaeEncoder {
        tell(watch, Event::Working("encoding the picture"))?;
    }
    let mut run = |size: [usize; 2], pixels: Vec<f32>| {
        let [height, width] = size.map(|n| n * from);
        let pixels = HostTensor::f32([1, height, width, channels], pixels).map_err(built(id))?;
        Ok::<_, GenerateError>(module.run(&[(name, &pixels)])?[0].to_f32())
    };
    let Some(tiles) = tiles else { return run(grid, image.to_vec()) };
    let mut done = vec![];
    for place in tiles.places() {
        done.push(run(tiles.tile, tiles.cut(image, channels, from, place))?);
    }
    let found = done[0].len() / (tiles.tile[0] * tiles.tile[1] * to * to);
    Ok(tiles.blend(found, to, done))
}

impl Autoencoder {
    /// Plan it for the pictures of a job; nothing is loaded yet.
    pub fn plan(job: &Job, model: &Model, place: &Place, encodes: bool) -> Result<Autoencoder, GenerateError> {
        let pipeline = model.pipeline.clone();
        let latent = pipeline.latent_shape([job.height, job.width]);
        let grid = [job.height, job.width].map(|n| n / pipeline.latents().autoencoder_pixels);
        let half = |network| Half { network, model, split: &job.split, grid };
        // The tiny decoder where there is one.
        let decodes = model.network(NetworkId::TinyDecoder).map_or(NetworkId::VaeDecoder, |_| NetworkId::TinyDecoder);
        let (decoder, decoder_tiles) = half(decodes).fit(place)?;
        let (encoder, encoder_tiles) = match encodes {
            true => half(NetworkId::VaeEncoder).fit(place).map(|(module, tiles)| (Some(module), tiles))?,
            false => (None, None),
        };
        let split = job.split.clone();
        Ok(Autoencoder { decoder, encoder, decoder_tiles, encoder_tiles, split, pipeline, latent, grid })
    }

    /// Plan it anew for another place: the decoder, and the encoder if it is still needed.
    pub fn put(&mut self, model: &Model, place: &Place) -> Result<(), GenerateError> {
        let half = |network| Half { network, model, split: &self.split, grid: self.grid };
        let (decoder, tiles) = half(self.decoder.id()).fit(place)?;
        let encoder = self.encoder.as_ref().map(|encoder| half(encoder.id()).fit(place)).transpose()?;
        (self.decoder, self.decoder_tiles) = (decoder, tiles);
        if let Some((encoder, tiles)) = encoder {
            (self.encoder, self.encoder_tiles) = (Some(encoder), tiles);
        }
        Ok(())
    }

    fn halves(&self) -> impl Iterator<Item = (&Module, Option<&Tiles>)> {
        let encoder = self.encoder.iter().map(|encoder| (encoder, self.encoder_tiles.as_ref()));
        [(&self.decoder, self.decoder_tiles.as_ref())].into_iter().chain(encoder)
    }

    /// Decoder and encoder as modules.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.halves().map(|(module, _)| module)
    }

    /// The same, to be changed.
    pub fn modules_mut(&mut self) -> impl Iterator<Item = &mut Module> {
        [&mut self.decoder].into_iter().chain(&mut self.encoder)
    }

    /// In which way they run, in the user's words.
    pub fn ways(&self) -> Vec<String> {
        self.halves().map(|(module, tiles)| way(module, tiles)).collect()
    }

    /// What to tell the user of how it is split.
    pub fn notes(&self) -> Vec<String> {
        let note = |(module, tiles): (&Module, Option<&Tiles>)| match tiles {
            Some(tiles) => Some(way(module, Some(tiles))),
            None => module.note(),
        };
        self.halves().filter_map(note).collect()
    }

    /// The picture of a latent `(channels, height, width)`.
    pub fn decode(&mut self, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        let (decoder, tiles) = (&mut self.decoder, self.decoder_tiles.as_ref());
        let pixels = self.pipeline.decoder_input(decoder.id(), latent, self.latent);
        let factor = self.pipeline.latents().autoencoder_pixels;
        let shape = [pixels.len() / (self.grid[0] * self.grid[1]), 1, factor];
        let picture = run_tiled(decoder, tiles, self.grid, "latent", &pixels, shape, watch)?;
        let [height, width] = self.grid.map(|n| n * factor);
        Ok(Picture::from_signed(height, width, &picture))
    }

    /// The latents of pictures, each `(height, width, 3)` from -1 to 1.
    pub fn encode(&mut self, pictures: Vec<Vec<f32>>, watch: &mut Watcher) -> Result<Vec<Gaussian>, GenerateError> {
        let Some(encoder) = &mut self.encoder else { return Ok(vec![]) };
        let mut encoded = vec![];
        for picture in pictures {
            let (shape, tiles) = ([3, self.pipeline.latents().autoencoder_pixels, 1], self.encoder_tiles.as_ref());
            let moments = run_tiled(encoder, tiles, self.grid, "picture", &picture, shape, watch)?;
            encoded.push(self.pipeline.encoder_output(&moments, self.latent));
        }
        Ok(encoded)
    }

    /// A mask of pixels as one of the latent's, 1 where a picture is made anew.
    pub fn latent_mask(&self, mask: &[bool]) -> Vec<f32> {
        let (width, pixels) = (self.latent.width, self.pipeline.latents().pixels);
        let at = |i: usize| mask.get((i / width) * pixels * width * pixels + (i % width) * pixels);
        (0..self.latent.area()).map(|i| f32::from(u8::from(at(i) == Some(&true)))).collect()
    }
}
