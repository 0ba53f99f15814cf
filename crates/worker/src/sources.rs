//! Where a worker has weights from: model files that it maps itself, what it keeps packed, or the parent.

use std::any::Any;
use std::borrow::Cow;
use std::fs::File;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use impasto_backend::{BackendError, Origin, ParamBytes, Pulse, SharedSource, WeightSource};
use impasto_graph::Storage;
use impasto_weights::{Checkpoint, Stamp};

use crate::memory;
use crate::message::{Failure, GivenParam, Reply, Where};
use crate::serve::Out;

/// An answer to a question for a parameter, and the bytes behind it.
pub(crate) type Answer = (Result<GivenParam, Failure>, Vec<u8>);

/// Model files that are open, as long as somebody needs them.
#[derive(Default)]
pub(crate) struct Files(Vec<(Vec<Stamp>, Weak<Checkpoint>)>);

impl Files {
    /// The network that was described.
    pub fn open(&mut self, described: &str) -> Result<SharedSource, BackendError> {
        let wrong = |problem: String| BackendError::Setting(problem);
        let origin: impasto_model::Origin =
            serde_json::from_str(described).map_err(|e| wrong(format!("a network was described wrongly: {e}")))?;
        self.0.retain(|(_, checkpoint)| checkpoint.strong_count() > 0);
        let open = self.0.iter().find(|(stamps, _)| stamps == origin.files()).and_then(|(_, open)| open.upgrade());
        let checkpoint = match open {
            Some(checkpoint) => checkpoint,
            None => {
                let opened = Checkpoint::reopen(origin.files()).map_err(|e| wrong(e.to_string()))?;
                let opened = Arc::new(opened);
                self.0.push((origin.files().to_vec(), Arc::downgrade(&opened)));
                opened
            }
        };
        Ok(Arc::new(origin.open(&checkpoint).map_err(|e| wrong(e.to_string()))?))
    }
}

/// Parameters that the parent gives when it is asked.
pub(crate) struct AskParent {
    pub out: Out,
    pub answers: Arc<Mutex<Receiver<Answer>>>,
    pub memory: Option<Arc<File>>,
}

impl WeightSource for AskParent {
    fn read(&self, name: &str) -> Result<ParamBytes<'_>, BackendError> {
        let gone = || BackendError::Lost { device: "host".into(), reason: "the parent is gone".into() };
        let wrong = |problem: String| BackendError::Param { name: name.into(), problem };
        // Held until the answer is there, so that each asker gets its own.
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.out.say(&Reply::NeedParam { name: name.into() }, &[]).map_err(|_| gone())?;
        let (answer, tail) = answers.recv().map_err(|_| gone())?;
        let given = answer.map_err(|failure| failure.on("host"))?;
        let storage: Storage = given.storage.parse().map_err(wrong)?;
        let bytes = match (given.lies, &self.memory) {
            (Where::Tail, _) => tail,
            (Where::Memory(at), Some(file)) => {
                // No file is shorter than what is said to be in it: what is announced is not believed before.
                let there = file.metadata().map_or(0, |data| data.len());
                if at.checked_add(given.bytes).is_none_or(|end| end > there) {
                    return Err(wrong("is not where it is said to be".into()));
                }
                let mut bytes = vec![0; given.bytes as usize];
                memory::read(file, at, &mut bytes).map_err(|e| wrong(e.to_string()))?;
                bytes
            }
            (Where::Memory(_), None) => return Err(wrong("is not where it is said to be".into())),
        };
        Ok(ParamBytes { storage, shape: given.shape, bytes: Cow::Owned(bytes) })
    }
}

/// A source that is watched while it is read: once, or by weights that take turns in as many runs as there are.
pub(crate) struct Watched {
    pub source: SharedSource,
    pub pulse: Pulse,
    /// Who is to hear of each parameter.
    pub tell: Option<Out>,
}

impl WeightSource for Watched {
    fn read(&self, name: &str) -> Result<ParamBytes<'_>, BackendError> {
        if self.pulse.must_stop() {
            return Err(BackendError::Interrupted { device: "worker".into() });
        }
        let given = self.source.read(name)?;
        self.pulse.beat();
        if let Some(out) = &self.tell {
            let elements = given.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
            // Who is gone hears nothing; that is noticed elsewhere.
            let _ = out.say(&Reply::WasRead { name: name.into(), elements }, &[]);
        }
        Ok(given)
    }

    fn release(&self, name: &str) {
        self.source.release(name);
    }

    fn packed(&self, name: &str) -> Option<&[u8]> {
        self.pulse.beat();
        self.source.packed(name)
    }

    fn near(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.pulse.beat();
        self.source.near()
    }
}

/// Whether the parent hears of parameters only from us.
pub(crate) fn reads_itself(source: &crate::message::Source) -> bool {
    matches!(source, crate::message::Source::Origin(Origin::Model(_)))
}
