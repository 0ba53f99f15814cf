//! Memory of a device in as few allocations as it allows, and staging in and out of it.

use std::sync::{Arc, Mutex, PoisonError};

use impasto_graph::Capabilities;
use impasto_vulkan::{Buffer, BufferRange, MemoryLocation, QueueKind, Recorder, Recording, VulkanError};

use super::Vulkan;
use crate::BackendError;
use crate::gpu::{self, FillTask, Gpu, GpuMemory, MemoryCopy, MemoryWriter, WriteBytes};
use crate::tasks::on_threads;

/// Pieces of device memory, as one space of addresses.
pub(crate) struct VulkanMemory {
    vulkan: Vulkan,
    home: MemoryLocation,
    /// Each with the address at which it begins.
    pieces: Vec<(u64, Arc<Buffer>)>,
}

/// The staging buffer of a device whose memory is not host-visible or not host-cached: one half is written while the device copies from the other.
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

    fn copy(&mut self, vulkan: &Vulkan, from: BufferRange, to: BufferRange) -> Result<(), VulkanError> {
        let mut recorder = Recorder::new(vulkan.device(), QueueKind::Transfer);
        recorder.copy(from, to)?;
        let mut recording = recorder.finish()?;
        recording.submit()?;
        self.copying = Some(recording);
        Ok(())
    }

    fn range(&self, bytes: u64) -> BufferRange {
        BufferRange { buffer: self.buffer.clone(), offset: 0, bytes }
    }
}

/// A range of the staging buffer that one thread fills.
struct Slot {
    range: BufferRange,
    copying: Option<Recording>,
}

impl Slot {
    /// Waits until the device needs it no more.
    fn settle(&mut self) -> Result<(), VulkanError> {
        self.copying.take().map_or(Ok(()), |copying| copying.wait())
    }

    /// Begins to copy its first bytes to the device.
    fn send(&mut self, vulkan: &Vulkan, to: BufferRange) -> Result<(), VulkanError> {
        let mut recorder = Recorder::new(vulkan.device(), QueueKind::Transfer);
        recorder.copy(self.range.within(0, to.bytes), to)?;
        let mut recording = recorder.finish()?;
        recording.submit()?;
        self.copying = Some(recording);
        Ok(())
    }
}

/// The fewest bytes that are worth a copy of their own.
const LEAST_SLOT: u64 = 256 << 10;

/// One thread's access to the memory of a device: directly where it is host-visible, or by two slots of the staging buffer, of which the device
/// copies one while the other is filled.
struct Writer<'a> {
    memory: &'a VulkanMemory,
    slots: Option<&'a mut [Slot; 2]>,
}

impl MemoryWriter for Writer<'_> {
    fn fill(&mut self, address: u64, bytes: usize, write: &mut WriteBytes) -> Result<(), BackendError> {
        let VulkanMemory { vulkan, .. } = self.memory;
        let to = self.memory.range(address, bytes as u64);
        let failed = |e| vulkan.failed(0, e);
        let Some(slots) = &mut self.slots else {
            // SAFETY: these bytes are one task's, and nothing reads them before they are there.
            let slice = unsafe { to.buffer.slice_mut(to.offset, bytes) }.map_err(failed)?;
            return write(slice, to.buffer.is_cached());
        };
        let room = slots[0].range.bytes as usize;
        if bytes <= room {
            return Writer::through(vulkan, slots, to, write);
        }
        let mut whole = vec![0; bytes];
        write(&mut whole, true)?;
        for (at, piece) in (0..).step_by(room).zip(whole.chunks(room)) {
            Writer::through(vulkan, slots, to.within(at, piece.len() as u64), &mut |slice, _| {
                slice.copy_from_slice(piece);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// The same by the slot that was sent longer ago.
    fn through(
        vulkan: &Vulkan,
        slots: &mut [Slot; 2],
        to: BufferRange,
        write: &mut WriteBytes,
    ) -> Result<(), BackendError> {
        slots.swap(0, 1);
        let slot = &mut slots[0];
        slot.settle().map_err(|e| vulkan.died(e))?;
        // SAFETY: the slot is this thread's, and the device has read what was in it.
        let slice = unsafe { slot.range.buffer.slice_mut(slot.range.offset, to.bytes as usize) };
        write(slice.map_err(|e| vulkan.failed(0, e))?, slot.range.buffer.is_cached())?;
        slot.send(vulkan, to).map_err(|e| vulkan.died(e))
    }
}

impl Stage {
    /// Two slots for each of some threads.
    fn slots(&self, threads: usize) -> Vec<[Slot; 2]> {
        let each = (self.bytes() / threads as u64 / 64 * 64).max(4).min(self.bytes());
        let slot = |half: &Half, at: usize| Slot {
            range: BufferRange { buffer: half.buffer.clone(), offset: at as u64 * each, bytes: each },
            copying: None,
        };
        (0..threads).map(|at| self.halves.each_ref().map(|half| slot(half, at))).collect()
    }

    fn new(vulkan: &Vulkan) -> Result<Stage, VulkanError> {
        let bytes = (vulkan.gpu_profile().fixed_bytes() / 2).max(4);
        let half =
            || Ok(Half { buffer: Arc::new(vulkan.device().buffer_at(bytes, MemoryLocation::Host)?), copying: None });
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
    fn send(&mut self, vulkan: &Vulkan, bytes: &[u8], to: &BufferRange) -> Result<(), VulkanError> {
        let size = self.bytes() as usize;
        for (at, chunk) in (0..).step_by(size).zip(bytes.chunks(size)) {
            let half = &mut self.halves[self.next];
            self.next = 1 - self.next;
            half.settle()?;
            half.buffer.write_at(0, chunk)?;
            half.copy(vulkan, half.range(chunk.len() as u64), to.within(at, chunk.len() as u64))?;
        }
        Ok(())
    }

    /// Bytes from the device: the next are copied while these are read.
    fn fetch(&mut self, vulkan: &Vulkan, from: &BufferRange, bytes: &mut [u8]) -> Result<(), VulkanError> {
        self.settle()?;
        let (size, length) = (self.bytes(), bytes.len() as u64);
        let count = length.div_ceil(size);
        let some = |i: u64| from.within(i * size, size.min(length - i * size));
        for i in 0..=count {
            if i < count {
                let half = &mut self.halves[i as usize % 2];
                half.copy(vulkan, some(i), half.range(some(i).bytes))?;
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

impl VulkanMemory {
    /// Takes pieces of these lengths, one after the other.
    pub(super) fn new(
        vulkan: &Vulkan,
        home: gpu::Residence,
        lengths: impl Iterator<Item = u64>,
    ) -> Result<VulkanMemory, BackendError> {
        let home = match home {
            gpu::Residence::Device => MemoryLocation::Device,
            gpu::Residence::HostMapped => MemoryLocation::Offloaded,
        };
        let mut memory = VulkanMemory { vulkan: vulkan.clone(), home, pieces: Vec::new() };
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
        self.home == MemoryLocation::Offloaded || !self.vulkan.0.as_if_discrete
    }

    /// Bytes at an address. What a plan puts there lies in one piece.
    pub(super) fn range(&self, address: u64, bytes: u64) -> BufferRange {
        let index = self.pieces.partition_point(|(start, _)| *start <= address).saturating_sub(1);
        let (start, buffer) = &self.pieces[index];
        BufferRange { buffer: buffer.clone(), offset: address - start, bytes }
    }

    /// With the pieces that the host and the device both see, which are taken when they are first needed.
    fn staged(&self, act: impl FnOnce(&mut Stage) -> Result<(), VulkanError>) -> Result<(), BackendError> {
        let failed = |e| self.vulkan.failed(self.vulkan.gpu_profile().fixed_bytes(), e);
        let mut stage = self.vulkan.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.is_none() {
            *stage = Some(Stage::new(&self.vulkan).map_err(failed)?);
        }
        stage.as_mut().map_or(Ok(()), act).map_err(failed)
    }
}

impl GpuMemory for VulkanMemory {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, piece)| piece.bytes()).sum()
    }

    fn fill<S: Default>(&self, count: usize, task: &FillTask<S>) -> Result<(), BackendError> {
        let cores = impasto_device::cpu::usable_cores();
        if self.pieces.iter().all(|(_, piece)| self.writes(piece)) {
            let begin = |_| (S::default(), Writer { memory: self, slots: None });
            return on_threads(cores, count, &begin, &|(state, writer), i| task(state, writer, i));
        }
        // Nobody else sends meanwhile; what is on its way passes first.
        let failed = |e| self.vulkan.failed(self.vulkan.gpu_profile().fixed_bytes(), e);
        let mut stage = self.vulkan.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let stage = match &mut *stage {
            Some(stage) => stage,
            none => none.insert(Stage::new(&self.vulkan).map_err(failed)?),
        };
        stage.settle().map_err(failed)?;
        let threads = cores.min((stage.bytes() / LEAST_SLOT) as usize).max(1);
        let slots: Vec<Mutex<[Slot; 2]>> = stage.slots(threads).into_iter().map(Mutex::new).collect();
        let begin = |thread: usize| (S::default(), thread);
        on_threads(threads, count, &begin, &|(state, thread), i| {
            // Each thread has its own, so nobody waits here.
            let mut slots = slots[*thread].lock().unwrap_or_else(PoisonError::into_inner);
            task(state, &mut Writer { memory: self, slots: Some(&mut slots) }, i)
        })?;
        let slots = slots.into_iter().flat_map(|slots| slots.into_inner().unwrap_or_else(PoisonError::into_inner));
        slots.into_iter().try_for_each(|mut slot| slot.settle()).map_err(|e| self.vulkan.died(e))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let to = self.range(address, bytes.len() as u64);
        if self.writes(&to.buffer) {
            return to.buffer.write_at(to.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| stage.send(&self.vulkan, bytes, &to))
    }

    fn copy_from(&self, other: &VulkanMemory, copies: &[MemoryCopy]) -> Result<(), BackendError> {
        if copies.is_empty() {
            return Ok(());
        }
        let mut recorder = Recorder::new(self.vulkan.device(), QueueKind::Transfer);
        for copy in copies {
            let (from, to) = (other.range(copy.from, copy.bytes), self.range(copy.to, copy.bytes));
            match from.buffer.is_of(self.vulkan.device()) {
                true => recorder.copy(from, to).map_err(|e| self.vulkan.failed(0, e))?,
                // The same card, opened another time.
                false => {
                    let mut bytes = vec![0; from.bytes as usize];
                    from.buffer.read_at(from.offset, &mut bytes).map_err(|e| self.vulkan.failed(0, e))?;
                    self.write(copy.to, &bytes)?;
                }
            }
        }
        let done = recorder.finish().and_then(|mut copies| {
            copies.submit()?;
            copies.wait()
        });
        done.map_err(|e| self.vulkan.died(e))
    }

    fn settle(&self) -> Result<(), BackendError> {
        let mut stage = self.vulkan.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        stage.as_mut().map_or(Ok(()), Stage::settle).map_err(|e| self.vulkan.failed(0, e))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        let from = self.range(address, bytes.len() as u64);
        if self.reads(&from.buffer) {
            return from.buffer.read_at(from.offset, bytes).map_err(|e| self.vulkan.failed(0, e));
        }
        self.staged(|stage| stage.fetch(&self.vulkan, &from, bytes))
    }
}
