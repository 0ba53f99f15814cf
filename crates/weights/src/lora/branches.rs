//! LoRAs as branches beside the products of a network: what its weights are added to instead of changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use impasto_graph::{AdapterFactor, DType, Storage};
use serde::{Deserialize, Serialize};

use super::delta::Patch;
use super::{AppliedLora, Fnv, LoraOrigin, PatchCache};
use crate::{Origin, ParamError, ParamInfo, WeightSource, WeightsError};

/// The factors of a network's branches ([`Graph::with_branches`](impasto_graph::Graph::with_branches)): of several LoRAs on one layer, one after the other
/// along the rank, each with its strength.
pub struct LoraBranches {
    id: u64,
    loras: Vec<AppliedLora>,
    layers: BTreeMap<String, BranchedLayer>,
    cache: PatchCache,
}

/// A layer that has a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchedLayer {
    /// The shape of its weights.
    pub shape: Vec<usize>,
    /// The ranks of all LoRAs together.
    pub rank: usize,
}

/// The branches of LoRAs, described so that another process has the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchOrigin {
    /// The LoRAs, in the order of their ranks.
    pub loras: Vec<LoraOrigin>,
    /// The layers by the names of their weights.
    pub layers: BTreeMap<String, BranchedLayer>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl LoraBranches {
    /// The branches that LoRAs are beside the weights in `products`, and what must be merged with the weights instead: whatever is no product of two small
    /// matrices, and products that are not small.
    pub(crate) fn split(
        loras: Vec<AppliedLora>,
        products: &BTreeSet<String>,
        shape: impl Fn(&str) -> Option<Vec<usize>>,
    ) -> (Option<LoraBranches>, Vec<AppliedLora>) {
        let params: BTreeSet<&String> = loras.iter().flat_map(|lora| lora.targets.keys()).collect();
        let mut layers = BTreeMap::new();
        for param in params {
            let Some(shape) = shape(param).filter(|_| products.contains(param)) else { continue };
            let (rows, columns) = (shape[0], shape[1..].iter().product::<usize>());
            if let Some(rank) = rank(&loras, param).filter(|rank| rank * (rows + columns) < rows * columns) {
                layers.insert(param.clone(), BranchedLayer { shape, rank });
            }
        }
        let part = |of_branches: bool| -> Vec<AppliedLora> {
            let own = |lora: &AppliedLora| {
                let mut targets = lora.targets.clone();
                targets.retain(|param, _| layers.contains_key(param) == of_branches);
                AppliedLora { targets, ..lora.clone() }
            };
            loras.iter().map(own).filter(|lora| !lora.targets.is_empty()).collect()
        };
        let (branches, merged) = (part(true), part(false));
        let branches = (!branches.is_empty()).then(|| LoraBranches::new(branches, layers));
        (branches, merged)
    }

    fn new(loras: Vec<AppliedLora>, layers: BTreeMap<String, BranchedLayer>) -> LoraBranches {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        LoraBranches { id, loras, layers, cache: PatchCache::default() }
    }

    /// A number that no other branches of this process have, nor will.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A number that is the same for branches beside the same layers, of the same ranks.
    pub fn structure(&self) -> u64 {
        let mut hash = Fnv::default();
        for (param, layer) in &self.layers {
            hash.take(param.as_bytes());
            hash.take(&(layer.rank as u64).to_le_bytes());
        }
        hash.0
    }

    /// The rank of the branch beside a parameter, if it has one.
    pub fn rank(&self, param: &str) -> Option<usize> {
        self.layers.get(param).map(|layer| layer.rank)
    }

    /// Layers that have branches.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are none, which is never so.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Whether the files are still those that were opened.
    pub fn is_unchanged(&self) -> bool {
        self.loras.iter().all(|lora| lora.file.is_unchanged())
    }

    fn find(&self, name: &str) -> Result<(&str, AdapterFactor, &BranchedLayer), ParamError> {
        let found = AdapterFactor::parse(name).and_then(|(param, factor)| {
            let (param, layer) = self.layers.get_key_value(param)?;
            Some((param.as_str(), factor, layer))
        });
        found.ok_or_else(|| ParamError::Wrong { name: name.into(), problem: "is no factor of a branch".into() })
    }
}

/// The ranks of all LoRAs on a parameter together, if each is a product there and nothing else.
fn rank(loras: &[AppliedLora], param: &str) -> Option<usize> {
    let mut sum = 0;
    for (lora, target) in
        loras.iter().flat_map(|lora| lora.targets.get(param).into_iter().flatten().map(move |t| (lora, t)))
    {
        let adapter = lora.file.adapters.get(&target.module).filter(|_| !target.bias)?;
        sum += adapter.rank()?;
    }
    Some(sum)
}

impl WeightSource for LoraBranches {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let (_, factor, layer) = self.find(name)?;
        let shape = factor.shape(&layer.shape, layer.rank);
        let bytes = 4 * shape.iter().product::<usize>() as u64;
        Ok(ParamInfo { storage: Storage::Dense(DType::F32), shape, bytes })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        let (param, factor, layer) = self.find(name)?;
        let all = self.describe(name)?.bytes;
        if !offset.is_multiple_of(4) || !out.len().is_multiple_of(4) || offset.saturating_add(out.len() as u64) > all {
            let problem = format!("has no {} bytes at {offset}", out.len());
            return Err(ParamError::Wrong { name: name.into(), problem });
        }
        let patches = self.cache.load(&self.loras, param, &layer.shape, |_, _| Ok(()))?;
        if patches.iter().map(|patch| patch.rank().unwrap_or(0)).sum::<usize>() != layer.rank {
            return Err(ParamError::Wrong { name: name.into(), problem: "has another rank than its file had".into() });
        }
        let (first, numbers) = (offset as usize / 4, out.as_chunks_mut::<4>().0);
        match factor {
            AdapterFactor::Down => read_down(&patches, first, numbers),
            AdapterFactor::Up => read_up(&patches, layer.rank, first, numbers),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ParamError> {
        self.loras.iter().try_for_each(|lora| lora.file.check())
    }

    fn origin(&self) -> Option<Origin> {
        let loras = self.loras.iter().map(AppliedLora::origin).collect::<Option<_>>()?;
        Some(Origin::Branches(BranchOrigin { loras, layers: self.layers.clone() }))
    }
}

/// The rows of all LoRAs, one LoRA after the other, from this number on.
fn read_down(patches: &[Patch], mut first: usize, mut out: &mut [[u8; 4]]) {
    for down in patches.iter().map(Patch::down) {
        let own = down.len().saturating_sub(first).min(out.len());
        let (now, rest) = out.split_at_mut(own);
        now.iter_mut().zip(down.iter().skip(first)).for_each(|(out, x)| *out = x.to_le_bytes());
        (first, out) = (first.saturating_sub(down.len()), rest);
    }
}

/// Rows of the columns of all LoRAs beside each other, from this number on.
fn read_up(patches: &[Patch], rank: usize, first: usize, out: &mut [[u8; 4]]) {
    let mut row = vec![0.0; rank];
    let (mut at, mut rest) = (first, out);
    while !rest.is_empty() {
        let mut to = &mut row[..];
        for (up, scale) in patches.iter().map(|patch| patch.up(at / rank)) {
            let (now, others) = to.split_at_mut(up.len());
            now.iter_mut().zip(up).for_each(|(to, x)| *to = scale * x);
            to = others;
        }
        let begin = at % rank;
        let (now, others) = rest.split_at_mut((rank - begin).min(rest.len()));
        now.iter_mut().zip(&row[begin..]).for_each(|(out, x)| *out = x.to_le_bytes());
        at += now.len();
        rest = others;
    }
}

impl BranchOrigin {
    /// The branches, of files that are opened for them.
    pub fn open(&self) -> Result<LoraBranches, WeightsError> {
        let loras = self.loras.iter().map(LoraOrigin::open).collect::<Result<Vec<_>, _>>()?;
        for lora in &loras {
            let problems = lora.problems(|param| self.layers.get(param).map(|layer| layer.shape.clone()));
            if !problems.is_empty() {
                let (path, problem) = (lora.file.path().to_path_buf(), problems.join("; "));
                return Err(WeightsError::NotAModel { path, problem });
            }
        }
        Ok(LoraBranches::new(loras, self.layers.clone()))
    }
}
