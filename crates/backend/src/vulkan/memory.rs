//! Memory of a device in as few pieces as it allows, and the way in and out.

use std::sync::{Arc, PoisonError};

use impasto_graph::Capabilities;
use impasto_vulkan::{Buffer, Home, Lane, Part, Recorder, Recording, VulkanError};

use super::Vulkan;
use crate::BackendError;

/// Pieces of device memory, as one space of addresses.
pub(super) struct Memory {
    vulkan: Vulkan,
    home: Home,
    /// Each with the address at which it begins.
    pieces: Vec<(u64, Arc<Buffer>)>,
}

/// What the host sees of a device whose memory it does not see, or only slowly: written while the device still copies from the other half.
pub(super) struct Stage {
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
        let mut recorder = Recorder::new(vulkan.device(), Lane::Copies);
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
        let bytes = (vulkan.fixed_bytes() / 2).max(4);
        let half = || Ok(Half { buffer: Arc::new(vulkan.device().buffer_at(bytes, Home::Host)?), copying: None });
        Ok(Stage { halves: [half()?, half()?], next: 0 })
    }

    /// Bytes that pass at a time.
    fn bytes(&self) -> u64 {
        self.halves[0].buffer.bytes()
    }

    fn settle(&mut self) -> Result<(), VulkanError> {
        self.halves.iter_mut().try_for_each(Half::settle)
    }

    /// Bytes on their way to the device, which may still read them from here when this returns.
    fn send(&mut self, vulkan: &Vulkan, bytes: &[u8], to: &Part) -> Result<(), VulkanError> {
        let size = self.bytes() as usize;
        for (at, chunk) in (0..).step_by(size).zip(bytes.chunks(size)) {
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
        let (size, length) = (self.bytes(), bytes.len() as u64);
        let count = length.div_ceil(size);
        let some = |i: u64| from.within(i * size, size.min(length - i * size));
        for i in 0..=count {
            if i < count {
                let half = &mut self.halves[i as usize % 2];
                half.copy(vulkan, some(i), half.part(some(i).bytes))?;
            }
            if let Some(before) = i.checked_sub(1) {
                let half = &mut self.halves[before as usize % 2];
                half.settle()?;
                let (at, n) = ((before * size) as usize, some(before).bytes as usize);
                half.buffer.read_at(0, &mut bytes[at..at + n])?;
            }
        }
        Ok(())
    }
}

impl Memory {
    /// Takes pieces of these lengths, one after the other.
    pub(super) fn new(vulkan: &Vulkan, lengths: impl Iterator<Item = u64>) -> Result<Memory, BackendError> {
        Memory::at(vulkan, lengths, Home::Device)
    }

    /// The same in the host's memory, out of the device's way.
    pub(super) fn aside(vulkan: &Vulkan, lengths: impl Iterator<Item = u64>) -> Result<Memory, BackendError> {
        Memory::at(vulkan, lengths, Home::Aside)
    }

    fn at(vulkan: &Vulkan, lengths: impl Iterator<Item = u64>, home: Home) -> Result<Memory, BackendError> {
        let mut memory = Memory { vulkan: vulkan.clone(), home, pieces: Vec::new() };
        let mut at = 0;
        for bytes in lengths.filter(|&bytes| bytes > 0) {
            let piece = vulkan.device().buffer_at(bytes, home).map_err(|e| vulkan.failed(bytes, e))?;
            memory.pieces.push((at, Arc::new(piece)));
            at += bytes;
        }
        Ok(memory)
    }

    /// Whether the host writes to a piece itself.
    fn writes(&self, piece: &Buffer) -> bool {
        piece.is_visible() && self.is_seen()
    }

    /// Whether the host reads from a piece itself.
    fn reads(&self, piece: &Buffer) -> bool {
        piece.is_cached() && self.is_seen()
    }

    /// Whether the host may look, where it could.
    fn is_seen(&self) -> bool {
        self.home == Home::Aside || !self.vulkan.profile().is_as_if_discrete()
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

    /// With the pieces that the host and the device both see, which are taken when they are first needed.
    fn staged(&self, act: impl FnOnce(&mut Stage) -> Result<(), VulkanError>) -> Result<(), BackendError> {
        let failed = |e| self.vulkan.failed(self.vulkan.fixed_bytes(), e);
        let mut stage = self.vulkan.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.is_none() {
            *stage = Some(Stage::new(&self.vulkan).map_err(failed)?);
        }
        stage.as_mut().map_or(Ok(()), act).map_err(failed)
    }

    /// Bytes from the host to an address. They are there after [`Memory::settle`]: the host goes on meanwhile.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let to = self.part(address, bytes.len() as u64);
        if self.writes(&to.buffer) {
            return to.buffer.write_at(to.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| stage.send(&self.vulkan, bytes, &to))
    }

    /// Copies what lies elsewhere in reach of the device to addresses, all at once, and waits for it.
    pub(super) fn copy(&self, all: Vec<(Part, u64)>) -> Result<(), BackendError> {
        if all.is_empty() {
            return Ok(());
        }
        let mut recorder = Recorder::new(self.vulkan.device(), Lane::Copies);
        for (from, address) in all {
            let to = self.part(address, from.bytes);
            match from.buffer.is_of(self.vulkan.device()) {
                true => recorder.copy(from, to).map_err(|e| self.vulkan.failed(0, e))?,
                // The same card, opened another time.
                false => {
                    let mut bytes = vec![0; from.bytes as usize];
                    from.buffer.read_at(from.offset, &mut bytes).map_err(|e| self.vulkan.failed(0, e))?;
                    self.write(address, &bytes)?;
                }
            }
        }
        let done = recorder.finish().and_then(|mut copies| {
            copies.submit()?;
            copies.wait()
        });
        done.map_err(|e| self.vulkan.died(e))
    }

    /// Waits until all that was written has arrived.
    pub(super) fn settle(&self) -> Result<(), BackendError> {
        let mut stage = self.vulkan.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        stage.as_mut().map_or(Ok(()), Stage::settle).map_err(|e| self.vulkan.failed(0, e))
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
