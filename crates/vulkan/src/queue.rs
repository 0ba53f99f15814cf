//! Queues: one on which kernels run, and one for copies that run beside them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

use crate::commands::{Part, Recorder};
use crate::device::Device;
use crate::error::{Named, VulkanError};
use crate::memory::{Buffer, Home};
use crate::physical::Physical;

/// What lists of commands go one behind the other. Where a device has one queue only, both are on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Kernels, and copies among them.
    Kernels,
    /// Copies alone, which run beside kernels where the device has a second queue.
    Copies,
}

impl Lane {
    fn other(self) -> Lane {
        match self {
            Lane::Kernels => Lane::Copies,
            Lane::Copies => Lane::Kernels,
        }
    }
}

/// When a list of commands has ended: a number on the timeline of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub(crate) lane: Lane,
    /// 0 for what was never handed over.
    pub(crate) number: u64,
}

pub(crate) struct Queue {
    raw: vk::Queue,
    pub(crate) family: u32,
    /// Whether its lists can note the time.
    pub(crate) clock: bool,
    /// Counts the lists of commands that have ended; null where the device cannot.
    timeline: vk::Semaphore,
    /// Vulkan leaves it to us that a queue is used by one thread at a time.
    turn: Arc<Mutex<()>>,
    /// Lists that were handed to it.
    given: AtomicU64,
    /// Lists that the host knows to have ended.
    ended: AtomicU64,
}

/// Where a queue is found: its family, and which of the family's it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) family: u32,
    pub(crate) index: u32,
    clock: bool,
}

impl Physical {
    /// The queue for kernels and, where there is another that copies, that one.
    pub(crate) fn queues(&self) -> Option<(Found, Option<Found>)> {
        // SAFETY: the handle belongs to this instance, which lives.
        let families = unsafe { self.instance.raw.get_physical_device_queue_family_properties(self.handle) };
        choose(&families)
    }
}

fn choose(families: &[vk::QueueFamilyProperties]) -> Option<(Found, Option<Found>)> {
    let all = || (0u32..).zip(families).filter(|(_, family)| family.queue_count > 0);
    let found = |(at, family): (u32, &vk::QueueFamilyProperties), index| Found {
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
    pub(crate) fn new(raw: &ash::Device, found: Found, timeline: vk::Semaphore) -> Queue {
        // SAFETY: the family has so many queues, and this one was asked for.
        let queue = unsafe { raw.get_device_queue(found.family, found.index) };
        let (given, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        Queue { raw: queue, family: found.family, clock: found.clock, timeline, turn: Arc::default(), given, ended }
    }

    /// Another lane on the same queue.
    pub(crate) fn beside(&self, timeline: vk::Semaphore) -> Queue {
        let (given, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let Queue { raw, family, clock, ref turn, .. } = *self;
        Queue { raw, family, clock, timeline, turn: turn.clone(), given, ended }
    }

    pub(crate) fn timeline(&self) -> vk::Semaphore {
        self.timeline
    }

    /// Hands work to the queue, with a fence for its end.
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

impl Device {
    pub(crate) fn queue(&self, lane: Lane) -> &Queue {
        &self.0.queues[lane as usize]
    }

    /// Whether copies have a queue of their own.
    pub fn copies_beside(&self) -> bool {
        let [kernels, copies] = Lane::both().map(|lane| self.queue(lane).raw);
        kernels != copies
    }

    /// Whether what is copied on the one lane and copied back on the other is the same.
    pub(crate) fn copies_hold(&self) -> Result<bool, VulkanError> {
        if !self.features().timeline {
            return Ok(false);
        }
        let sent: Vec<u8> = (0u32..4096).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        let homes = [Home::Host, Home::Device, Home::Host];
        let [from, there, back] = homes.map(|home| self.buffer_at(sent.len() as u64, home).map(Arc::new));
        let (from, there, back) = (from?, there?, back?);
        from.write(&sent)?;
        let whole = |buffer: &Arc<Buffer>| Part { buffer: buffer.clone(), offset: 0, bytes: buffer.bytes() };
        let mut lists = vec![];
        for (lane, a, b) in [(Lane::Copies, &from, &there), (Lane::Kernels, &there, &back)] {
            let mut recorder = Recorder::new(self, lane);
            recorder.copy(whole(a), whole(b))?;
            lists.push(recorder.finish()?);
        }
        lists[0].submit()?;
        let after = lists[0].ends();
        lists[1].submit_after(&[after])?;
        lists[1].wait()?;
        let mut read = vec![0; sent.len()];
        back.read(&mut read)?;
        Ok(read == sent)
    }

    /// Hands a list of commands to a lane, to begin when those of the other lane in `after` have ended.
    pub(crate) fn submit(&self, list: vk::CommandBuffer, lane: Lane, after: &[Ends]) -> Result<Ends, VulkanError> {
        let opened = &*self.0;
        #[cfg(feature = "faults")]
        if opened.name.get().is_some_and(|name| impasto_faults::submit(name)) {
            return Err(VulkanError::Call { call: "vkQueueSubmit", code: vk::Result::ERROR_DEVICE_LOST.as_raw() });
        }
        let (queue, other) = (self.queue(lane), self.queue(lane.other()));
        if queue.timeline == vk::Semaphore::null() {
            return Err(VulkanError::Lacks("timeline semaphores"));
        }
        // What the host knows to have ended costs no waiting, but only a wait lets this lane see what it wrote.
        let seen = other.ended.load(Ordering::Acquire);
        let wait = after.iter().filter(|ends| ends.lane != lane).map(|ends| ends.number).fold(seen, u64::max);
        let some = usize::from(wait > 0);
        let _turn = queue.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let number = queue.given.load(Ordering::Relaxed) + 1;
        let (lists, ends, numbers) = ([list], [queue.timeline], [number]);
        let (waits, until, stages) = ([other.timeline], [wait], [vk::PipelineStageFlags::ALL_COMMANDS]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&until[..some])
            .signal_semaphore_values(&numbers);
        let submit = vk::SubmitInfo::default()
            .command_buffers(&lists)
            .signal_semaphores(&ends)
            .wait_semaphores(&waits[..some])
            .wait_dst_stage_mask(&stages[..some]);
        let work = [submit.push_next(&mut timeline)];
        // SAFETY: the lock makes this the only thread on the queue; all handles are of this device.
        unsafe { opened.raw.queue_submit(queue.raw, &work, vk::Fence::null()) }.named("vkQueueSubmit")?;
        queue.given.store(number, Ordering::Relaxed);
        Ok(Ends { lane, number })
    }

    /// Waits until a list of commands has ended.
    pub(crate) fn wait_until(&self, ends: Ends) -> Result<(), VulkanError> {
        let queue = self.queue(ends.lane);
        if ends.number <= queue.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let (semaphores, values) = ([queue.timeline], [ends.number]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: `info` is complete and lives until the call returns; the semaphore is of this device.
        unsafe { self.0.raw.wait_semaphores(&info, u64::MAX) }.named("vkWaitSemaphores")?;
        queue.ended.fetch_max(ends.number, Ordering::Release);
        Ok(())
    }
}

impl Lane {
    pub(crate) const fn both() -> [Lane; 2] {
        [Lane::Kernels, Lane::Copies]
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
