//! Queues: one on which kernels run, and one for copies that run beside them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

use crate::commands::{BufferRange, Recorder};
use crate::device::VulkanDevice;
use crate::error::{Named, VulkanError};
use crate::memory::{Buffer, MemoryLocation};
use crate::physical::PhysicalDevice;

/// A queue by its use. Where a device has one queue only, both kinds share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Kernels, and the copies between them.
    Compute,
    /// Copies alone, which run beside kernels where the device has a second queue.
    Transfer,
}

impl QueueKind {
    fn other(self) -> QueueKind {
        match self {
            QueueKind::Compute => QueueKind::Transfer,
            QueueKind::Transfer => QueueKind::Compute,
        }
    }
}

/// A value of a queue's timeline semaphore: the end of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelinePoint {
    pub(crate) kind: QueueKind,
    /// 0 for what was never submitted.
    pub(crate) number: u64,
}

pub(crate) struct Queue {
    raw: vk::Queue,
    pub(crate) family: u32,
    /// Whether it writes timestamps.
    pub(crate) clock: bool,
    /// Counts the submissions that have ended; null where the device has no timeline semaphores.
    timeline: vk::Semaphore,
    /// Vulkan leaves it to us that a queue is used by one thread at a time.
    turn: Arc<Mutex<()>>,
    /// Submissions so far.
    given: AtomicU64,
    /// Submissions that the host knows to have ended.
    ended: AtomicU64,
}

/// A queue family and an index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueIndex {
    pub(crate) family: u32,
    pub(crate) index: u32,
    clock: bool,
}

impl PhysicalDevice {
    /// The queue for kernels and, where there is another that copies, that one.
    pub(crate) fn queues(&self) -> Option<(QueueIndex, Option<QueueIndex>)> {
        // SAFETY: the handle belongs to this instance, which lives.
        let families = unsafe { self.instance.raw.get_physical_device_queue_family_properties(self.handle) };
        choose(&families)
    }
}

fn choose(families: &[vk::QueueFamilyProperties]) -> Option<(QueueIndex, Option<QueueIndex>)> {
    let all = || (0u32..).zip(families).filter(|(_, family)| family.queue_count > 0);
    let found = |(at, family): (u32, &vk::QueueFamilyProperties), index| QueueIndex {
        family: at,
        index,
        // One that only copies cannot forget earlier times.
        clock: family.timestamp_valid_bits > 0 && family.queue_flags.contains(vk::QueueFlags::COMPUTE),
    };
    let is = |family: &vk::QueueFamilyProperties, flags| family.queue_flags.intersects(flags);
    let kernels = all().find(|(_, family)| is(family, vk::QueueFlags::COMPUTE))?;
    // Engines that copy and do nothing else; those of video can as well, and are left alone.
    let copies = |family: &vk::QueueFamilyProperties| {
        let plain = vk::QueueFlags::TRANSFER | vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
        is(family, vk::QueueFlags::TRANSFER) && plain.contains(family.queue_flags)
    };
    let computes = |at: u32, family: &vk::QueueFamilyProperties| at != kernels.0 && is(family, vk::QueueFlags::COMPUTE);
    let second = (kernels.1.queue_count > 1).then(|| found(kernels, 1));
    let apart = all().find(|(_, family)| copies(family)).or_else(|| all().find(|(at, family)| computes(*at, family)));
    Some((found(kernels, 0), apart.map(|one| found(one, 0)).or(second)))
}

impl Queue {
    pub(crate) fn new(raw: &ash::Device, found: QueueIndex, timeline: vk::Semaphore) -> Queue {
        // SAFETY: the family has so many queues, and this one was asked for.
        let queue = unsafe { raw.get_device_queue(found.family, found.index) };
        let (given, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        Queue { raw: queue, family: found.family, clock: found.clock, timeline, turn: Arc::default(), given, ended }
    }

    /// The same queue as the other kind, with a timeline of its own.
    pub(crate) fn beside(&self, timeline: vk::Semaphore) -> Queue {
        let (given, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let Queue { raw, family, clock, ref turn, .. } = *self;
        Queue { raw, family, clock, timeline, turn: turn.clone(), given, ended }
    }

    pub(crate) fn timeline(&self) -> vk::Semaphore {
        self.timeline
    }

    /// Submits work, with a fence for its end.
    pub(crate) fn submit(
        &self,
        device: &ash::Device,
        work: &[vk::SubmitInfo<'_>],
        fence: vk::Fence,
    ) -> Result<(), VulkanError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock makes this the only thread on the queue; all handles are of this device.
        unsafe { device.queue_submit(self.raw, work, fence) }.named("vkQueueSubmit")
    }
}

impl VulkanDevice {
    pub(crate) fn queue(&self, kind: QueueKind) -> &Queue {
        &self.0.queues[kind as usize]
    }

    /// Whether copies have a queue of their own.
    pub fn has_transfer_queue(&self) -> bool {
        let [kernels, copies] = QueueKind::both().map(|kind| self.queue(kind).raw);
        kernels != copies
    }

    /// Whether bytes survive a copy to the device on one queue and back on the other.
    pub(crate) fn transfer_queue_copies(&self) -> Result<bool, VulkanError> {
        if !self.features().timeline {
            return Ok(false);
        }
        let sent: Vec<u8> = (0u32..4096).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        let homes = [MemoryLocation::Host, MemoryLocation::Device, MemoryLocation::Host];
        let [from, there, back] = homes.map(|home| self.buffer_at(sent.len() as u64, home).map(Arc::new));
        let (from, there, back) = (from?, there?, back?);
        from.write(&sent)?;
        let whole = |buffer: &Arc<Buffer>| BufferRange { buffer: buffer.clone(), offset: 0, bytes: buffer.bytes() };
        let mut lists = vec![];
        for (kind, a, b) in [(QueueKind::Transfer, &from, &there), (QueueKind::Compute, &there, &back)] {
            let mut recorder = Recorder::new(self, kind);
            recorder.copy(whole(a), whole(b))?;
            lists.push(recorder.finish()?);
        }
        lists[0].submit()?;
        let after = lists[0].done_at();
        lists[1].submit_after(&[after])?;
        lists[1].wait()?;
        let mut read = vec![0; sent.len()];
        back.read(&mut read)?;
        Ok(read == sent)
    }

    /// Submits a command buffer to a queue, to begin when the points of the other queue in `after` are reached.
    pub(crate) fn submit(
        &self,
        list: vk::CommandBuffer,
        kind: QueueKind,
        after: &[TimelinePoint],
    ) -> Result<TimelinePoint, VulkanError> {
        let opened = &*self.0;
        #[cfg(feature = "faults")]
        if opened.name.get().is_some_and(|name| impasto_faults::submit(name)) {
            return Err(VulkanError::Call { call: "vkQueueSubmit", code: vk::Result::ERROR_DEVICE_LOST.as_raw() });
        }
        let (queue, other) = (self.queue(kind), self.queue(kind.other()));
        if queue.timeline == vk::Semaphore::null() {
            return Err(VulkanError::Lacks("timeline semaphores"));
        }
        // What the host knows to have ended costs no waiting, but only a wait lets this queue see what it wrote.
        let seen = other.ended.load(Ordering::Acquire);
        let wait = after.iter().filter(|point| point.kind != kind).map(|point| point.number).fold(seen, u64::max);
        let some = usize::from(wait > 0);
        let _turn = queue.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let number = queue.given.load(Ordering::Relaxed) + 1;
        let (lists, signals, numbers) = ([list], [queue.timeline], [number]);
        let (waits, until, stages) = ([other.timeline], [wait], [vk::PipelineStageFlags::ALL_COMMANDS]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&until[..some])
            .signal_semaphore_values(&numbers);
        let submit = vk::SubmitInfo::default()
            .command_buffers(&lists)
            .signal_semaphores(&signals)
            .wait_semaphores(&waits[..some])
            .wait_dst_stage_mask(&stages[..some]);
        let work = [submit.push_next(&mut timeline)];
        // SAFETY: the lock makes this the only thread on the queue; all handles are of this device.
        unsafe { opened.raw.queue_submit(queue.raw, &work, vk::Fence::null()) }.named("vkQueueSubmit")?;
        queue.given.store(number, Ordering::Relaxed);
        Ok(TimelinePoint { kind, number })
    }

    /// Waits until a point of a timeline is reached.
    pub(crate) fn wait_until(&self, point: TimelinePoint) -> Result<(), VulkanError> {
        let queue = self.queue(point.kind);
        if point.number <= queue.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let (semaphores, values) = ([queue.timeline], [point.number]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: `info` is complete and lives until the call returns; the semaphore is of this device.
        unsafe { self.0.raw.wait_semaphores(&info, u64::MAX) }.named("vkWaitSemaphores")?;
        queue.ended.fetch_max(point.number, Ordering::Release);
        Ok(())
    }
}

impl QueueKind {
    pub(crate) const fn both() -> [QueueKind; 2] {
        [QueueKind::Compute, QueueKind::Transfer]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(flags: vk::QueueFlags, count: u32) -> vk::QueueFamilyProperties {
        vk::QueueFamilyProperties::default().queue_flags(flags).queue_count(count).timestamp_valid_bits(64)
    }

    #[test]
    fn copies_go_where_kernels_do_not() {
        let (copies, computes) = (vk::QueueFlags::TRANSFER, vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER);
        let video = copies | vk::QueueFlags::VIDEO_DECODE_KHR;
        let chosen = |families: &[vk::QueueFamilyProperties]| {
            choose(families).map(|(kernels, copies)| {
                ((kernels.family, kernels.index), copies.map(|copies| (copies.family, copies.index)))
            })
        };
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[family(copies, 1)]), None);
        assert_eq!(chosen(&[family(computes, 1)]), Some(((0, 0), None)));
        assert_eq!(chosen(&[family(computes, 2)]), Some(((0, 0), Some((0, 1)))));
        assert_eq!(chosen(&[family(computes, 2), family(computes, 4)]), Some(((0, 0), Some((1, 0)))));
        assert_eq!(chosen(&[family(video, 1), family(computes, 1)]), Some(((1, 0), None)));
        assert_eq!(
            chosen(&[family(computes, 0), family(copies, 2), family(computes, 16)]),
            Some(((2, 0), Some((1, 0))))
        );
    }
}
