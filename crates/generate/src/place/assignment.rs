//! The grammar of `--backend` and `--params-backend`: `te=cpu,diffusion=vulkan0`.
//!
//! Items stand between commas, empty ones are skipped, the last one for a module wins. A bare item, `all=`, `default=` and `*=` are for
//! every module that has no item of its own.

use std::fmt;
use std::ops::Range;

use super::names::{ModuleName, nearest};

/// Which of the two flags a text is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// `--backend`: where modules compute.
    Runtime,
    /// `--params-backend`: where their weights are kept.
    Weights,
}

impl Of {
    fn flag(self) -> &'static str {
        match self {
            Of::Runtime => "--backend",
            Of::Weights => "--params-backend",
        }
    }
}

/// A text that places nothing, or something where it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.shown())]
pub struct AssignmentError {
    /// The flag.
    pub flag: &'static str,
    /// What was written.
    pub text: String,
    /// The place in it that is wrong, in bytes.
    pub span: Range<usize>,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Nothing stands before `=`.
    NoModule,
    /// More than one `=`.
    TwoDevices,
    /// A name that no module has.
    UnknownModule {
        /// Names like it.
        near: Vec<String>,
    },
    /// A name that no device has.
    NoSuchDevice {
        /// Names like it.
        near: Vec<String>,
        /// The devices that are here.
        found: Vec<String>,
    },
    /// The beginning of several names.
    Ambiguous {
        /// The devices that it may mean.
        candidates: Vec<String>,
    },
    /// Nothing computes in a file.
    DiskComputes,
    /// A list of devices that lacks one.
    BrokenList,
    /// A list of devices.
    List {
        /// The devices.
        devices: Vec<String>,
    },
    /// No GPU is here.
    NoGpu {
        /// The devices that are here.
        found: Vec<String>,
    },
    /// A device that is here and cannot be used.
    Unusable {
        /// The device.
        device: String,
        /// Why not.
        why: String,
    },
    /// Weights on a device on which their module does not compute.
    Apart {
        /// The module.
        module: ModuleName,
        /// Where it computes.
        runtime: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or = |names: &[String]| names.join(" or ");
        match self {
            Problem::NoModule => {
                f.write_str("a module is missing before '='; a device for all of them stands alone or after all=")
            }
            Problem::TwoDevices => f.write_str("one module, one '=', one device; items stand between commas"),
            Problem::UnknownModule { near } => {
                let known = ModuleName::our_names().collect::<Vec<_>>().join(", ");
                match near.as_slice() {
                    [] => write!(f, "there is no such module; there are {known}"),
                    near => write!(f, "there is no such module; did you mean {}? There are {known}", or(near)),
                }
            }
            Problem::NoSuchDevice { near, found } => {
                let found = found.join(", ");
                match near.as_slice() {
                    [] => write!(f, "there is no such device here; found: {found}"),
                    near => write!(f, "there is no such device here; did you mean {}? Found: {found}", or(near)),
                }
            }
            Problem::Ambiguous { candidates } => {
                write!(f, "this begins several names: {}; write one of them", candidates.join(", "))
            }
            Problem::DiskComputes => f.write_str("nothing computes on disk; disk is for --params-backend"),
            Problem::BrokenList => f.write_str("a device is missing beside '&'"),
            Problem::List { devices } => {
                write!(f, "one module on several devices ({}) is not supported yet; name one", devices.join(", "))
            }
            Problem::NoGpu { found } => write!(f, "no GPU that can be used is here; found: {}", found.join(", ")),
            Problem::Unusable { device, why } => write!(f, "{device}: {why}"),
            Problem::Apart { module, runtime } => write!(
                f,
                "{module} computes on {runtime}: its weights can be kept there, on cpu (host memory) or on disk"
            ),
        }
    }
}

impl AssignmentError {
    /// The text, a caret under the place, and the reason.
    fn shown(&self) -> String {
        let letters = |range: Range<usize>| self.text.get(range).map_or(0, |part| part.chars().count());
        let (before, wide) = (letters(0..self.span.start), letters(self.span.clone()).max(1));
        format!("{}: {}\n  {}\n  {}{}", self.flag, self.problem, self.text, " ".repeat(before), "^".repeat(wide))
    }
}

/// What one item says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The module; none is for all.
    pub module: Option<ModuleName>,
    /// The device as it was written, in small letters, and where.
    pub device: String,
    pub span: Range<usize>,
}

/// A text, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    of: Of,
    text: String,
    items: Vec<Item>,
}

impl Assignment {
    /// Read the text of one of the flags.
    ///
    /// ```
    /// use impasto_generate::place::{Assignment, ModuleName, Of};
    /// let read = Assignment::parse(Of::Runtime, "vulkan0, TE=cpu,,Text-Encoder=cuda0").unwrap();
    /// assert_eq!(read.device(ModuleName::Te), Some("cuda0"));
    /// assert_eq!(read.device(ModuleName::Vae), Some("vulkan0"));
    /// let wrong = Assignment::parse(Of::Runtime, "te=cpu,unt=vulkan0").unwrap_err();
    /// assert_eq!(wrong.span, 7..10);
    /// ```
    pub fn parse(of: Of, text: &str) -> Result<Assignment, AssignmentError> {
        let mut read = Assignment { text: text.into(), ..Assignment::empty(of) };
        let mut at = 0;
        for item in text.split(',') {
            if !item.trim().is_empty() {
                let item = read.item(at, item)?;
                read.items.push(item);
            }
            at += item.len() + 1;
        }
        Ok(read)
    }

    /// Nothing said.
    pub(super) fn empty(of: Of) -> Assignment {
        Assignment { of, text: String::new(), items: vec![] }
    }

    fn item(&self, at: usize, text: &str) -> Result<Item, AssignmentError> {
        let mut parts = text.split('=');
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        let span = |start: usize, part: &str| {
            let begin = at + start + (part.len() - part.trim_start().len());
            begin..begin + part.trim().len()
        };
        if parts.next().is_some() {
            return Err(self.wrong(span(0, text), Problem::TwoDevices));
        }
        let (module, device, span) = match second {
            None => (None, first, span(0, first)),
            Some(device) => {
                let place = span(0, first);
                let key = first.trim().to_lowercase();
                let module = match key.as_str() {
                    "" => return Err(self.wrong(span(0, text), Problem::NoModule)),
                    "all" | "default" | "*" => None,
                    _ => Some(ModuleName::named(&key).ok_or_else(|| {
                        let near = nearest(&key, ModuleName::all_names()).into_iter().map(Into::into).collect();
                        self.wrong(place, Problem::UnknownModule { near })
                    })?),
                };
                (module, device, span(first.len() + 1, device))
            }
        };
        let device = device.trim().to_lowercase();
        if self.of == Of::Runtime && device == "disk" {
            return Err(self.wrong(span, Problem::DiskComputes));
        }
        if device.contains('&') {
            let devices: Vec<String> = device.split('&').map(|one| one.trim().to_owned()).collect();
            let broken = devices.iter().any(String::is_empty);
            return Err(self.wrong(span, if broken { Problem::BrokenList } else { Problem::List { devices } }));
        }
        Ok(Item { module, device, span })
    }

    /// The same after what an alias such as `--vae-on-cpu` says: items that were written win.
    pub fn behind(mut self, module: Option<ModuleName>, device: &str) -> Assignment {
        self.items.insert(0, Item { module, device: device.into(), span: 0..0 });
        self
    }

    /// An error at a place of the text.
    pub(super) fn wrong(&self, span: Range<usize>, problem: Problem) -> AssignmentError {
        AssignmentError { flag: self.of.flag(), text: self.text.clone(), span, problem }
    }

    /// The item that counts for a module: the last of its own, else the last for all.
    pub(super) fn item_of(&self, module: ModuleName) -> Option<&Item> {
        let last = |wanted: Option<ModuleName>| self.items.iter().rfind(|item| item.module == wanted);
        last(Some(module)).or_else(|| last(None))
    }

    /// What is said of a module, as it was written but for its case.
    pub fn device(&self, module: ModuleName) -> Option<&str> {
        self.item_of(module).map(|item| item.device.as_str())
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Every device that is named.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(|item| item.device.as_str())
    }

    /// Every module that is named.
    pub fn modules(&self) -> impl Iterator<Item = ModuleName> {
        self.items.iter().filter_map(|item| item.module)
    }
}
