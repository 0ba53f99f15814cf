//! Which networks are in the files that the user named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use impasto_weights::{ElementType, WeightsError};

use crate::config::Config;
use crate::families::Family;
use crate::networks::{Network, NetworkKind, RecognisedNetwork, foreign_kind};
use crate::source::{SourceFile, is_whole_folder};
use crate::{ModelError, ModelPaths, OpenNetwork};

/// A network and the file that it was found in.
#[derive(Clone)]
pub struct NetworkInFile {
    pub(crate) source: Arc<SourceFile>,
    pub(crate) found: RecognisedNetwork,
}

/// A text encoder, and the folder of its tokenizer where there is one.
pub type TextEncoderInFile = (NetworkInFile, Option<PathBuf>);

/// The networks in the files that the user named, before a family has put them together.
pub struct Discovered {
    /// What the user named first.
    pub named: PathBuf,
    /// The denoiser.
    pub denoiser: Option<NetworkInFile>,
    /// Text encoders, in the order of the file or folder.
    pub text: Vec<TextEncoderInFile>,
    /// Text encoders that have a flag of their own: the flag, and those in its file, at least one.
    pub named_text: Vec<(&'static str, Vec<NetworkInFile>)>,
    /// The autoencoder.
    pub autoencoder: Option<NetworkInFile>,
    /// The tiny autoencoder.
    pub tiny_autoencoder: Option<NetworkInFile>,
    pub(crate) sources: Vec<Arc<SourceFile>>,
    /// `scheduler_config.json` of a folder.
    pub(crate) scheduler: Option<Config>,
    /// The class of pipeline that a folder says it is.
    class: Option<String>,
}

impl NetworkInFile {
    /// The network, if it is of this type.
    pub fn network<T: Network + Clone>(&self) -> Option<T> {
        self.found.network.downcast::<T>().cloned()
    }

    /// Find every parameter of `network`, which is the one found or that with what shapes cannot say.
    pub fn open(&self, network: impl Network, what: &'static str) -> Result<Arc<OpenNetwork>, ModelError> {
        let found = RecognisedNetwork { network: Arc::new(network), prefix: self.found.prefix.clone() };
        let SourceFile { path, checkpoint, shapes, .. } = &*self.source;
        Ok(Arc::new(OpenNetwork::new(what, &found, path, checkpoint, shapes)?))
    }

    /// Where the file keeps a parameter, without the prefix.
    pub(crate) fn stored(&self, parameter: &str) -> String {
        let has = |name: &str| self.source.shapes.contains_key(&format!("{}{name}", self.found.prefix));
        self.found.network.stored(parameter, &has).name
    }

    /// A short tensor of the network's file, without the prefix, as numbers; nothing if it is not there or not of floats.
    pub(crate) fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let checkpoint = &self.source.checkpoint;
        let Some(tensor) = checkpoint.tensor(&format!("{}{name}", self.found.prefix)) else { return Ok(None) };
        let bytes = checkpoint.read_all(tensor).map_err(WeightsError::from)?;
        let halves = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
        Ok(match tensor.element {
            ElementType::F32 => {
                Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
            }
            ElementType::F16 => Some(halves.map(|b| f16::from_le_bytes(b).into()).collect()),
            ElementType::BF16 => Some(halves.map(|b| bf16::from_le_bytes(b).into()).collect()),
            _ => None,
        })
    }

    /// What the file says of itself under this key.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.source.says(key)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }
}

impl Discovered {
    fn empty(named: &Path) -> Discovered {
        Discovered {
            named: named.into(),
            denoiser: None,
            text: vec![],
            named_text: vec![],
            autoencoder: None,
            tiny_autoencoder: None,
            sources: vec![],
            scheduler: None,
            class: None,
        }
    }

    /// Look into all that the user named.
    pub(crate) fn of_paths(families: &[&dyn Family], paths: &ModelPaths) -> Result<Discovered, ModelError> {
        let named = paths.model.as_ref().or(paths.diffusion.as_ref()).ok_or(ModelError::NothingNamed)?;
        let mut files = Discovered::empty(named);
        match &paths.model {
            Some(folder) if folder.is_dir() && is_whole_folder(folder) => files.take_folder(families, folder, paths)?,
            Some(file) => files.take_file(SourceFile::open(families, file)?),
            None => {}
        }
        if let Some(path) = &paths.diffusion {
            files.denoiser = Some(files.component(families, path, NetworkKind::Denoiser)?);
        }
        if let Some(path) = &paths.vae {
            files.autoencoder = Some(files.component(families, path, NetworkKind::Autoencoder)?);
        }
        if let Some(path) = &paths.taesd {
            files.tiny_autoencoder = Some(files.component(families, path, NetworkKind::TinyAutoencoder)?);
        }
        for (flag, path) in paths.named_text() {
            let Some(path) = path else { continue };
            let source = files.component(families, path, NetworkKind::TextEncoder)?.source;
            files.named_text.push((flag, picks(&source, NetworkKind::TextEncoder).collect()));
        }
        Ok(files)
    }

    /// Look into one file that is open.
    pub(crate) fn of_source(source: SourceFile) -> Discovered {
        let mut files = Discovered::empty(&source.path.clone());
        files.take_file(Arc::new(source));
        files
    }

    /// Everything in one file.
    fn take_file(&mut self, source: Arc<SourceFile>) {
        let first = |kind| picks(&source, kind).next();
        self.text.extend(picks(&source, NetworkKind::TextEncoder).map(|pick| (pick, None)));
        self.denoiser = first(NetworkKind::Denoiser);
        self.autoencoder = first(NetworkKind::Autoencoder);
        self.tiny_autoencoder = first(NetworkKind::TinyAutoencoder);
        self.sources.push(source);
    }

    /// The components of a diffusers folder that the user has not named elsewhere.
    fn take_folder(&mut self, families: &[&dyn Family], folder: &Path, paths: &ModelPaths) -> Result<(), ModelError> {
        if let Some(index) = Config::read(&folder.join("model_index.json"))? {
            self.class = index.text("_class_name")?.map(Into::into);
        }
        let there = |name: &str| Some(folder.join(name)).filter(|path| path.is_dir());
        if paths.diffusion.is_none() {
            self.denoiser = match there("unet") {
                Some(path) => Some(self.component(families, &path, NetworkKind::Denoiser)?),
                // What is in here and not known is told by the class of the pipeline.
                None => there("transformer").and_then(|p| self.component(families, &p, NetworkKind::Denoiser).ok()),
            };
        }
        if let Some(path) = there("vae").filter(|_| paths.vae.is_none()) {
            self.autoencoder = Some(self.component(families, &path, NetworkKind::Autoencoder)?);
        }
        for (text, tokenizer) in
            [("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2"), ("text_encoder_3", "tokenizer_3")]
        {
            let Some(path) = there(text) else { continue };
            let elsewhere = paths.named_text().iter().any(|(_, path)| path.is_some());
            match self.component(families, &path, NetworkKind::TextEncoder) {
                Ok(pick) => self.text.push((pick, there(tokenizer))),
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
        families: &[&dyn Family],
        path: &Path,
        kind: NetworkKind,
    ) -> Result<NetworkInFile, ModelError> {
        let source = SourceFile::open(families, path)?;
        let pick = picks(&source, kind).next();
        let incomplete = || source.incomplete(kind).filter(|_| foreign_kind(&source.shapes).is_none());
        let unknown =
            || ModelError::Unknown { path: source.path.clone(), wanted: kind.name(), found: contents(&source) };
        let pick = pick.ok_or_else(|| incomplete().unwrap_or_else(unknown))?;
        self.sources.push(source);
        Ok(pick)
    }

    /// The name that the denoiser's file gives the model, else the name of the file or folder.
    pub fn title(&self) -> String {
        match self.denoiser.as_ref().and_then(|pick| pick.metadata("modelspec.title")) {
            Some(title) => title.to_string(),
            None => self.named.file_stem().unwrap_or(self.named.as_os_str()).to_string_lossy().into_owned(),
        }
    }

    /// Networks that nobody has given, each with the flag that gives it, as an error. One that is there in part is told by what it lacks.
    pub fn missing(&self, parts: &[(&'static str, &'static str)]) -> ModelError {
        let kinds = parts.iter().filter_map(|(_, flag)| NetworkKind::of_flag(flag));
        let mut all = kinds.flat_map(|kind| self.sources.iter().filter_map(move |source| source.incomplete(kind)));
        if let Some(incomplete) = all.next() {
            return incomplete;
        }
        ModelError::MissingParts { from: self.named.display().to_string(), parts: parts.to_vec() }
    }

    /// There is no denoiser that a family knows: say what there is.
    pub(crate) fn no_denoiser(&self) -> ModelError {
        let unsupported = |what| ModelError::Unsupported { path: self.named.clone(), what };
        let missing = || self.missing(&[(NetworkKind::Denoiser.name(), "--diffusion-model")]);
        if let Some(what) = self.sources.iter().find_map(|s| foreign_kind(&s.shapes)) {
            return unsupported(format!("it is {what}, which is not supported"));
        }
        if let Some(error) = self.sources.iter().find_map(|source| source.incomplete(NetworkKind::Denoiser)) {
            return error;
        }
        match &self.class {
            Some(class) if self.named.join("transformer").is_dir() => {
                unsupported(format!("it is a {class}, which is not supported"))
            }
            Some(_) => missing(),
            None if self.sources.iter().any(|s| !s.found.is_empty()) => missing(),
            None => {
                let found = self.sources.iter().map(|s| contents(s)).collect::<Vec<_>>().join("; ");
                let found = if found.is_empty() { "nothing".into() } else { found };
                ModelError::Unknown { path: self.named.clone(), wanted: NetworkKind::Denoiser.name(), found }
            }
        }
    }
}

/// The networks of one kind in a file.
fn picks(source: &Arc<SourceFile>, kind: NetworkKind) -> impl Iterator<Item = NetworkInFile> + '_ {
    let found = source.found.iter().filter(move |found| found.network.kind() == kind);
    found.map(|found| NetworkInFile { source: source.clone(), found: found.clone() })
}

/// What is in a file, in a few words.
fn contents(source: &SourceFile) -> String {
    if let Some(kind) = foreign_kind(&source.shapes) {
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
