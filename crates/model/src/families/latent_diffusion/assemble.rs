//! From the networks in files to a model, and the checks that they belong together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use impasto_graph::Unary;

use super::prediction::{few_steps, noise_settings};
use super::{EncoderRole, LatentDiffusion, Sizes, Version};
use crate::discovery::{Discovered, NetworkInFile, TextEncoderInFile};
use crate::families::autoencoder::{LatentScale, open_autoencoder, open_tiny};
use crate::families::{AssembledModel, NetworkId, TokenizerKind};
use crate::networks::{Clip, ClipConfig, ClipLayout, HiddenState, Unet, UnetConfig, VaeConfig};
use crate::{ModelError, OpenNetwork};

/// A text encoder in its role.
struct Encoder {
    network: Arc<OpenNetwork>,
    config: ClipConfig,
    hidden: HiddenState,
    tokenizer: Option<PathBuf>,
}

/// The UNet that was found.
pub(in crate::families) fn unet_of(files: &Discovered) -> Result<(NetworkInFile, Unet), ModelError> {
    let pick = files.denoiser.clone().ok_or_else(|| files.no_denoiser())?;
    let unet = pick.network::<Unet>().ok_or_else(|| files.no_denoiser())?;
    Ok((pick, unet))
}

/// Put the networks together.
pub(in crate::families) fn assemble(
    version: &'static Version,
    files: &mut Discovered,
    (pick, mut unet): (NetworkInFile, Unet),
) -> Result<AssembledModel, ModelError> {
    refuse_guidance_input(&pick)?;
    let json = pick.source.config_of("UNet2DConditionModel")?;
    if let Some(json) = json {
        unet.config.apply(json)?;
    }
    let noise = noise_settings(version, &pick, &unet.config, files.scheduler.as_ref())?;
    let denoiser = pick.open(unet.clone(), "diffusion model")?;
    let encoders = text_encoders(version, files, &unet.config)?;
    let usual = LatentScale { factor: version.factor, shift: 0.0 };
    let (_, vae, vae_network, scale) = open_autoencoder(files, "AutoencoderKL", usual)?;
    check_channels(&pick, &unet.config, &vae)?;
    let tiny = open_tiny(files, [vae.latent, vae.factor()])?;

    let names = [&files.title(), pick.metadata("modelspec.architecture").unwrap_or_default()];
    let sizes = Sizes {
        unet: unet.config,
        text: encoders.iter().map(|encoder| (encoder.config.clone(), encoder.hidden)).collect(),
        taesd: tiny.as_ref().map(|(taesd, _)| taesd.clone()),
        turbo: few_steps(&names, files.scheduler.as_ref())?,
        vae,
        scale,
        noise,
    };
    let mut model = LatentDiffusion::new(version, sizes)?;
    let sample = json.map(UnetConfig::sample_size).transpose()?.flatten();
    model.take_metadata(&pick, sample);
    let mut networks = BTreeMap::new();
    for (i, Encoder { network, tokenizer, .. }) in encoders.into_iter().enumerate() {
        if let Some(folder) = tokenizer {
            model.encoders[i].tokenizer = TokenizerKind::Folder(folder);
        }
        networks.insert(NetworkId::TextEncoder(i), network);
    }
    networks.insert(NetworkId::Denoiser, denoiser);
    networks.extend([NetworkId::VaeEncoder, NetworkId::VaeDecoder].map(|id| (id, vae_network.clone())));
    networks.extend(tiny.map(|(_, network)| (NetworkId::TinyDecoder, network)));
    Ok(AssembledModel { pipeline: Arc::new(model), networks })
}

impl LatentDiffusion {
    /// What the file says of itself, and the size of latents that it was trained with.
    fn take_metadata(&mut self, pick: &NetworkInFile, sample: Option<[usize; 2]>) {
        let sample = sample.map(|side| side.map(|n| n * self.vae().factor()));
        if let Some(size) = pick.metadata("modelspec.resolution").and_then(resolution).or(sample) {
            self.defaults.size = size;
        }
        let guidance = pick.metadata("impasto.cfg_scale").and_then(|x| x.parse().ok());
        if let Some(guidance) = guidance.filter(|x: &f32| x.is_finite()) {
            self.defaults.guidance = guidance;
        }
        let colours = pick.metadata("impasto.preview").and_then(colours);
        if let Some(colours) = colours.filter(|c| c.len() == self.vae().latent + 1) {
            self.latents.preview = colours;
        }
    }
}

/// Models that are told the guidance are not computed here.
fn refuse_guidance_input(pick: &NetworkInFile) -> Result<(), ModelError> {
    let names = ["time_embedding.cond_proj.weight", "time_embed.cond_proj.weight"];
    if names.iter().any(|name| pick.source.shapes.contains_key(&format!("{}{name}", pick.found.prefix))) {
        let what = "its diffusion model is told the guidance (time_embedding.cond_proj), which is not supported";
        return Err(ModelError::Unsupported { path: pick.path().into(), what: what.into() });
    }
    Ok(())
}

/// The text encoders in the order of the version.
fn text_encoders(
    version: &'static Version,
    files: &mut Discovered,
    unet: &UnetConfig,
) -> Result<Vec<Encoder>, ModelError> {
    let roles = version.encoders;
    let mut slots: Vec<Option<TextEncoderInFile>> = vec![None; roles.len()];
    let alone = files.text.len() == 1;
    for (i, (pick, tokenizer)) in std::mem::take(&mut files.text).into_iter().enumerate() {
        let slot = if roles.len() == 2 && alone && is_second(&pick) { 1 } else { i };
        if let Some(slot) = slots.get_mut(slot) {
            *slot = Some((pick, tokenizer));
        }
    }
    for (flag, picks) in std::mem::take(&mut files.named_text) {
        let Some(slot) = roles.iter().position(|role| role.flag == flag) else {
            let problem = format!("{flag}: {} has no such text encoder; leave it out", version.name);
            return Err(ModelError::Mismatch(problem));
        };
        // Of several in one file, the one in the layout of its kind.
        let open_clip = flag == "--clip_g";
        let wanted = if open_clip { ClipLayout::OpenClip } else { ClipLayout::Transformers };
        let same = picks.iter().find(|pick| pick.network::<Clip>().is_some_and(|clip| clip.layout == wanted));
        let tokenizer = slots[slot].take().and_then(|(_, tokenizer)| tokenizer);
        slots[slot] = same.or(picks.first()).cloned().map(|pick| (pick, tokenizer));
    }
    let empty = roles.iter().zip(&slots).filter(|(_, slot)| slot.is_none());
    let lacking: Vec<_> = empty.map(|(role, _)| (role.name, role.flag)).collect();
    if !lacking.is_empty() {
        let vae = files.autoencoder.is_none().then_some(("autoencoder", "--vae"));
        return Err(files.missing(&lacking.into_iter().chain(vae).collect::<Vec<_>>()));
    }
    let picks = roles.iter().zip(slots.into_iter().flatten());
    let encoders = picks.map(|(role, (pick, tokenizer))| text_encoder(version, files, role, &pick, tokenizer));
    let encoders = encoders.collect::<Result<Vec<_>, _>>()?;
    check_widths(unet, &encoders)?;
    Ok(encoders)
}

/// Whether a text encoder is the second of two: the one with a projection or with OpenCLIP's names.
pub(in crate::families) fn is_second(pick: &NetworkInFile) -> bool {
    pick.network::<Clip>().is_some_and(|clip| clip.layout == ClipLayout::OpenClip || clip.config.projection.is_some())
}

/// A text encoder in its role.
fn text_encoder(
    version: &Version,
    files: &Discovered,
    role: &'static EncoderRole,
    pick: &NetworkInFile,
    tokenizer: Option<PathBuf>,
) -> Result<Encoder, ModelError> {
    let clip = clip_in_role(pick, role.activation, role.pooled)?;
    let clip = clip.ok_or_else(|| files.missing(&[(role.name, role.flag)]))?;
    let (config, hidden) = (clip.config.clone(), (version.hidden)(&clip));
    Ok(Encoder { network: pick.open(clip, role.name)?, config, hidden, tokenizer })
}

/// A text encoder of CLIP, if it is one: what shapes cannot say comes from the role, then from the file, then from `config.json`.
pub(in crate::families) fn clip_in_role(
    pick: &NetworkInFile,
    activation: Unary,
    pooled: bool,
) -> Result<Option<Clip>, ModelError> {
    let Some(mut clip) = pick.network::<Clip>() else { return Ok(None) };
    let config = &mut clip.config;
    config.activation = activation;
    config.projection = config.projection.filter(|_| pooled);
    if let Some(said) = pick.metadata("text_heads") {
        let heads = said.parse().ok().filter(|n| *n > 0 && config.width.is_multiple_of(*n));
        config.heads = heads.ok_or_else(|| ModelError::Setting {
            path: pick.path().into(),
            field: "text_heads".into(),
            problem: format!("is '{said}'; a number is needed by which the width {} can be divided", config.width),
        })?;
    }
    if let Some(json) = pick.source.config_of("clip_text_model")? {
        config.apply(json)?;
    }
    Ok(Some(clip))
}

/// What the text encoders give must be what the denoiser reads.
fn check_widths(unet: &UnetConfig, encoders: &[Encoder]) -> Result<(), ModelError> {
    let widths: Vec<String> = encoders.iter().map(|e| e.config.width.to_string()).collect();
    let sum: usize = encoders.iter().map(|e| e.config.width).sum();
    if sum != unet.context {
        let files: Vec<String> = encoders.iter().map(|e| e.network.path().display().to_string()).collect();
        return Err(ModelError::Mismatch(format!(
            "the text encoder gives {} numbers a token ({}), the diffusion model reads {}: they belong to different models",
            widths.join(" + "),
            files.join(", "),
            unet.context
        )));
    }
    let Some((added, last)) = unet.added.zip(encoders.last()) else { return Ok(()) };
    let Some(pooled) = last.config.projection else {
        let (path, name) = (last.network.path().display(), last.network.tensor_name("text_projection.weight"));
        let problem = format!("{path}: has no text projection (tensor '{name}'), which Stable Diffusion XL reads");
        return Err(ModelError::Mismatch(problem));
    };
    match added.checked_sub(pooled).is_some_and(|sizes| sizes > 0 && sizes.is_multiple_of(12)) {
        true => Ok(()),
        false => Err(ModelError::Mismatch(format!(
            "the diffusion model reads {added} numbers beside the text: {pooled} of the pooled text leave no room for six sizes"
        ))),
    }
}

/// The latent must be the one that the autoencoder knows.
fn check_channels(pick: &NetworkInFile, unet: &UnetConfig, vae: &VaeConfig) -> Result<(), ModelError> {
    let (takes, gives, latent) = (unet.in_channels, unet.out_channels, vae.latent);
    let path = pick.path().display();
    let problem = if gives != latent {
        format!("{path}: gives {gives} channels, the autoencoder has {latent}")
    } else if takes != latent && takes != 2 * latent + 1 {
        format!(
            "{path}: takes {takes} channels; {latent} (pictures from text) and {} (inpainting) are supported, not models that are \
             guided by depth, by a picture to edit or by a small picture",
            2 * latent + 1
        )
    } else {
        return Ok(());
    };
    Err(ModelError::Mismatch(problem))
}

/// Three numbers for each colour, colours separated by semicolons.
fn colours(text: &str) -> Option<Vec<[f32; 3]>> {
    let number = |word: &str| word.parse().ok().filter(|x: &f32| x.is_finite());
    let colour = |text: &str| text.split_whitespace().map(number).collect::<Option<Vec<f32>>>()?.try_into().ok();
    text.split(';').map(colour).collect()
}

/// `1024x768` is 1024 wide: `[height, width]`.
fn resolution(text: &str) -> Option<[usize; 2]> {
    let side = |n: &str| n.trim().parse().ok().filter(|n| (64..=8192).contains(n));
    match text.split_once('x') {
        Some((width, height)) => Some([side(height)?, side(width)?]),
        None => side(text).map(|n| [n; 2]),
    }
}
