//! Pictures to latents and back.

use std::sync::Arc;

use impasto_graph::HostTensor;
use impasto_model::{LatentScale, Model, Part, TaesdConfig, VaeConfig, taesd_decoder, vae_decoder, vae_encoder};

use crate::latent::{LatentShape, channels_first, channels_last};
use crate::module::{Module, built, load, megabytes};
use crate::picture::Picture;
use crate::pipeline::{Event, Watcher, tell};
use crate::place::{Bounds, Place, Rung};
use crate::tiles::Tiles;
use crate::{GenerateError, Job, Noise, Split, Tile};

/// The decoder, and where a run begins with a picture the encoder.
pub(crate) struct Autoencoder {
    pub decoder: Module,
    pub encoder: Option<Module>,
    /// Where they work in tiles.
    decoder_tiles: Option<Tiles>,
    encoder_tiles: Option<Tiles>,
    recipe: Recipe,
    scale: LatentScale,
    pub latent: LatentShape,
    /// Pixels of a picture for one of a latent, along a side.
    factor: usize,
}

/// All that planning needs, also again when a device has failed.
struct Recipe {
    vae: Arc<Part<VaeConfig>>,
    /// The tiny decoder, which takes latents as the diffusion model has them.
    tiny: Option<Arc<Part<TaesdConfig>>>,
    split: Split,
    /// Of the latent.
    size: [usize; 2],
}

/// Tiles that are not asked for otherwise are at most this large if tiles are asked for, and never smaller than the second.
const USUAL_TILE: usize = 32;
const LEAST_TILE: usize = 8;

impl Recipe {
    /// Half of the autoencoder for latents of this size.
    fn module(&self, decode: bool, place: &Place, size: [usize; 2], bounds: Bounds) -> Result<Module, GenerateError> {
        let (config, factor) = (&self.vae.config, self.vae.config.factor());
        match (decode, &self.tiny) {
            (true, Some(tiny)) => {
                let build = |numbers| taesd_decoder(&tiny.config, 1, size, numbers);
                Module::of("taesd", place, tiny.clone(), tiny.storage(), bounds, &build)
            }
            (true, None) => {
                let build = |numbers| vae_decoder(config, 1, size, numbers);
                Module::of("vae", place, self.vae.clone(), self.vae.storage(), bounds, &build)
            }
            (false, _) => {
                let build = |numbers| vae_encoder(config, 1, size.map(|n| n * factor), numbers);
                Module::of("vae", place, self.vae.clone(), self.vae.storage(), bounds, &build)
            }
        }
    }

    /// The first rung that fits a place.
    fn fit(&self, decode: bool, place: &Place) -> Result<(Module, Option<Tiles>), GenerateError> {
        let Split { from, arena, .. } = self.split;
        let mut refused = None;
        if from <= Rung::Banded {
            let bounds = Bounds { from, to: self.split.to.min(Rung::Banded), arena };
            match self.module(decode, place, self.size, bounds) {
                Err(error @ GenerateError::Plan { .. }) if self.split.allows(Rung::Tiled) => refused = Some(error),
                planned => return Ok((planned?, None)),
            }
        }
        for tile in self.tiles() {
            let tiles = Tiles::new(self.size, tile, self.split.overlap);
            match self.module(decode, place, tiles.tile, Bounds { arena, ..Bounds::WHOLE }) {
                Err(error @ GenerateError::Plan { .. }) => refused = Some(error),
                planned => return Ok((planned?.tiled(tiles.places().len()), Some(tiles))),
            }
        }
        Err(refused.unwrap_or(GenerateError::Refused("there is no tile to decode".into())))
    }

    /// Tiles to try, `[height, width]`, the largest first.
    fn tiles(&self) -> Vec<[usize; 2]> {
        let [height, width] = self.size;
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
                let most = if self.split.from == Rung::Tiled { usual } else { largest };
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
    let (count, name, device) = (tiles.places().len(), module.name(), module.device().name());
    format!(
        "{name} on {device} in {count} tiles of {width}x{height} and {arena} MB: the picture differs a little from the whole"
    )
}

/// An image through a module, whole or tile by tile. `[channels, from, to]`: of the image, its pixels for one of the latent, and those of the
/// result.
fn through(
    module: &mut Module,
    tiles: Option<&Tiles>,
    latent: LatentShape,
    name: &str,
    image: &[f32],
    [channels, from, to]: [usize; 3],
    watch: &mut Watcher,
) -> Result<Vec<f32>, GenerateError> {
    load(module, watch)?;
    if name == "picture" {
        tell(watch, Event::Working("encoding the picture"))?;
    }
    let mut run = |size: [usize; 2], pixels: Vec<f32>| {
        let [height, width] = size.map(|n| n * from);
        let pixels = HostTensor::f32([1, height, width, channels], pixels).map_err(built("vae"))?;
        Ok::<_, GenerateError>(module.run(&[(name, &pixels)])?[0].to_f32())
    };
    let Some(tiles) = tiles else { return run([latent.height, latent.width], image.to_vec()) };
    let mut done = vec![];
    for place in tiles.places() {
        done.push(run(tiles.tile, tiles.cut(image, channels, from, place))?);
    }
    let found = done[0].len() / (tiles.tile[0] * tiles.tile[1] * to * to);
    Ok(tiles.blend(found, to, done))
}

/// A picture, encoded: means and standard deviations of its latent, each `(channels, height, width)`, as the diffusion model knows them.
pub(crate) struct Encoded {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Encoded {
    /// One latent of the many that it may be.
    pub fn draw(&self, noise: &mut Noise) -> Vec<f32> {
        let drawn = noise.draw(self.mean.len());
        self.mean.iter().zip(&self.deviation).zip(drawn).map(|((m, d), n)| m + d * n).collect()
    }
}

impl Autoencoder {
    /// The latents of a job's pictures.
    pub fn latent(job: &Job, model: &Model) -> LatentShape {
        let factor = model.vae.config.factor();
        LatentShape { channels: model.vae.config.latent, height: job.height / factor, width: job.width / factor }
    }

    /// Plan it for the pictures of a job; nothing is loaded yet.
    pub fn plan(job: &Job, model: &Model, place: &Place, encodes: bool) -> Result<Autoencoder, GenerateError> {
        let latent = Autoencoder::latent(job, model);
        let recipe = Recipe {
            vae: Arc::new(model.vae.clone()),
            tiny: model.taesd.clone().map(Arc::new),
            split: job.split.clone(),
            size: [latent.height, latent.width],
        };
        let (decoder, decoder_tiles) = recipe.fit(true, place)?;
        let (encoder, encoder_tiles) = match encodes {
            true => recipe.fit(false, place).map(|(module, tiles)| (Some(module), tiles))?,
            false => (None, None),
        };
        let factor = model.vae.config.factor();
        Ok(Autoencoder { decoder, encoder, decoder_tiles, encoder_tiles, recipe, scale: model.latent, latent, factor })
    }

    /// Plan it anew for another place: the decoder, and the encoder if it is still needed.
    pub fn put(&mut self, place: &Place) -> Result<(), GenerateError> {
        (self.decoder, self.decoder_tiles) = self.recipe.fit(true, place)?;
        if self.encoder.is_some() {
            let (encoder, tiles) = self.recipe.fit(false, place)?;
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
        let mut pixels = channels_last(latent, self.latent.channels);
        if self.recipe.tiny.is_none() {
            pixels.iter_mut().for_each(|z| *z = *z / self.scale.factor + self.scale.shift);
        }
        let shape = [self.latent.channels, 1, self.factor];
        let (decoder, tiles) = (&mut self.decoder, self.decoder_tiles.as_ref());
        let picture = through(decoder, tiles, self.latent, "latent", &pixels, shape, watch)?;
        Ok(Picture::from_signed(self.latent.height * self.factor, self.latent.width * self.factor, &picture))
    }

    /// The latents of pictures, each `(height, width, 3)` from -1 to 1.
    pub fn encode(&mut self, pictures: Vec<Vec<f32>>, watch: &mut Watcher) -> Result<Vec<Encoded>, GenerateError> {
        let Some(encoder) = &mut self.encoder else { return Ok(vec![]) };
        let mut encoded = vec![];
        for picture in pictures {
            let shape = [3, self.factor, 1];
            let moments =
                through(encoder, self.encoder_tiles.as_ref(), self.latent, "picture", &picture, shape, watch)?;
            let moments = channels_first(&moments, 2 * self.latent.channels);
            let (means, logs) = moments.split_at(self.latent.len());
            let LatentScale { factor, shift } = self.scale;
            encoded.push(Encoded {
                mean: means.iter().map(|m| (m - shift) * factor).collect(),
                deviation: logs.iter().map(|log| (0.5 * log.clamp(-30.0, 20.0)).exp() * factor).collect(),
            });
        }
        Ok(encoded)
    }

    /// A mask of pixels as one of the latent's, 1 where a picture is made anew.
    pub fn latent_mask(&self, mask: &[bool]) -> Vec<f32> {
        let (width, across) = (self.latent.width, self.latent.width * self.factor);
        let at = |i: usize| mask.get((i / width) * self.factor * across + (i % width) * self.factor);
        (0..self.latent.area()).map(|i| f32::from(u8::from(at(i) == Some(&true)))).collect()
    }
}
