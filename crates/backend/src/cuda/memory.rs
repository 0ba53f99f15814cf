//! Memory of a device in as few allocations as it allows, and staging in and out of it.

use std::sync::{Arc, Mutex, PoisonError};

use impasto_cuda::{CudaBuffer, CudaError, CudaEvent, CudaLocation, CudaRange};
use impasto_graph::Capabilities;

use super::Cuda;
use crate::BackendError;
use crate::gpu::{FillTask, Gpu, GpuMemory, MemoryCopy, MemoryWriter, Residence, WriteBytes};
use crate::tasks::on_threads;

/// Pieces of memory, as one space of addresses.
pub(crate) struct CudaMemory {
    cuda: Cuda,
    /// Each with the address at which it begins.
    pieces: Vec<(u64, Arc<CudaBuffer>)>,
}

/// A range of the staging buffer that one thread fills, or reads.
struct Slot {
    range: CudaRange,
    /// The end of the copy that was begun last.
    done: CudaEvent,
    copying: bool,
}

impl Slot {
    fn new(cuda: &Cuda, range: CudaRange) -> Result<Slot, CudaError> {
        Ok(Slot { range, done: cuda.device().event(false)?, copying: false })
    }

    /// Waits until the device needs it no more.
    fn settle(&mut self) -> Result<(), CudaError> {
        if std::mem::take(&mut self.copying) { self.done.synchronise() } else { Ok(()) }
    }

    /// Begins a copy of which it is one side.
    fn copy(&mut self, cuda: &Cuda, from: &CudaRange, to: &CudaRange) -> Result<(), CudaError> {
        let stream = &cuda.streams().copy;
        stream.copy(from, to)?;
        stream.record(&self.done)?;
        self.copying = true;
        Ok(())
    }

    /// Begins to copy its first bytes to the device.
    fn send(&mut self, cuda: &Cuda, to: &CudaRange) -> Result<(), CudaError> {
        self.copy(cuda, &self.range.within(0, to.bytes), to)
    }

    /// Begins to copy bytes of the device into it.
    fn fetch(&mut self, cuda: &Cuda, from: &CudaRange) -> Result<(), CudaError> {
        self.copy(cuda, from, &self.range.within(0, from.bytes))
    }

    /// Its first bytes, where the host sees them. The slot is settled before.
    fn bytes(&mut self, count: usize) -> Result<&mut [u8], CudaError> {
        self.settle()?;
        // SAFETY: the slot is the caller's alone, and the device has done with it.
        unsafe { self.range.buffer.slice_mut(self.range.offset, count) }
    }
}

/// The staging buffer of a device: one half is written while the device copies from the other.
pub(super) struct Stage {
    halves: [Slot; 2],
    next: usize,
}

/// The fewest bytes that are worth a copy of their own.
const LEAST_SLOT: u64 = 256 << 10;

impl Stage {
    fn new(cuda: &Cuda) -> Result<Stage, CudaError> {
        let bytes = (cuda.gpu_profile().fixed_bytes() / 2).max(4);
        let half = || {
            let buffer = Arc::new(cuda.device().allocate(bytes, CudaLocation::Staging)?);
            Slot::new(cuda, CudaRange { buffer, offset: 0, bytes })
        };
        Ok(Stage { halves: [half()?, half()?], next: 0 })
    }

    /// Bytes that pass at a time.
    fn bytes(&self) -> u64 {
        self.halves[0].range.bytes
    }

    fn settle(&mut self) -> Result<(), CudaError> {
        self.halves.iter_mut().try_for_each(Slot::settle)
    }

    /// Two slots for each of some threads.
    fn slots(&self, cuda: &Cuda, threads: usize) -> Result<Vec<[Slot; 2]>, CudaError> {
        let each = (self.bytes() / threads as u64 / 64 * 64).max(4).min(self.bytes());
        let slot = |half: usize, at: usize| Slot::new(cuda, self.halves[half].range.within(at as u64 * each, each));
        (0..threads).map(|at| Ok([slot(0, at)?, slot(1, at)?])).collect()
    }

    /// Bytes on their way to the device, which may still read them from here when this returns.
    fn send(&mut self, cuda: &Cuda, bytes: &[u8], to: &CudaRange) -> Result<(), CudaError> {
        let size = self.bytes() as usize;
        for (at, chunk) in (0..).step_by(size).zip(bytes.chunks(size)) {
            let half = &mut self.halves[self.next];
            self.next = 1 - self.next;
            half.bytes(chunk.len())?.copy_from_slice(chunk);
            half.send(cuda, &to.within(at, chunk.len() as u64))?;
        }
        Ok(())
    }

    /// Bytes from the device: the next are copied while these are read.
    fn fetch(&mut self, cuda: &Cuda, from: &CudaRange, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.settle()?;
        let (size, length) = (self.bytes(), bytes.len() as u64);
        let count = length.div_ceil(size);
        let some = |i: u64| from.within(i * size, size.min(length - i * size));
        for i in 0..=count {
            if i < count {
                self.halves[i as usize % 2].fetch(cuda, &some(i))?;
            }
            if let Some(before) = i.checked_sub(1) {
                let (at, n) = ((before * size) as usize, some(before).bytes as usize);
                bytes[at..at + n].copy_from_slice(self.halves[before as usize % 2].bytes(n)?);
            }
        }
        Ok(())
    }
}

/// One thread's access to the memory of a device: directly where it is the host's, or by two slots of the staging buffer, of which the device
/// copies one while the other is filled.
struct Writer<'a> {
    memory: &'a CudaMemory,
    slots: Option<&'a mut [Slot; 2]>,
}

impl MemoryWriter for Writer<'_> {
    fn fill(&mut self, address: u64, bytes: usize, write: &mut WriteBytes) -> Result<(), BackendError> {
        let CudaMemory { cuda, .. } = self.memory;
        let to = self.memory.range(address, bytes as u64);
        let Some(slots) = &mut self.slots else {
            // SAFETY: these bytes are one task's, and nothing reads them before they are there.
            let slice = unsafe { to.buffer.slice_mut(to.offset, bytes) }.map_err(|e| cuda.failed(0, e))?;
            return write(slice, true);
        };
        let room = slots[0].range.bytes as usize;
        if bytes <= room {
            return Writer::through(cuda, slots, &to, write);
        }
        let mut whole = vec![0; bytes];
        write(&mut whole, true)?;
        for (at, piece) in (0..).step_by(room).zip(whole.chunks(room)) {
            Writer::through(cuda, slots, &to.within(at, piece.len() as u64), &mut |slice, _| {
                slice.copy_from_slice(piece);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// The same by the slot that was sent longer ago.
    fn through(cuda: &Cuda, slots: &mut [Slot; 2], to: &CudaRange, write: &mut WriteBytes) -> Result<(), BackendError> {
        slots.swap(0, 1);
        let slot = &mut slots[0];
        write(slot.bytes(to.bytes as usize).map_err(|e| cuda.died(e))?, true)?;
        slot.send(cuda, to).map_err(|e| cuda.died(e))
    }
}

impl CudaMemory {
    /// Takes pieces of these lengths, one after the other.
    pub(super) fn new(
        cuda: &Cuda,
        home: Residence,
        lengths: impl Iterator<Item = u64>,
    ) -> Result<CudaMemory, BackendError> {
        let location = match home {
            Residence::Device => CudaLocation::Device,
            Residence::HostMapped => CudaLocation::Offloaded,
        };
        let mut memory = CudaMemory { cuda: cuda.clone(), pieces: Vec::new() };
        let mut at = 0;
        for bytes in lengths.filter(|&bytes| bytes > 0) {
            let piece = cuda.device().allocate(bytes, location).map_err(|e| cuda.failed(bytes, e))?;
            memory.pieces.push((at, Arc::new(piece)));
            at += bytes;
        }
        Ok(memory)
    }

    /// Bytes at an address. What a plan puts there lies in one piece.
    pub(super) fn range(&self, address: u64, bytes: u64) -> CudaRange {
        let index = self.pieces.partition_point(|(start, _)| *start <= address).saturating_sub(1);
        let (start, buffer) = &self.pieces[index];
        CudaRange { buffer: buffer.clone(), offset: address - start, bytes }
    }

    /// With the staging buffer, which is taken when it is first needed.
    fn staged(&self, act: impl FnOnce(&mut Stage) -> Result<(), CudaError>) -> Result<(), BackendError> {
        let failed = |e| self.cuda.failed(self.cuda.gpu_profile().fixed_bytes(), e);
        let mut stage = self.cuda.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let stage = match &mut *stage {
            Some(stage) => stage,
            none => none.insert(Stage::new(&self.cuda).map_err(failed)?),
        };
        act(stage).map_err(failed)
    }

    /// Fills memory that the host does not see.
    fn fill_staged<S: Default>(&self, stage: &mut Stage, count: usize, task: &FillTask<S>) -> Result<(), BackendError> {
        let died = |e| self.cuda.died(e);
        stage.settle().map_err(died)?;
        let threads = impasto_device::cpu::usable_cores().min((stage.bytes() / LEAST_SLOT) as usize).max(1);
        let slots = stage.slots(&self.cuda, threads).map_err(died)?;
        let slots: Vec<Mutex<[Slot; 2]>> = slots.into_iter().map(Mutex::new).collect();
        let begin = |thread: usize| (S::default(), thread);
        on_threads(threads, count, &begin, &|(state, thread), i| {
            // Each thread has its own, so nobody waits here.
            let mut slots = slots[*thread].lock().unwrap_or_else(PoisonError::into_inner);
            task(state, &mut Writer { memory: self, slots: Some(&mut slots) }, i)
        })?;
        let slots = slots.into_iter().flat_map(|slots| slots.into_inner().unwrap_or_else(PoisonError::into_inner));
        slots.into_iter().try_for_each(|mut slot| slot.settle()).map_err(died)
    }
}

impl GpuMemory for CudaMemory {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, piece)| piece.bytes()).sum()
    }

    fn fill<S: Default>(&self, count: usize, task: &FillTask<S>) -> Result<(), BackendError> {
        if self.pieces.iter().all(|(_, piece)| piece.is_visible()) {
            let begin = |_| (S::default(), Writer { memory: self, slots: None });
            let cores = impasto_device::cpu::usable_cores();
            return on_threads(cores, count, &begin, &|(state, writer), i| task(state, writer, i));
        }
        // Nobody else sends meanwhile; what is on its way passes first.
        let mut filled = Ok(());
        self.staged(|stage| {
            filled = self.fill_staged(stage, count, task);
            Ok(())
        })?;
        filled
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let to = self.range(address, bytes.len() as u64);
        if to.buffer.is_visible() {
            // SAFETY: between two runs of a session nothing else uses its memory.
            let slice = unsafe { to.buffer.slice_mut(to.offset, bytes.len()) }.map_err(|e| self.cuda.failed(0, e))?;
            slice.copy_from_slice(bytes);
            return Ok(());
        }
        self.staged(|stage| stage.send(&self.cuda, bytes, &to))
    }

    fn copy_from(&self, other: &CudaMemory, copies: &[MemoryCopy]) -> Result<(), BackendError> {
        let stream = &self.cuda.streams().copy;
        let all = || {
            for copy in copies {
                stream.copy(&other.range(copy.from, copy.bytes), &self.range(copy.to, copy.bytes))?;
            }
            stream.synchronise()
        };
        if copies.is_empty() { Ok(()) } else { all().map_err(|e| self.cuda.died(e)) }
    }

    fn settle(&self) -> Result<(), BackendError> {
        let mut stage = self.cuda.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        stage.as_mut().map_or(Ok(()), Stage::settle).map_err(|e| self.cuda.failed(0, e))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        let from = self.range(address, bytes.len() as u64);
        if from.buffer.is_visible() {
            // SAFETY: between two runs of a session nothing else uses its memory.
            let slice = unsafe { from.buffer.slice_mut(from.offset, bytes.len()) };
            bytes.copy_from_slice(slice.map_err(|e| self.cuda.failed(0, e))?);
            return Ok(());
        }
        self.staged(|stage| stage.fetch(&self.cuda, &from, bytes))
    }
}
