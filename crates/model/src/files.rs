//! From what the user names to networks whose parameters a backend can read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use impasto_graph::Unary;
use impasto_weights::Checkpoint;

use crate::config::Config;
use crate::prediction::{few_steps, prediction};
use crate::source::{Source, is_whole_folder};
use crate::{
    ClipConfig, Family, Found, Heads, Hidden, ModelError, Network, Part, Prediction, TaesdConfig, TextLayout,
    UnetConfig, VaeConfig, family, kind_of, usage,
};

/// What the user named.
#[derive(Clone, Debug, Default)]
pub struct ModelPaths {
    /// One file with everything, or a diffusers folder.
    pub model: Option<PathBuf>,
    /// The diffusion model.
    pub diffusion: Option<PathBuf>,
    /// The autoencoder.
    pub vae: Option<PathBuf>,
    /// The text encoder CLIP-L.
    pub clip_l: Option<PathBuf>,
    /// The text encoder OpenCLIP-G (XL) or OpenCLIP-H (Stable Diffusion 2).
    pub clip_g: Option<PathBuf>,
    /// The tiny autoencoder.
    pub taesd: Option<PathBuf>,
}

impl ModelPaths {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        [&self.model, &self.diffusion, &self.vae, &self.clip_l, &self.clip_g, &self.taesd].iter().all(|p| p.is_none())
    }
}

/// Between the numbers that the autoencoder knows and those that the diffusion model knows:
/// `diffusion = (autoencoder - shift) * factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentScale {
    /// The factor.
    pub factor: f32,
    /// The shift.
    pub shift: f32,
}

/// A whole model, open: every network that makes a picture, found and checked.
///
/// ```no_run
/// use impasto_model::{Model, ModelPaths};
/// let model = Model::open(&ModelPaths { model: Some("model.safetensors".into()), ..Default::default() })?;
/// println!("{}: {:?} predicts {:?}", model.title, model.family, model.prediction);
/// # Ok::<(), impasto_model::ModelError>(())
/// ```
pub struct Model {
    /// The name that its files give it, else the name of its file or folder.
    pub title: String,
    /// What it is called.
    pub family: Family,
    /// What the diffusion model predicts.
    pub prediction: Prediction,
    /// It was trained on a schedule that ends in pure noise, and wants one.
    pub zero_snr: bool,
    /// It was made to be sampled in a few steps without guidance, as far as its name or its files say so.
    pub turbo: bool,
    /// The text encoders: CLIP-L, then OpenCLIP-G; or OpenCLIP-H alone.
    pub text: Vec<Part<ClipConfig>>,
    /// Which state of each text encoder the diffusion model was trained with.
    pub hidden: Vec<Hidden>,
    /// The folder of the tokenizer of each text encoder, where the model has one.
    pub tokenizers: Vec<Option<PathBuf>>,
    /// The diffusion model.
    pub unet: Part<UnetConfig>,
    /// The autoencoder.
    pub vae: Part<VaeConfig>,
    /// The tiny autoencoder.
    pub taesd: Option<Part<TaesdConfig>>,
    /// The scale of latents.
    pub latent: LatentScale,
    /// The size of pictures that suits it, `[height, width]`.
    pub size: [usize; 2],
    /// How much the prompt should count (`impasto.cfg_scale` in a file's metadata), where its maker says so.
    pub guidance: Option<f32>,
    /// Red, green and blue for each channel of a latent, then where there is none of any (`impasto.preview` in a file's metadata), where its
    /// maker says so: what a latent looks like without a network.
    pub colours: Option<Vec<[f32; 3]>>,
    /// What the user should know of the choice of files.
    pub notes: Vec<String>,
    /// Tensors of the files that no network uses.
    pub unused: Vec<String>,
}

/// A network and the file that it was found in.
type Pick = (Arc<Source>, Found);

/// All that was found, before it is known what is missing.
#[derive(Default)]
struct Finds {
    sources: Vec<Arc<Source>>,
    text: Vec<Pick>,
    clip_l: Option<Pick>,
    clip_g: Option<Pick>,
    unet: Option<Pick>,
    vae: Option<Pick>,
    taesd: Option<Pick>,
    scheduler: Option<Config>,
    tokenizers: Vec<Option<PathBuf>>,
    class: Option<String>,
}

/// What a text encoder is to the family.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    ClipL,
    ClipG,
    ClipH,
}

impl Role {
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Role::ClipL => ("text encoder (CLIP-L)", "--clip_l"),
            Role::ClipG => ("text encoder (OpenCLIP-G)", "--clip_g"),
            Role::ClipH => ("text encoder (OpenCLIP-H)", "--clip_g"),
        }
    }
}

impl Model {
    /// Which model it is, whatever its file is called: 16 hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let text = self.text.iter().map(Part::fingerprint);
        let parts = text.chain([self.unet.fingerprint(), self.vae.fingerprint()]);
        let all = parts.chain(self.taesd.as_ref().map(Part::fingerprint));
        format!("{:016x}", all.fold(0u64, |all, part| all.rotate_left(7) ^ part))
    }

    /// Open what the user named, find every network and check all of its tensors. Weights are mapped, not read.
    pub fn open(paths: &ModelPaths) -> Result<Model, ModelError> {
        if paths.model.is_none() && paths.diffusion.is_none() {
            return Err(ModelError::NothingNamed);
        }
        let mut finds = Finds::default();
        match &paths.model {
            Some(folder) if folder.is_dir() && is_whole_folder(folder) => finds.take_folder(folder, paths)?,
            Some(file) => finds.take_file(Source::open(file)?),
            None => {}
        }
        if let Some(path) = &paths.diffusion {
            finds.unet = Some(finds.component(path, "diffusion model (UNet)", |n| matches!(n, Network::Unet(..)))?);
        }
        if let Some(path) = &paths.vae {
            finds.vae = Some(finds.component(path, "autoencoder", |n| matches!(n, Network::Vae(..)))?);
        }
        if let Some(path) = &paths.taesd {
            finds.taesd = Some(finds.component(path, "tiny autoencoder", |n| matches!(n, Network::Taesd(..)))?);
        }
        if let Some(path) = &paths.clip_l {
            finds.clip_l = Some(finds.text_component(path, TextLayout::Clip)?);
        }
        if let Some(path) = &paths.clip_g {
            finds.clip_g = Some(finds.text_component(path, TextLayout::OpenClip)?);
        }
        let named = paths.model.as_ref().or(paths.diffusion.as_ref()).cloned().unwrap_or_default();
        finds.assemble(&named)
    }

    /// A model that is in memory, in one file.
    pub fn from_checkpoint(name: &str, checkpoint: Checkpoint) -> Result<Model, ModelError> {
        let mut finds = Finds::default();
        finds.take_file(Arc::new(Source::of(checkpoint, name.into())));
        finds.assemble(Path::new(name))
    }

    /// Whether the diffusion model takes a mask and a masked picture beside the latent.
    pub fn inpainting(&self) -> bool {
        self.unet.config.in_channels == 2 * self.vae.config.latent + 1
    }
}

impl Finds {
    /// Everything in one file.
    fn take_file(&mut self, source: Arc<Source>) {
        for found in &source.found {
            let pick = (source.clone(), found.clone());
            match found.network {
                Network::Text(..) => self.text.push(pick),
                Network::Unet(..) => drop(self.unet.get_or_insert(pick)),
                Network::Vae(..) => drop(self.vae.get_or_insert(pick)),
                Network::Taesd(..) => drop(self.taesd.get_or_insert(pick)),
            }
        }
        self.sources.push(source);
    }

    /// The components of a diffusers folder that the user has not named elsewhere.
    fn take_folder(&mut self, folder: &Path, paths: &ModelPaths) -> Result<(), ModelError> {
        if let Some(index) = Config::read(&folder.join("model_index.json"))? {
            self.class = index.text("_class_name")?.map(Into::into);
        }
        let there = |name: &str| Some(folder.join(name)).filter(|path| path.is_dir());
        if let Some(path) = there("unet").filter(|_| paths.diffusion.is_none()) {
            self.unet = Some(self.component(&path, "diffusion model (UNet)", |n| matches!(n, Network::Unet(..)))?);
        }
        if let Some(path) = there("vae").filter(|_| paths.vae.is_none()) {
            self.vae = Some(self.component(&path, "autoencoder", |n| matches!(n, Network::Vae(..)))?);
        }
        for (text, tokenizer) in [("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")] {
            let Some(path) = there(text) else { continue };
            let elsewhere = paths.clip_l.is_some() || paths.clip_g.is_some();
            match self.component(&path, "text encoder", |n| matches!(n, Network::Text(..))) {
                Ok(pick) => {
                    self.text.push(pick);
                    self.tokenizers.push(there(tokenizer));
                }
                // Folders without weights are common where these come from files of their own.
                Err(_) if elsewhere => {}
                Err(error) => return Err(error),
            }
        }
        self.scheduler = Config::read(&folder.join("scheduler/scheduler_config.json"))?;
        Ok(())
    }

    /// The network of one kind in a file or in the folder of a component.
    fn component(
        &mut self,
        path: &Path,
        wanted: &'static str,
        is: impl Fn(&Network) -> bool,
    ) -> Result<Pick, ModelError> {
        let source = Source::open(path)?;
        let found = source.found.iter().find(|f| is(&f.network)).cloned();
        let found =
            found.ok_or_else(|| ModelError::Unknown { path: source.path.clone(), wanted, found: contents(&source) })?;
        self.sources.push(source.clone());
        Ok((source, found))
    }

    /// A text encoder; of several in one file, the one that is named in this way.
    fn text_component(&mut self, path: &Path, layout: TextLayout) -> Result<Pick, ModelError> {
        let (source, first) = self.component(path, "text encoder", |n| matches!(n, Network::Text(..)))?;
        let same = source.found.iter().find(|f| matches!(f.network, Network::Text(_, l) if l == layout));
        let found = same.cloned().unwrap_or(first);
        Ok((source, found))
    }

    /// Put the networks together.
    fn assemble(mut self, named: &Path) -> Result<Model, ModelError> {
        let Some(unet) = self.unet.take() else { return Err(self.no_unet(named)) };
        let Network::Unet(mut config, layout) = unet.1.network.clone() else { unreachable!("picked as a UNet") };
        let family = family_of(&unet.0, &mut config);
        let told_guidance = ["time_embedding.cond_proj.weight", "time_embed.cond_proj.weight"];
        if told_guidance.iter().any(|name| unet.0.shapes.contains_key(&format!("{}{name}", unet.1.prefix))) {
            let what = "its diffusion model is told the guidance (time_embedding.cond_proj), which is not supported";
            return Err(ModelError::Unsupported { path: unet.0.path.clone(), what: what.into() });
        }
        let unet_config = unet.0.config_of("UNet2DConditionModel")?;
        if let Some(json) = unet_config {
            json.apply_unet(&mut config)?;
        }
        let (prediction, zero_snr) = prediction(family, &unet, &config, self.scheduler.as_ref())?;
        let network = Network::Unet(config.clone(), layout);
        let unet_part = part(&unet, network, "diffusion model", config)?;

        let (text, hidden, tokenizers) = self.text(family, &unet_part.config, named)?;
        let vae_pick = self.vae.take().ok_or_else(|| missing(named, &[("autoencoder", "--vae")]))?;
        let (vae, latent) = autoencoder(family, &vae_pick)?;
        check_channels(&unet_part, &vae)?;
        let taesd = match self.taesd.take() {
            Some(pick) => Some(tiny_autoencoder(&pick, &vae.config)?),
            None => None,
        };

        let title = match unet.0.says("modelspec.title") {
            Some(title) => title.to_string(),
            None => named.file_stem().unwrap_or(named.as_os_str()).to_string_lossy().into_owned(),
        };
        let turbo =
            few_steps(&[&title, unet.0.says("modelspec.architecture").unwrap_or_default()], self.scheduler.as_ref())?;
        let side = match (family, prediction) {
            (Family::Sdxl, _) if turbo => 512,
            (Family::Sdxl, _) => 1024,
            (Family::Sd2, Prediction::V) => 768,
            _ => 512,
        };
        let sample = match unet_config {
            Some(json) => json.sample_size()?.map(|side| side.map(|n| n * vae.config.factor())),
            None => None,
        };
        let size = unet.0.says("modelspec.resolution").and_then(resolution).or(sample).unwrap_or([side; 2]);

        let guidance = unet.0.says("impasto.cfg_scale").and_then(|x| x.parse().ok()).filter(|x: &f32| x.is_finite());
        let colours = unet.0.says("impasto.preview").and_then(colours).filter(|c| c.len() == vae.config.latent + 1);
        let mut model = Model {
            title,
            guidance,
            colours,
            family,
            prediction,
            zero_snr,
            turbo,
            text,
            hidden,
            tokenizers,
            unet: unet_part,
            vae,
            taesd,
            latent,
            size,
            notes: self.sources.iter().filter_map(|s| s.note.clone()).collect(),
            unused: vec![],
        };
        model.unused = self.unused(&model);
        Ok(model)
    }

    /// There is no UNet: say what there is.
    fn no_unet(&self, named: &Path) -> ModelError {
        let unsupported = |what| ModelError::Unsupported { path: named.into(), what };
        if let Some(what) = self.sources.iter().find_map(|s| kind_of(&s.shapes)) {
            return unsupported(format!("it is {what}, which is not supported"));
        }
        match &self.class {
            Some(class) if named.join("transformer").is_dir() => {
                unsupported(format!("it is a {class}, not built on a UNet"))
            }
            Some(_) => missing(named, &[("diffusion model (UNet)", "--diffusion-model")]),
            None if self.sources.iter().any(|s| !s.found.is_empty()) => {
                missing(named, &[("diffusion model (UNet)", "--diffusion-model")])
            }
            None => {
                let found = self.sources.iter().map(|s| contents(s)).collect::<Vec<_>>().join("; ");
                let found = if found.is_empty() { "nothing".into() } else { found };
                ModelError::Unknown { path: named.into(), wanted: "diffusion model (UNet)", found }
            }
        }
    }

    /// The text encoders in the order of the family.
    #[allow(clippy::type_complexity, reason = "three lists of the same length, made in one place")]
    fn text(
        &mut self,
        family: Family,
        unet: &UnetConfig,
        named: &Path,
    ) -> Result<(Vec<Part<ClipConfig>>, Vec<Hidden>, Vec<Option<PathBuf>>), ModelError> {
        let roles: &[Role] = match family {
            Family::Sd1 => &[Role::ClipL],
            Family::Sd2 => &[Role::ClipH],
            Family::Sdxl => &[Role::ClipL, Role::ClipG],
        };
        let mut slots: Vec<Option<(Pick, Option<PathBuf>)>> = vec![None; roles.len()];
        let alone = self.text.len() == 1;
        let tokenizers = std::mem::take(&mut self.tokenizers).into_iter().chain(std::iter::repeat(None));
        for (i, (pick, tokenizer)) in std::mem::take(&mut self.text).into_iter().zip(tokenizers).enumerate() {
            let Network::Text(config, layout) = &pick.1.network else { continue };
            // One of two: the second one is the one with a projection or with OpenCLIP's names.
            let second = *layout == TextLayout::OpenClip || config.projection.is_some();
            let slot = if family == Family::Sdxl && alone && second { 1 } else { i };
            if family == Family::Sdxl && alone && second && self.clip_l.is_none() && config.width == unet.context {
                let what = "it is a refiner of Stable Diffusion XL, which improves pictures of the base model and cannot \
                            make one; give the base model";
                return Err(ModelError::Unsupported { path: named.into(), what: what.into() });
            }
            if let Some(slot) = slots.get_mut(slot) {
                *slot = Some((pick, tokenizer));
            }
        }
        for (given, flag, fitting) in [
            (self.clip_l.take(), "--clip_l", &[Role::ClipL][..]),
            (self.clip_g.take(), "--clip_g", &[Role::ClipG, Role::ClipH]),
        ] {
            let Some(pick) = given else { continue };
            let Some(slot) = roles.iter().position(|role| fitting.contains(role)) else {
                return Err(ModelError::Mismatch(format!("{flag}: {family} has no such text encoder; leave it out")));
            };
            let tokenizer = slots[slot].take().and_then(|(_, tokenizer)| tokenizer);
            slots[slot] = Some((pick, tokenizer));
        }
        let lacking: Vec<_> = roles.iter().zip(&slots).filter(|(_, s)| s.is_none()).map(|(r, _)| r.names()).collect();
        if !lacking.is_empty() {
            let vae = self.vae.is_none().then_some(("autoencoder", "--vae"));
            return Err(missing(named, &lacking.into_iter().chain(vae).collect::<Vec<_>>()));
        }
        let (mut text, mut hidden, mut tokenizers) = (vec![], vec![], vec![]);
        for (role, (pick, tokenizer)) in roles.iter().zip(slots.into_iter().flatten()) {
            let (part, state) = text_encoder(*role, family, &pick)?;
            text.push(part);
            hidden.push(state);
            tokenizers.push(tokenizer);
        }
        check_widths(family, unet, &text)?;
        Ok((text, hidden, tokenizers))
    }

    /// The tensors that no network uses: neither those of the model, nor others that were recognised and not needed.
    fn unused(&self, model: &Model) -> Vec<String> {
        let mut unused = vec![];
        for source in &self.sources {
            let mut used: BTreeSet<&str> = BTreeSet::new();
            for part in &model.text {
                used.extend(part.tensors());
            }
            used.extend(model.unet.tensors().chain(model.vae.tensors()));
            used.extend(model.taesd.iter().flat_map(|t| t.tensors()));
            let rest = match usage(&source.shapes, &source.found) {
                Ok((_, rest)) => rest,
                Err(_) => source.shapes.keys().cloned().collect(),
            };
            unused.extend(rest.into_iter().filter(|name| !used.contains(name.as_str())));
        }
        unused
    }
}

/// The family, by structure. The file's own word decides between the two that differ in little else.
fn family_of(source: &Source, config: &mut UnetConfig) -> Family {
    let by_shape = family(config);
    let said = source.says("modelspec.architecture").unwrap_or_default();
    let (said, heads) = if said.starts_with("stable-diffusion-v1") {
        (Family::Sd1, Heads::Count(8))
    } else if said.starts_with("stable-diffusion-v2") {
        (Family::Sd2, Heads::Width(64))
    } else {
        return by_shape;
    };
    if by_shape == Family::Sdxl || by_shape == said {
        return by_shape;
    }
    config.heads = heads;
    said
}

fn missing(named: &Path, parts: &[(&'static str, &'static str)]) -> ModelError {
    ModelError::MissingParts { from: named.display().to_string(), parts: parts.to_vec() }
}

fn part<C>((source, found): &Pick, network: Network, what: &'static str, config: C) -> Result<Part<C>, ModelError> {
    let found = Found { network, prefix: found.prefix.clone() };
    Part::new(config, what, &found, &source.path, &source.checkpoint, &source.shapes)
}

/// A text encoder in its role: what shapes cannot say comes from the role, then from the file, then from `config.json`.
fn text_encoder(role: Role, family: Family, pick: &Pick) -> Result<(Part<ClipConfig>, Hidden), ModelError> {
    let (source, found) = pick;
    let Network::Text(mut config, layout) = found.network.clone() else { unreachable!("picked as a text encoder") };
    config.activation = if role == Role::ClipL { Unary::QuickGelu } else { Unary::Gelu };
    if role != Role::ClipG {
        // Only XL reads the pooled text; without it the layers behind the wanted state need not be computed.
        config.projection = None;
    }
    if let Some(said) = source.says("text_heads") {
        let heads = said.parse().ok().filter(|n| *n > 0 && config.width.is_multiple_of(*n));
        config.heads = heads.ok_or_else(|| ModelError::Setting {
            path: source.path.clone(),
            field: "text_heads".into(),
            problem: format!("is '{said}'; a number is needed by which the width {} can be divided", config.width),
        })?;
    }
    if let Some(json) = source.config_of("clip_text_model")? {
        json.apply_text(&mut config)?;
    }
    let hidden = match family {
        Family::Sd1 => Hidden { skip: 0, norm: true },
        // The layer before the last. Diffusers folders leave the last one out: 23 of 24.
        Family::Sd2 => Hidden { skip: usize::from(layout == TextLayout::OpenClip || config.layers == 24), norm: true },
        Family::Sdxl => Hidden { skip: 1, norm: false },
    };
    let part = part(pick, Network::Text(config.clone(), layout), role.names().0, config)?;
    Ok((part, hidden))
}

/// The autoencoder, and the scale of its latents.
fn autoencoder(family: Family, pick: &Pick) -> Result<(Part<VaeConfig>, LatentScale), ModelError> {
    let Network::Vae(config, layout) = pick.1.network.clone() else { unreachable!("picked as an autoencoder") };
    let (factor, shift) = match pick.0.config_of("AutoencoderKL")? {
        Some(json) => json.vae_scale()?,
        None => (None, None),
    };
    let usual = if family == Family::Sdxl { 0.13025 } else { 0.18215 };
    let latent = LatentScale { factor: factor.unwrap_or(usual), shift: shift.unwrap_or(0.0) };
    Ok((part(pick, Network::Vae(config.clone(), layout), "autoencoder", config)?, latent))
}

/// The tiny autoencoder; it must know the latents of the large one.
fn tiny_autoencoder(pick: &Pick, vae: &VaeConfig) -> Result<Part<TaesdConfig>, ModelError> {
    let Network::Taesd(config, layout) = pick.1.network.clone() else { unreachable!("picked as a tiny autoencoder") };
    if (config.latent, config.factor()) != (vae.latent, vae.factor()) {
        return Err(ModelError::Mismatch(format!(
            "{}: is a tiny autoencoder for {} channels at 1/{}; the model has {} at 1/{}",
            pick.0.path.display(),
            config.latent,
            config.factor(),
            vae.latent,
            vae.factor()
        )));
    }
    part(pick, Network::Taesd(config.clone(), layout), "tiny autoencoder", config)
}

/// What the text encoders give must be what the diffusion model reads.
fn check_widths(family: Family, unet: &UnetConfig, text: &[Part<ClipConfig>]) -> Result<(), ModelError> {
    let widths: Vec<String> = text.iter().map(|t| t.config.width.to_string()).collect();
    let sum: usize = text.iter().map(|t| t.config.width).sum();
    if sum != unet.context {
        let files: Vec<String> = text.iter().map(|t| t.path().display().to_string()).collect();
        return Err(ModelError::Mismatch(format!(
            "the text encoder gives {} numbers a token ({}), the diffusion model reads {}: they belong to different models",
            widths.join(" + "),
            files.join(", "),
            unet.context
        )));
    }
    let Some((added, last)) = unet.added.filter(|_| family == Family::Sdxl).zip(text.last()) else { return Ok(()) };
    let Some(pooled) = last.config.projection else {
        let problem = format!("{}: has no text projection, which Stable Diffusion XL reads", last.path().display());
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
fn check_channels(unet: &Part<UnetConfig>, vae: &Part<VaeConfig>) -> Result<(), ModelError> {
    let (takes, gives, latent) = (unet.config.in_channels, unet.config.out_channels, vae.config.latent);
    let problem = if gives != latent {
        format!("{}: gives {gives} channels, the autoencoder has {latent}", unet.path().display())
    } else if takes != latent && takes != 2 * latent + 1 {
        format!(
            "{}: takes {takes} channels; {latent} (pictures from text) and {} (inpainting) are supported, not models that are \
             guided by depth, by a picture to edit or by a small picture",
            unet.path().display(),
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

/// What is in a file, in a few words.
fn contents(source: &Source) -> String {
    if let Some(kind) = kind_of(&source.shapes) {
        return kind.into();
    }
    if !source.found.is_empty() {
        return source.found.iter().map(|f| f.network.to_string()).collect::<Vec<_>>().join("; ");
    }
    let names: Vec<&str> = source.shapes.keys().take(3).map(String::as_str).collect();
    match source.shapes.len() {
        0 => "no tensors".into(),
        n => format!("{n} tensors of an unknown kind ({}{})", names.join(", "), if n > 3 { ", ..." } else { "" }),
    }
}
