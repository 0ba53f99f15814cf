//! Memory of a device in as few pieces as it allows, and the way in and out.

use std::sync::{Arc, PoisonError};

use impasto_vulkan::{Buffer, Home, Part, Recorder};

use impasto_graph::Capabilities;

use super::Vulkan;
use crate::BackendError;

/// Pieces of device memory, as one space of addresses.
pub(super) struct Memory {
    vulkan: Vulkan,
    /// Each with the address at which it begins.
    pieces: Vec<(u64, Arc<Buffer>)>,
}

impl Memory {
    /// Takes pieces of these lengths, one after the other.
    pub(super) fn new(vulkan: &Vulkan, lengths: impl Iterator<Item = u64>) -> Result<Memory, BackendError> {
        let mut memory = Memory { vulkan: vulkan.clone(), pieces: Vec::new() };
        let mut at = 0;
        for bytes in lengths.filter(|&bytes| bytes > 0) {
            let piece = vulkan.device().buffer_at(bytes, Home::Device).map_err(|e| vulkan.failed(bytes, e))?;
            memory.pieces.push((at, Arc::new(piece)));
            at += bytes;
        }
        Ok(memory)
    }

    /// Bytes that the device was asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, piece)| piece.bytes()).sum()
    }

    /// Bytes at an address. What a plan puts there lies in one piece.
    pub(super) fn part(&self, address: u64, bytes: u64) -> Part {
        let index = self.pieces.partition_point(|(start, _)| *start <= address).saturating_sub(1);
        let (start, buffer) = &self.pieces[index];
        Part { buffer: buffer.clone(), offset: address - start, bytes }
    }

    /// Bytes from the host to an address.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let to = self.part(address, bytes.len() as u64);
        if to.buffer.is_visible() {
            return to.buffer.write_at(to.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| {
            let size = stage.bytes() as usize;
            for (at, chunk) in (0..).step_by(size).zip(bytes.chunks(size)) {
                let len = chunk.len() as u64;
                stage.write_at(0, chunk).map_err(|e| self.vulkan.failed(0, e))?;
                let to = Part { buffer: to.buffer.clone(), offset: to.offset + at, bytes: len };
                self.copy(Part { buffer: stage.clone(), offset: 0, bytes: len }, to)?;
            }
            Ok(())
        })
    }

    /// Bytes from an address to the host.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.read_part(&self.part(address, bytes.len() as u64), bytes)
    }

    /// The beginning of a part, of this memory or of another of the same device, to the host.
    pub(super) fn read_part(&self, from: &Part, bytes: &mut [u8]) -> Result<(), BackendError> {
        if from.buffer.is_visible() {
            return from.buffer.read_at(from.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| {
            let size = stage.bytes() as usize;
            for (at, chunk) in (0..).step_by(size).zip(bytes.chunks_mut(size)) {
                let len = chunk.len() as u64;
                let from = Part { buffer: from.buffer.clone(), offset: from.offset + at, bytes: len };
                self.copy(from, Part { buffer: stage.clone(), offset: 0, bytes: len })?;
                stage.read_at(0, chunk).map_err(|e| self.vulkan.failed(0, e))?;
            }
            Ok(())
        })
    }

    /// With the piece that the host and the device both see, which is taken when it is first needed.
    fn staged(&self, work: impl FnOnce(&Arc<Buffer>) -> Result<(), BackendError>) -> Result<(), BackendError> {
        let mut stage = self.vulkan.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.is_none() {
            let bytes = self.vulkan.fixed_bytes().max(4);
            let taken = self.vulkan.device().buffer_at(bytes, Home::Host).map_err(|e| self.vulkan.failed(bytes, e))?;
            *stage = Some(Arc::new(taken));
        }
        stage.as_ref().map_or(Ok(()), work)
    }

    fn copy(&self, from: Part, to: Part) -> Result<(), BackendError> {
        let copied = || {
            let mut recorder = Recorder::new(self.vulkan.device());
            recorder.copy(from, to)?;
            let mut recording = recorder.finish()?;
            recording.submit()?;
            recording.wait()
        };
        copied().map_err(|e| self.vulkan.failed(0, e))
    }
}
