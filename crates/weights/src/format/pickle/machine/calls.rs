//! What the calls in a pickle would make, without calling: storages, tensors and dictionaries.

use super::super::MAX_RANK;
use super::super::globals::{dtype, storage_type};
use super::{Fault, Machine, Outcome, SLOT, Storage, Tensor, Value};

impl Machine<'_> {
    /// What a pickle leaves to its reader: `("storage", class, key, device, count)`.
    pub(super) fn persistent(&mut self, id: Value) -> Outcome<()> {
        let no_storage = || Fault::At(self.opcode_at, "a storage of a tensor is described wrongly".into());
        let values = self.values_of(id).ok_or_else(no_storage)?;
        let (class, key, count) = match *values {
            [kind, class, key, _device, Value::Integer(count)] if self.text_of(kind) == Some("storage") => {
                (class, key, count)
            }
            [kind, class, key, _device, Value::Integer(count), Value::None]
                if self.text_of(kind) == Some("storage") =>
            {
                (class, key, count)
            }
            [kind, _, _, _, _, _] if self.text_of(kind) == Some("storage") => {
                return self
                    .wrong("a storage is a view of another, as only very old files have it: save the model again");
            }
            _ => return Err(no_storage()),
        };
        let (module, name) = self.names(class).ok_or_else(no_storage)?;
        let element = storage_type(module, name).ok_or_else(no_storage)?;
        let key = match key {
            Value::Integer(n) => n.to_string(),
            text => self.text_of(text).ok_or_else(no_storage)?.to_string(),
        };
        let count = u64::try_from(count).map_err(|_| no_storage())?;
        let number = match self.by_key.get(&key).copied() {
            Some(number) => {
                let known = &self.storages[number as usize];
                if (known.element, known.count) != (element, count) {
                    return self.wrong(format!("the storage '{key}' is described twice, and not the same"));
                }
                number
            }
            None => {
                self.spend(2 * (size_of::<Storage>() + 2 * key.len() + 64))?;
                self.by_key.insert(key.clone(), self.storages.len() as u32);
                self.storages.push(Storage { key, element, count });
                self.storages.len() as u32 - 1
            }
        };
        self.push(Value::Storage(number))
    }

    /// What a call gives, without calling.
    pub(super) fn call(&mut self, callable: Value, arguments: Value) -> Outcome<Value> {
        let Some((module, name)) = self.names(callable) else {
            return match callable {
                Value::Opaque | Value::Global(_) => Ok(Value::Opaque),
                _ => self.wrong("something is called that is no function"),
            };
        };
        let first = self.values_of(arguments).and_then(|values| values.first().copied());
        match (module, name) {
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3") => {
                self.tensor(arguments, name == "_rebuild_tensor_v3")
            }
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") | ("torch.nn.parameter", _) => {
                Ok(first.unwrap_or(Value::Opaque))
            }
            ("torch._tensor", "_rebuild_from_type_v2") => {
                let values = self.values_of(arguments).unwrap_or_default();
                match *values {
                    // One level: what calls itself is nothing that torch writes.
                    [function, _class, arguments, _state] if !self.is_typed_rebuild(function) => {
                        self.call(function, arguments)
                    }
                    _ => self.wrong("a tensor of a class of its own is described wrongly"),
                }
            }
            ("torch", "Size") => Ok(first.unwrap_or(Value::Opaque)),
            ("collections", "OrderedDict" | "defaultdict" | "Counter") | ("builtins" | "__builtin__", "dict") => {
                let pairs = self.pairs_from(first.unwrap_or(Value::None))?;
                self.dict(pairs)
            }
            _ => Ok(Value::Opaque),
        }
    }

    fn is_typed_rebuild(&self, function: Value) -> bool {
        self.names(function).is_some_and(|(_, name)| name == "_rebuild_from_type_v2")
    }

    /// What a dictionary is made of: nothing, another one, or a list of pairs.
    fn pairs_from(&mut self, given: Value) -> Outcome<Vec<(Value, Value)>> {
        let count = self.pairs_of(given).map(<[_]>::len).or(self.values_of(given).map(<[_]>::len)).unwrap_or(0);
        self.spend(2 * SLOT * count)?;
        if let Some(pairs) = self.pairs_of(given) {
            return Ok(pairs.to_vec());
        }
        let pair = |value: &Value| match self.values_of(*value) {
            Some(&[key, value]) => Some((key, value)),
            _ => None,
        };
        Ok(self.values_of(given).unwrap_or_default().iter().filter_map(pair).collect())
    }

    /// `(storage, offset, shape, strides, requires_grad, hooks, ...)`; the third version names the element type.
    fn tensor(&mut self, arguments: Value, typed: bool) -> Outcome<Value> {
        let described = |machine: &Machine| {
            let numbers = |value: Value| -> Option<Vec<u64>> {
                let values = machine.values_of(value)?;
                let number = |value: &Value| match value {
                    Value::Integer(n) => u64::try_from(*n).ok(),
                    _ => None,
                };
                (values.len() <= MAX_RANK).then(|| values.iter().map(number).collect())?
            };
            let (storage, offset, shape, strides, rest) = match *machine.values_of(arguments)? {
                [Value::Storage(storage), Value::Integer(offset), shape, strides, ref rest @ ..] => {
                    (storage, offset, shape, strides, rest)
                }
                _ => return None,
            };
            let element = match rest.get(2).filter(|_| typed) {
                Some(&name) => machine.names(name).and_then(|(module, name)| dtype(module, name)).flatten(),
                None => machine.storages.get(storage as usize)?.element,
            };
            let (shape, strides) = (numbers(shape)?, numbers(strides)?);
            let offset = u64::try_from(offset).ok()?;
            (shape.len() == strides.len()).then_some(Tensor {
                storage,
                element,
                offset,
                shape,
                strides,
                at: machine.opcode_at,
            })
        };
        match described(self) {
            Some(tensor) => {
                self.spend(2 * size_of::<Tensor>() + 32 * tensor.shape.len())?;
                self.tensors.push(tensor);
                Ok(Value::Tensor(self.tensors.len() as u32 - 1))
            }
            None => {
                self.wrong("a tensor is described wrongly (storage, offset, shape of at most 8 dimensions, strides)")
            }
        }
    }
}
