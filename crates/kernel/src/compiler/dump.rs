//! A folder for each compilation: the kernels after each stage, numbered in order, and `shipped.*`, exactly the bytes that were shipped, or `FAILED`
//! with the error. A compilation that was cut short has neither.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{CompiledModule, Messages};
use crate::error::KernelError;
use crate::ir::Kernel;

pub(super) struct Dump<'a> {
    /// None once it could not be written to.
    folder: Option<PathBuf>,
    stages: u32,
    messages: &'a Messages,
}

impl<'a> Dump<'a> {
    /// Begins a compilation. Without a folder nothing is dumped.
    pub(super) fn begin(folder: Option<&Path>, kernels: &[Kernel], messages: &'a Messages) -> Dump<'a> {
        let mut dump = Dump { folder: None, stages: 0, messages };
        if let Some(folder) = folder {
            match own(folder, kernels) {
                Ok(own) => dump.folder = Some(own),
                Err(error) => dump.trouble(folder, &error),
            }
        }
        dump
    }

    pub(super) fn is_on(&self) -> bool {
        self.folder.is_some()
    }

    fn trouble(&mut self, folder: &Path, error: &io::Error) {
        self.folder = None;
        self.messages.say(format!("{} cannot be written to ({error}): the dump is not complete", folder.display()));
    }

    fn write(&mut self, name: &str, bytes: &[u8]) {
        let Some(folder) = self.folder.clone() else { return };
        if let Err(error) = impasto_store::put(&folder.join(name), bytes) {
            self.trouble(&folder, &error);
        }
    }

    /// A kernel as this stage has made it.
    pub(super) fn stage(&mut self, name: &str, kernel: &Kernel) {
        if self.is_on() {
            let file = format!("{:03}-{}-{name}.txt", self.stages, plain(&kernel.name));
            self.stages += 1;
            self.write(&file, kernel.to_string().as_bytes());
        }
    }

    /// How it ended.
    pub(super) fn end(mut self, made: &Result<CompiledModule, KernelError>) {
        match made {
            Ok(module) => self.write(&format!("shipped.{}", module.kind.extension()), &module.bytes),
            Err(error) => self.write("FAILED", format!("{error}\n").as_bytes()),
        }
    }
}

/// A name that is one for files, too.
fn plain(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// A new folder for this compilation, named after its first kernel.
fn own(folder: &Path, kernels: &[Kernel]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let mut name = kernels.first().map_or_else(|| "nothing".to_owned(), |k| plain(&k.name));
    if kernels.len() > 1 {
        name = format!("{name}-and-{}", kernels.len() - 1);
    }
    for number in 1u32.. {
        let own = if number == 1 { folder.join(&name) } else { folder.join(format!("{name}-{number}")) };
        match fs::create_dir(&own) {
            Ok(()) => return Ok(own),
            // Another compilation has it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
