//! A worker's sources of weights: model files that it reads itself, what it keeps packed, or the parent.

use std::any::Any;
use std::fs::File;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use impasto_backend::{BackendError, Pulse};
use impasto_graph::Storage;
use impasto_weights::{
    Checkpoint, FileOrigin, FileStamp, ParamError, ParamInfo, SharedSource, WeightSource, WeightsError,
};

use crate::memory;
use crate::message::{Failure, GivenParam, Payload, Reply};
use crate::serve::Out;

/// The answer to a request for a parameter, and its bytes.
pub(crate) type Answer = (Result<GivenParam, Failure>, Vec<u8>);

/// A file that cannot be used, as an error of the device that needs it.
pub(crate) fn unreadable(error: WeightsError) -> BackendError {
    match error {
        WeightsError::File(error) => BackendError::File(error),
        other => BackendError::Setting(other.to_string()),
    }
}

/// Model files that are open, as long as somebody needs them.
#[derive(Default)]
pub(crate) struct Files(Vec<(Vec<FileStamp>, Weak<Checkpoint>)>);

impl Files {
    /// The parameters that were described.
    pub fn open(&mut self, origin: &FileOrigin) -> Result<SharedSource, BackendError> {
        self.0.retain(|(_, checkpoint)| checkpoint.strong_count() > 0);
        let open = self.0.iter().find(|(stamps, _)| *stamps == origin.files).and_then(|(_, open)| open.upgrade());
        let checkpoint = match open {
            Some(checkpoint) => checkpoint,
            None => {
                let opened = Checkpoint::reopen(&origin.files).map_err(unreadable)?;
                let opened = Arc::new(opened);
                self.0.push((origin.files.clone(), Arc::downgrade(&opened)));
                opened
            }
        };
        Ok(Arc::new(origin.open(&checkpoint).map_err(unreadable)?))
    }
}

/// Parameters that the parent gives when it is asked.
pub(crate) struct AskParent {
    pub out: Out,
    pub answers: Arc<Mutex<Receiver<Answer>>>,
    pub memory: Option<Arc<File>>,
}

impl AskParent {
    /// Asks for a parameter and some of its bytes.
    fn ask(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(ParamInfo, Option<Vec<u32>>), ParamError> {
        let gone = || ParamError::Gone { reason: "the parent is gone".into() };
        let wrong = |problem: String| ParamError::Wrong { name: name.into(), problem };
        // Held until the bytes are here, so that each asker gets its own.
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let question = Reply::NeedParam { name: name.into(), offset, bytes: out.len() as u64 };
        self.out.say(&question, &[]).map_err(|_| gone())?;
        let (answer, tail) = answers.recv().map_err(|_| gone())?;
        let given = answer.map_err(ParamError::from)?;
        let storage: Storage = given.storage.parse().map_err(wrong)?;
        let elsewhere = || wrong("is not where it is said to be".into());
        match (given.lies, &self.memory) {
            (Payload::Tail, _) if tail.len() == out.len() => out.copy_from_slice(&tail),
            (Payload::Memory(at), Some(file)) => memory::read(file, at, out).map_err(|_| elsewhere())?,
            _ => return Err(elsewhere()),
        }
        Ok((ParamInfo { storage, shape: given.shape, bytes: given.bytes }, given.row_scales))
    }
}

impl WeightSource for AskParent {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        self.ask(name, 0, &mut []).map(|(info, _)| info)
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        let (_, scales) = self.ask(name, 0, &mut [])?;
        Ok(scales.map(|bits| bits.into_iter().map(f32::from_bits).collect()))
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        self.ask(name, offset, out).map(drop)
    }
}

/// A source that is watched while it is read: once, or by streamed weights in as many runs as there are.
pub(crate) struct Watched {
    pub source: SharedSource,
    pub pulse: Pulse,
    /// Is told of each parameter read.
    pub tell: Option<Out>,
}

impl Watched {
    fn go_on(&self) -> Result<(), ParamError> {
        self.pulse.beat();
        match self.pulse.must_stop() {
            true => Err(ParamError::Interrupted { reader: "worker".into() }),
            false => Ok(()),
        }
    }
}

impl WeightSource for Watched {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        self.source.describe(name)
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        self.source.row_scales(name)
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        self.go_on()?;
        self.source.read_into(name, offset, out)
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        self.source.in_memory(name)
    }

    fn check(&self) -> Result<(), ParamError> {
        self.source.check()
    }

    fn was_read(&self, name: &str, elements: u64) -> Result<(), ParamError> {
        if let Some(out) = &self.tell {
            // A parent that is gone is noticed elsewhere.
            let _ = out.say(&Reply::WasRead { name: name.into(), elements }, &[]);
        }
        self.go_on()
    }

    fn packed(&self, name: &str) -> Option<&[u8]> {
        self.pulse.beat();
        self.source.packed(name)
    }

    fn host_mapped(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.pulse.beat();
        self.source.host_mapped()
    }
}
