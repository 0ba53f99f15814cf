//! Pictures to latents and back.

use std::sync::Arc;

use impasto_backend::BackendError;
use impasto_graph::HostTensor;
use impasto_model::{LatentScale, Model, Part, TaesdConfig, VaeConfig, taesd_decoder, vae_decoder, vae_encoder};

use crate::latent::{LatentShape, channels_first, channels_last};
use crate::module::{Module, built, load};
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

/// All that planning needs, also again when a device turns out to be fuller than it said.
struct Recipe {
    vae: Arc<Part<VaeConfig>>,
    /// The tiny decoder, which takes latents as the diffusion model has them.
    tiny: Option<Arc<Part<TaesdConfig>>>,
    place: Place,
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

    /// The first rung that fits a place, from this one on.
    fn fit(
        &self,
        decode: bool,
        place: &Place,
        from: Rung,
        arena: Option<u64>,
    ) -> Result<(Module, Option<Tiles>), GenerateError> {
        let (from, arena) = (from.max(self.split.from), arena.or(self.split.arena));
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

/// What to do about a device that failed.
enum Remedy {
    /// Less memory on the same one.
    Less,
    /// Another one.
    Elsewhere,
}

fn remedy(error: &GenerateError) -> Option<Remedy> {
    match error {
        GenerateError::Backend { source: BackendError::Exhausted { .. }, .. } => Some(Remedy::Less),
        GenerateError::Backend { source: BackendError::Lost { .. }, .. } => Some(Remedy::Elsewhere),
        _ => None,
    }
}

impl Recipe {
    /// The next rung down, after a failure: less memory on the same device, or the CPU. What cannot be helped is the error.
    fn again(
        &self,
        decode: bool,
        failed: &mut Module,
        error: GenerateError,
        watch: &mut Watcher,
    ) -> Result<(Module, Option<Tiles>), GenerateError> {
        let Some(remedy) = remedy(&error) else { return Err(error) };
        // Everything that it holds goes first.
        failed.unload();
        let on_cpu = failed.device().name() == "cpu";
        let half = Some(failed.arena_bytes() / 2).filter(|&bytes| bytes > 0);
        let less = match (remedy, half) {
            (Remedy::Less, Some(half)) if self.split.to >= Rung::Banded => {
                self.fit(decode, failed.place(), failed.rung().max(Rung::Banded), Some(half)).ok()
            }
            _ => None,
        };
        let next = match less {
            Some(next) => next,
            None if on_cpu || !self.split.allows(Rung::Elsewhere) => return Err(error),
            None => {
                let cpu = self.place.instead("cpu").map_err(|_| error.to_string());
                let Ok(cpu) = cpu else { return Err(error) };
                self.fit(decode, &cpu, Rung::Whole, None)?
            }
        };
        let how = note(&next.0, next.1.as_ref()).unwrap_or_else(|| format!("whole on {}", next.0.device().name()));
        tell(watch, Event::Note(&format!("{error}; going on: {how}")))?;
        Ok(next)
    }
}

fn note(module: &Module, tiles: Option<&Tiles>) -> Option<String> {
    let Some(tiles) = tiles else { return module.note() };
    let ([height, width], arena) = (tiles.tile, module.arena_bytes() as f64 / 1e6);
    let (count, name, device) = (tiles.places().len(), module.name(), module.device().name());
    Some(format!(
        "{name} on {device} in {count} tiles of {width}x{height} and {arena:.0} MB: the picture differs a little from the whole"
    ))
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
    pub fn plan(job: &Job, model: &Model, place: &Place) -> Result<Autoencoder, GenerateError> {
        let latent = Autoencoder::latent(job, model);
        let recipe = Recipe {
            vae: Arc::new(model.vae.clone()),
            tiny: model.taesd.clone().map(Arc::new),
            place: place.clone(),
            split: job.split.clone(),
            size: [latent.height, latent.width],
        };
        let (decoder, decoder_tiles) = recipe.fit(true, place, Rung::Whole, None)?;
        let (encoder, encoder_tiles) = match &job.start {
            Some(_) => recipe.fit(false, place, Rung::Whole, None).map(|(module, tiles)| (Some(module), tiles))?,
            None => (None, None),
        };
        let factor = model.vae.config.factor();
        Ok(Autoencoder { decoder, encoder, decoder_tiles, encoder_tiles, recipe, scale: model.latent, latent, factor })
    }

    /// What to tell the user of how it is split.
    pub fn notes(&self) -> Vec<String> {
        let halves = [(Some(&self.decoder), &self.decoder_tiles), (self.encoder.as_ref(), &self.encoder_tiles)];
        halves.into_iter().filter_map(|(module, tiles)| note(module?, tiles.as_ref())).collect()
    }

    /// The picture of a latent `(channels, height, width)`.
    pub fn decode(&mut self, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        let mut pixels = channels_last(latent, self.latent.channels);
        if self.recipe.tiny.is_none() {
            pixels.iter_mut().for_each(|z| *z = *z / self.scale.factor + self.scale.shift);
        }
        let shape = [self.latent.channels, 1, self.factor];
        let picture = loop {
            match through(&mut self.decoder, self.decoder_tiles.as_ref(), self.latent, "latent", &pixels, shape, watch)
            {
                Err(error) => {
                    let (decoder, tiles) = self.recipe.again(true, &mut self.decoder, error, watch)?;
                    (self.decoder, self.decoder_tiles) = (decoder, tiles);
                }
                Ok(picture) => break picture,
            }
        };
        Ok(Picture::from_signed(self.latent.height * self.factor, self.latent.width * self.factor, &picture))
    }

    /// The latents of pictures, each `(height, width, 3)` from -1 to 1. The encoder is given back: nobody needs it again.
    pub fn encode(&mut self, pictures: Vec<Vec<f32>>, watch: &mut Watcher) -> Result<Vec<Encoded>, GenerateError> {
        let Some(mut encoder) = self.encoder.take() else { return Ok(vec![]) };
        let mut encoded = vec![];
        for picture in pictures {
            let shape = [3, self.factor, 1];
            let moments = loop {
                match through(&mut encoder, self.encoder_tiles.as_ref(), self.latent, "picture", &picture, shape, watch)
                {
                    Err(error) => {
                        (encoder, self.encoder_tiles) = self.recipe.again(false, &mut encoder, error, watch)?
                    }
                    Ok(moments) => break moments,
                }
            };
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
