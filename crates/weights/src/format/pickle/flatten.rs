//! The tensors of a checkpoint's dictionary, by name.

use std::collections::BTreeMap;

use super::machine::{Machine, Value};

/// Keys under which trainers put the weights, the best first: averaged ones before those of the last step.
const WEIGHTS: [&str; 5] = ["state_dict", "params_ema", "params", "model", "module"];
/// Keys of what trainers keep for themselves, which may hold tensors.
const TRAINING: [&str; 12] = [
    "optimizer",
    "optimizers",
    "optimizer_state",
    "optimizer_states",
    "optimizer_state_dict",
    "lr_scheduler",
    "lr_schedulers",
    "scheduler",
    "callbacks",
    "loops",
    "rng_state",
    "scaler",
];
/// How deep dictionaries lie in one another.
const MAX_DEPTH: usize = 6;
/// Values that are looked at, since a pickle may refer to one dictionary many times.
const MAX_VALUES: usize = 1_000_000;

/// Numbers of tensors, by name.
pub(super) type Named = BTreeMap<String, u32>;

/// Finds the weights in the value of a pickle, or says what it is instead.
pub(super) fn flatten(machine: &Machine, root: Value) -> Result<Named, String> {
    let mut root = root;
    for _ in 0..MAX_DEPTH {
        let Some(pairs) = machine.pairs_of(root) else { break };
        let under = |key: &str| {
            let found = pairs.iter().rev().find(|(name, _)| machine.text_of(*name) == Some(key));
            found.map(|(_, value)| *value).filter(|value| machine.pairs_of(*value).is_some_and(|p| !p.is_empty()))
        };
        match WEIGHTS.iter().find_map(|key| under(key)) {
            Some(inner) => root = inner,
            None => break,
        }
    }
    if machine.pairs_of(root).is_none() {
        return Err("it holds no dictionary of tensors: save the model's state_dict".into());
    }
    let mut walk = Walk { machine, values_left: MAX_VALUES, found: Named::new() };
    walk.add("", root, MAX_DEPTH)?;
    Ok(walk.found)
}

struct Walk<'a, 'b> {
    machine: &'a Machine<'b>,
    values_left: usize,
    found: Named,
}

impl Walk<'_, '_> {
    fn add(&mut self, prefix: &str, dict: Value, depth: usize) -> Result<(), String> {
        for &(key, value) in self.machine.pairs_of(dict).unwrap_or_default() {
            self.values_left = self.values_left.checked_sub(1).ok_or("it holds more values than any checkpoint")?;
            if !matches!(value, Value::Tensor(_) | Value::Dict(_)) {
                continue;
            }
            let key = match key {
                Value::Integer(n) => n.to_string(),
                text => match self.machine.text_of(text) {
                    Some(text) if text.len() <= super::MAX_NAME => text.to_string(),
                    _ => continue,
                },
            };
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                Value::Tensor(tensor) => drop(self.found.insert(name, tensor)),
                _ if TRAINING.contains(&key.as_str()) => {}
                _ if depth == 0 => return Err(format!("'{name}' lies too deep in other dictionaries")),
                _ => self.add(&name, value, depth - 1)?,
            }
            if self.found.len() > crate::format::MAX_TENSORS {
                return Err(format!("it holds more than {} tensors", crate::format::MAX_TENSORS));
            }
        }
        Ok(())
    }
}
