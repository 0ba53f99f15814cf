//! A parameter with the LoRAs that change it, read like any other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use impasto_graph::Storage;

use super::delta::Patch;
use super::{AppliedLora, LoraTarget};
use crate::ParamError;
use crate::blocks::encode;
use crate::view::ParamView;

/// Numbers that are changed at a time.
const PIECE: usize = 128 << 10;

/// Bytes of adapters that are kept in memory: a parameter is read in several pieces, and several of them at once.
const MOST_KEPT: usize = 256 << 20;

/// The adapters of the parameters that were read last.
#[derive(Default)]
pub(crate) struct PatchCache(Mutex<VecDeque<(String, Arc<Vec<Patch>>)>>);

impl PatchCache {
    fn find(&self, param: &str) -> Option<Arc<Vec<Patch>>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(name, _)| name == param).map(|(_, patches)| patches.clone())
    }

    fn keep(&self, param: &str, patches: &Arc<Vec<Patch>>) {
        let bytes = |patches: &Arc<Vec<Patch>>| patches.iter().map(Patch::bytes).sum::<usize>();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(name, _)| name != param);
        let mut sum = kept.iter().map(|(_, patches)| bytes(patches)).sum::<usize>() + bytes(patches);
        while let Some((_, oldest)) = kept.front().filter(|_| sum > MOST_KEPT) {
            sum -= bytes(oldest);
            kept.pop_front();
        }
        kept.push_back((param.into(), patches.clone()));
    }
}

impl PatchCache {
    /// The adapters of a parameter, in the order of the LoRAs; `complete` is given each with those before it.
    pub(super) fn load(
        &self,
        loras: &[AppliedLora],
        name: &str,
        shape: &[usize],
        complete: impl Fn(&[Patch], &mut Patch) -> Result<(), ParamError>,
    ) -> Result<Arc<Vec<Patch>>, ParamError> {
        if let Some(known) = self.find(name) {
            return Ok(known);
        }
        let rows = shape.first().copied().unwrap_or(1);
        let mut patches = vec![];
        for AppliedLora { file, strength, targets } in loras {
            for LoraTarget { module, bias, part: (part, parts) } in targets.get(name).into_iter().flatten() {
                let Some(adapter) = file.adapters.get(module) else { continue };
                let mut patch = Patch::load(file, adapter, *bias, *strength, (part * rows, *parts), shape)?;
                complete(&patches, &mut patch)?;
                patches.push(patch);
            }
        }
        let patches = Arc::new(patches);
        self.keep(name, &patches);
        Ok(patches)
    }
}

/// A parameter and what changes it.
pub(crate) struct MergedParam<'a> {
    pub view: ParamView<'a>,
    pub name: &'a str,
    pub shape: &'a [usize],
    /// As what it is read.
    pub storage: Storage,
    pub loras: &'a [AppliedLora],
    pub cache: &'a PatchCache,
}

impl MergedParam<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Numbers of a row, and those of one input in it.
    fn row(&self) -> (usize, usize) {
        (self.shape.iter().skip(1).product(), self.shape.iter().skip(2).product())
    }

    /// Bytes that it takes as it is read.
    pub fn bytes(&self) -> u64 {
        self.storage.bytes_of(self.elements() as u64).unwrap_or(u64::MAX)
    }

    /// Fills `out` with its bytes from `offset` on: whole rows are changed at a time, then rounded.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.bytes()) {
            let problem = format!("has no {} bytes at {offset}", out.len());
            return Err(ParamError::Wrong { name: self.name.into(), problem });
        }
        if out.is_empty() {
            return Ok(());
        }
        let patches = self.patches()?;
        let (columns, kernel) = self.row();
        let (per_block, block) = (self.storage.block_elements() as usize, self.storage.block_bytes() as usize);
        // The fewest rows that are whole blocks.
        let least = (1..=per_block).find(|rows| (rows * columns).is_multiple_of(per_block)).unwrap_or(1);
        let step = (PIECE / columns.max(1) / least).max(1) * least;
        let (offset, end) = (offset as usize, offset as usize + out.len());
        let row_of = |byte: usize| byte / block * per_block / columns.max(1) / least * least;
        let rows = self.elements() / columns.max(1);
        let (mut row, mut numbers, mut made) = (row_of(offset), vec![], vec![]);
        while row < rows && row * columns / per_block * block < end {
            // No more rows than are asked for.
            let last = (row_of(end - 1) + least).min(rows);
            let count = step.min(last - row);
            numbers.resize(count * columns, 0.0);
            self.view.floats(row * columns, &mut numbers)?;
            patches.iter().for_each(|patch| patch.apply(row, columns, kernel, &mut numbers));
            made.resize(numbers.len() / per_block * block, 0);
            encode(self.storage, &numbers, &mut made);
            let at = row * columns / per_block * block;
            let (from, to) = (offset.max(at), end.min(at + made.len()));
            out[from - offset..to - offset].copy_from_slice(&made[from - at..to - at]);
            row += count;
        }
        Ok(())
    }

    /// The adapters of this parameter, in the order of the LoRAs.
    fn patches(&self) -> Result<Arc<Vec<Patch>>, ParamError> {
        self.cache.load(self.loras, self.name, self.shape, |before, patch| {
            if patch.needs_columns() {
                let squares = self.squares(before, patch)?;
                patch.set_columns(&squares);
            }
            Ok(())
        })
    }

    /// The squared length of each input over all rows, with the patches before and the difference of this one.
    fn squares(&self, before: &[Patch], patch: &Patch) -> Result<Vec<f64>, ParamError> {
        let (columns, kernel) = self.row();
        let rows = self.elements() / columns.max(1);
        let mut sums = vec![0.0; columns / kernel.max(1)];
        let step = (PIECE / columns.max(1)).max(1);
        for row in (0..rows).step_by(step) {
            let mut numbers = vec![0.0; step.min(rows - row) * columns];
            self.view.floats(row * columns, &mut numbers)?;
            before.iter().for_each(|patch| patch.apply(row, columns, kernel, &mut numbers));
            patch.add_squares(row, columns, kernel, &numbers, &mut sums);
        }
        Ok(sums)
    }
}
