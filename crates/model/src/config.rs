//! What a diffusers folder says in JSON beside the weights: the few facts that shapes cannot tell, and those that must hold.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::ModelError;

/// No real file comes near this.
const MAX_BYTES: u64 = 1 << 20;

/// One JSON file with an object in it.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    fields: Map<String, Value>,
}

impl Config {
    /// The file, or nothing where there is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Config>, ModelError> {
        let wrong = |problem: String| ModelError::Json { path: path.into(), problem };
        let file = match impasto_weights::open_file(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(wrong(format!("cannot be opened: {e}"))),
        };
        let mut text = vec![];
        file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(format!("has more than {MAX_BYTES} bytes, too many for a configuration")));
        }
        match serde_json::from_slice(&text) {
            Ok(Value::Object(fields)) => Ok(Some(Config { path: path.into(), fields })),
            Ok(_) => Err(wrong("is no JSON object".into())),
            Err(e) => Err(wrong(format!("is no JSON: {e}"))),
        }
    }

    pub(crate) fn wrong(&self, field: &str, problem: String) -> ModelError {
        ModelError::Setting { path: self.path.clone(), field: field.into(), problem }
    }

    /// A field that is there and not null.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|v| !v.is_null())
    }

    /// The object in a field, as a configuration of its own.
    pub(crate) fn part(&self, field: &str) -> Result<Option<Config>, ModelError> {
        self.typed(field, "an object", |v| v.as_object().cloned())
            .map(|fields| fields.map(|fields| Config { path: self.path.clone(), fields }))
    }

    /// A field as `read` understands it.
    pub(crate) fn typed<T>(
        &self,
        field: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => {
                let wrong = || self.wrong(field, format!("is {}, {what} is needed", short(value)));
                read(value).map(Some).ok_or_else(wrong)
            }
        }
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&str>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(field, format!("is {}, a text is needed", short(other)))),
        }
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, ModelError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    /// A number that can be computed with.
    pub(crate) fn number(&self, field: &str) -> Result<Option<f32>, ModelError> {
        let read = |v: &Value| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        self.typed(field, "a number that fits 32 bits", read)
    }

    /// A count: from one to a few thousand.
    pub(crate) fn count(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, COUNT, count)
    }

    /// A field that may be one count or a list of them.
    pub(crate) fn counts(&self, field: &str) -> Result<Option<Vec<usize>>, ModelError> {
        self.typed(field, "a count or a list of counts", |v| match v {
            Value::Array(list) => list.iter().map(count).collect(),
            one => count(one).map(|n| vec![n]),
        })
    }

    /// Refuse a size that is not the one that the tensors have: layers are missing, or the configuration is of another model. A list of several
    /// is compared one by one, a single number with each.
    pub(crate) fn same_sizes(&self, field: &str, tensors: &[usize]) -> Result<(), ModelError> {
        let number = |v: &Value, n: usize| v.as_u64() == Some(n as u64);
        let same = |value: &Value| match value {
            Value::Array(list) => list.len() == tensors.len() && list.iter().zip(tensors).all(|(v, n)| number(v, *n)),
            one => tensors.iter().all(|n| number(one, *n)),
        };
        let Some(value) = self.get(field).filter(|value| !same(value)) else { return Ok(()) };
        let ours = match tensors {
            [first, rest @ ..] if rest.iter().all(|n| n == first) => first.to_string(),
            all => format!("{all:?}"),
        };
        let problem = "the weights are incomplete, or the configuration is of another model";
        Err(self.wrong(field, format!("is {}, the weights have {ours}: {problem}", short(value))))
    }

    /// Refuse values that our graphs do not compute. What is absent or null is the default, which they do.
    pub(crate) fn only(&self, known: &[(&str, Value)]) -> Result<(), ModelError> {
        for (field, value) in known {
            let same = |given: &Value| match (given.as_f64(), value.as_f64()) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * b.abs(),
                _ => given == value,
            };
            if let Some(given) = self.get(field).filter(|given| !same(given)) {
                return Err(self.wrong(field, format!("is {}; only {value} is supported", short(given))));
            }
        }
        Ok(())
    }

    /// Refuse what is not null.
    pub(crate) fn none(&self, fields: &[&str]) -> Result<(), ModelError> {
        for field in fields {
            if let Some(value) = self.get(field) {
                return Err(self.wrong(field, format!("is {}; it is not supported", short(value))));
            }
        }
        Ok(())
    }
}

const COUNT: &str = "a whole number from 1 to 4096";

fn count(value: &Value) -> Option<usize> {
    value.as_u64().filter(|n| (1..=4096).contains(n)).map(|n| n as usize)
}

/// A value as an error shows it.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text,
    }
}
