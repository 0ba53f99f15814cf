//! Memory of a device in as few pieces as it allows, and the way in and out.

use std::sync::{Arc, Mutex, PoisonError};

use impasto_vulkan::{Buffer, Home, Part, Recorder, Recording, VulkanError};

use super::Vulkan;
use crate::BackendError;

/// Bytes that go through the host's piece at a time where the device has memory of its own.
const STAGE: u64 = 16 << 20;

/// Pieces of device memory, as one space of addresses.
pub(super) struct Memory {
    vulkan: Vulkan,
    /// Each with the address at which it begins.
    pieces: Vec<(u64, Arc<Buffer>)>,
    /// Where the host cannot see the pieces, or only slowly: what it sees instead.
    stage: Option<Mutex<Stage>>,
}

/// Memory of the host that is written while the device still copies from its other half.
struct Stage {
    halves: [Half; 2],
    next: usize,
}

struct Half {
    buffer: Arc<Buffer>,
    copying: Option<Recording>,
}

impl Half {
    /// Waits until the device needs it no more.
    fn settle(&mut self) -> Result<(), VulkanError> {
        self.copying.take().map_or(Ok(()), |copying| copying.wait())
    }

    fn copy(&mut self, vulkan: &Vulkan, from: Part, to: Part) -> Result<(), VulkanError> {
        let mut recorder = Recorder::new(vulkan.device());
        recorder.copy(from, to)?;
        let mut recording = recorder.finish()?;
        recording.submit()?;
        self.copying = Some(recording);
        Ok(())
    }

    fn part(&self, bytes: u64) -> Part {
        Part { buffer: self.buffer.clone(), offset: 0, bytes }
    }
}

impl Stage {
    fn new(vulkan: &Vulkan) -> Result<Stage, VulkanError> {
        let half = || Ok(Half { buffer: Arc::new(vulkan.device().buffer_at(STAGE, Home::Host)?), copying: None });
        Ok(Stage { halves: [half()?, half()?], next: 0 })
    }

    fn settle(&mut self) -> Result<(), VulkanError> {
        self.halves.iter_mut().try_for_each(Half::settle)
    }

    /// Bytes on their way to the device, which may still read them from here when this returns.
    fn send(&mut self, vulkan: &Vulkan, bytes: &[u8], to: &Part) -> Result<(), VulkanError> {
        for (at, chunk) in (0..).step_by(STAGE as usize).zip(bytes.chunks(STAGE as usize)) {
            let half = &mut self.halves[self.next];
            self.next = 1 - self.next;
            half.settle()?;
            half.buffer.write_at(0, chunk)?;
            half.copy(vulkan, half.part(chunk.len() as u64), to.within(at, chunk.len() as u64))?;
        }
        Ok(())
    }

    /// Bytes from the device: the next are copied while these are read.
    fn fetch(&mut self, vulkan: &Vulkan, from: &Part, bytes: &mut [u8]) -> Result<(), VulkanError> {
        self.settle()?;
        let length = bytes.len() as u64;
        let count = length.div_ceil(STAGE);
        let some = |i: u64| from.within(i * STAGE, STAGE.min(length - i * STAGE));
        for i in 0..=count {
            if i < count {
                let half = &mut self.halves[i as usize % 2];
                half.copy(vulkan, some(i), half.part(some(i).bytes))?;
            }
            if let Some(before) = i.checked_sub(1) {
                let half = &mut self.halves[before as usize % 2];
                half.settle()?;
                let (at, n) = ((before * STAGE) as usize, some(before).bytes as usize);
                half.buffer.read_at(0, &mut bytes[at..at + n])?;
            }
        }
        Ok(())
    }
}

impl Memory {
    /// Takes pieces of these lengths, one after the other.
    pub(super) fn new(vulkan: &Vulkan, lengths: impl Iterator<Item = u64>) -> Result<Memory, BackendError> {
        let mut memory = Memory { vulkan: vulkan.clone(), pieces: Vec::new(), stage: None };
        let mut at = 0;
        for bytes in lengths.filter(|&bytes| bytes > 0) {
            let piece = vulkan.device().buffer_at(bytes, Home::Device).map_err(|e| vulkan.failed(bytes, e))?;
            memory.pieces.push((at, Arc::new(piece)));
            at += bytes;
        }
        if memory.pieces.iter().any(|(_, piece)| !memory.reads(piece)) {
            memory.stage = Some(Mutex::new(Stage::new(vulkan).map_err(|e| vulkan.failed(2 * STAGE, e))?));
        }
        Ok(memory)
    }

    /// Whether the host writes to a piece itself.
    fn writes(&self, piece: &Buffer) -> bool {
        piece.is_visible() && !self.vulkan.0.as_if_discrete
    }

    /// Whether the host reads from a piece itself.
    fn reads(&self, piece: &Buffer) -> bool {
        piece.is_cached() && !self.vulkan.0.as_if_discrete
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

    fn staged(&self, act: impl FnOnce(&mut Stage) -> Result<(), VulkanError>) -> Result<(), BackendError> {
        let Some(stage) = &self.stage else { return Ok(()) };
        let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut stage).map_err(|e| self.vulkan.failed(0, e))
    }

    /// Bytes from the host to an address. They are there after [`Memory::settle`]: the host goes on meanwhile.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let to = self.part(address, bytes.len() as u64);
        if self.writes(&to.buffer) {
            return to.buffer.write_at(to.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| stage.send(&self.vulkan, bytes, &to))
    }

    /// Waits until all that was written has arrived.
    pub(super) fn settle(&self) -> Result<(), BackendError> {
        self.staged(Stage::settle)
    }

    /// Bytes from an address to the host.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.read_part(&self.part(address, bytes.len() as u64), bytes)
    }

    /// The beginning of a part, of this memory or of another of the same device, to the host.
    pub(super) fn read_part(&self, from: &Part, bytes: &mut [u8]) -> Result<(), BackendError> {
        if self.reads(&from.buffer) {
            return from.buffer.read_at(from.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| stage.fetch(&self.vulkan, from, bytes))
    }
}
