//! Command buffers, recorded once and submitted as often as wanted.

use std::sync::Arc;

use ash::vk;

use crate::device::{ComputePipeline, VulkanDevice};
use crate::error::{Named, VulkanError};
use crate::memory::Buffer;
use crate::queue::{QueueKind, TimelinePoint};

/// A range of a buffer, as a kernel or a copy uses it.
#[derive(Clone)]
pub struct BufferRange {
    /// The buffer.
    pub buffer: Arc<Buffer>,
    /// Where the range begins. Kernels need a multiple of [`KernelLimits::alignment`](crate::KernelLimits::alignment).
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl BufferRange {
    /// Whether the two have a byte in common.
    pub fn overlaps(&self, other: &BufferRange) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }

    /// A range within this one.
    pub fn within(&self, offset: u64, bytes: u64) -> BufferRange {
        BufferRange { buffer: self.buffer.clone(), offset: self.offset + offset, bytes }
    }
}

enum Command {
    Run { pipeline: Arc<ComputePipeline>, ranges: Vec<BufferRange>, groups: [u32; 3] },
    Copy { from: BufferRange, to: BufferRange },
    Clear(BufferRange),
    Barrier,
    Timestamp,
}

/// Records commands.
pub struct Recorder {
    device: VulkanDevice,
    kind: QueueKind,
    commands: Vec<Command>,
    timestamps: u32,
}

/// A recorded command buffer. It owns all that it uses.
pub struct Recording {
    device: VulkanDevice,
    sets: vk::DescriptorPool,
    pool: vk::CommandPool,
    list: vk::CommandBuffer,
    queries: vk::QueryPool,
    timestamps: u32,
    /// What it must not outlive.
    _uses: Vec<Command>,
    /// The point on the timeline at which its last run ends.
    done_at: TimelinePoint,
}

impl Recorder {
    /// Begins a recording for a queue of the device.
    pub fn new(device: &VulkanDevice, kind: QueueKind) -> Recorder {
        Recorder { device: device.clone(), kind, commands: Vec::new(), timestamps: 0 }
    }

    /// Runs a kernel over so many workgroups.
    pub fn run(
        &mut self,
        pipeline: &Arc<ComputePipeline>,
        ranges: Vec<BufferRange>,
        groups: [u32; 3],
    ) -> Result<(), VulkanError> {
        let limits = &self.device.features().limits;
        let same = |device: &VulkanDevice| Arc::ptr_eq(&self.device.0, &device.0);
        if self.kind == QueueKind::Transfer {
            return Err(VulkanError::Lacks("kernels on the queue for copies"));
        }
        if ranges.len() != pipeline.buffers as usize || pipeline.constants != 0 || !same(&pipeline.device) {
            return Err(VulkanError::Lacks("such kernel for these buffers"));
        }
        if let Some((&wanted, &have)) = groups.iter().zip(&limits.groups).find(|(wanted, have)| wanted > have) {
            return Err(VulkanError::TooMany { what: "workgroups", wanted, have });
        }
        for range in &ranges {
            self.check(range)?;
            if range.bytes > limits.binding {
                return Err(VulkanError::TooLarge { wanted: range.bytes, have: limits.binding });
            }
            if !range.offset.is_multiple_of(limits.alignment) {
                return Err(VulkanError::Lacks("way to bind a buffer at such an offset"));
            }
        }
        self.commands.push(Command::Run { pipeline: pipeline.clone(), ranges, groups });
        Ok(())
    }

    /// Copies bytes.
    pub fn copy(&mut self, from: BufferRange, to: BufferRange) -> Result<(), VulkanError> {
        self.check(&from)?;
        self.check(&to)?;
        if from.bytes != to.bytes {
            return Err(VulkanError::TooLarge { wanted: from.bytes, have: to.bytes });
        }
        self.commands.push(Command::Copy { from, to });
        Ok(())
    }

    /// Fills a range with zeros. Offset and length must be multiples of four.
    pub fn clear(&mut self, range: BufferRange) -> Result<(), VulkanError> {
        self.check(&range)?;
        self.commands.push(Command::Clear(range));
        Ok(())
    }

    /// A pipeline barrier: what was recorded before it ends, and its writes are visible, before what follows begins.
    pub fn barrier(&mut self) {
        self.commands.push(Command::Barrier);
    }

    /// Writes a timestamp when all before it has ended.
    pub fn timestamp(&mut self) {
        self.commands.push(Command::Timestamp);
        self.timestamps += 1;
    }

    fn check(&self, range: &BufferRange) -> Result<(), VulkanError> {
        let (wanted, have) = (range.offset.saturating_add(range.bytes), range.buffer.bytes());
        if !Arc::ptr_eq(&self.device.0, &range.buffer.device.0) {
            return Err(VulkanError::Lacks("such buffer"));
        }
        if wanted > have { Err(VulkanError::TooLarge { wanted, have }) } else { Ok(()) }
    }

    /// Ends the recording.
    pub fn finish(self) -> Result<Recording, VulkanError> {
        let Recorder { device, kind, commands, timestamps } = self;
        let timestamps = if device.timestamp_period(kind).is_some() { timestamps } else { 0 };
        let mut made = Recording {
            device,
            sets: vk::DescriptorPool::null(),
            pool: vk::CommandPool::null(),
            list: vk::CommandBuffer::null(),
            queries: vk::QueryPool::null(),
            timestamps,
            _uses: Vec::new(),
            done_at: TimelinePoint { kind, number: 0 },
        };
        made.record(&commands)?;
        made._uses = commands;
        Ok(made)
    }
}

impl Recording {
    fn record(&mut self, commands: &[Command]) -> Result<(), VulkanError> {
        let opened = self.device.0.clone();
        let device = &opened.raw;
        let sets = self.describe(commands)?;
        let (kind, work) = (self.done_at.kind, stages(self.done_at.kind));
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.device.queue(kind).family);
        // SAFETY: here and below, each structure is complete and lives until its call returns, and all handles are of this device.
        self.pool = unsafe { device.create_command_pool(&info, None) }.named("vkCreateCommandPool")?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
        // SAFETY: as above.
        let lists = unsafe { device.allocate_command_buffers(&info) }.named("vkAllocateCommandBuffers")?;
        self.list = lists.first().copied().ok_or(VulkanError::Lacks("command buffer in its answer"))?;
        if self.timestamps > 0 {
            let info =
                vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(self.timestamps);
            // SAFETY: as above.
            self.queries = unsafe { device.create_query_pool(&info, None) }.named("vkCreateQueryPool")?;
        }
        let list = self.list;
        // SAFETY: as above; the list is written by this thread alone.
        unsafe { device.begin_command_buffer(list, &vk::CommandBufferBeginInfo::default()) }
            .named("vkBeginCommandBuffer")?;
        if self.timestamps > 0 {
            // SAFETY: as above.
            unsafe { device.cmd_reset_query_pool(list, self.queries, 0, self.timestamps) };
        }
        // What the host or an earlier list has written is seen by the first command.
        barrier(device, list, work, vk::PipelineStageFlags::HOST);
        let (mut sets, mut stamp) = (sets.into_iter(), 0);
        for command in commands {
            // SAFETY: as above; ranges lie within their buffers, which `Recorder` has made sure of, and the recording holds them.
            unsafe {
                match command {
                    Command::Run { pipeline, groups, .. } => {
                        let set = sets.next().ok_or(VulkanError::Lacks("descriptor set in its answer"))?;
                        device.cmd_bind_pipeline(list, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
                        device.cmd_bind_descriptor_sets(
                            list,
                            vk::PipelineBindPoint::COMPUTE,
                            pipeline.layout,
                            0,
                            &[set],
                            &[],
                        );
                        device.cmd_dispatch(list, groups[0], groups[1], groups[2]);
                    }
                    Command::Copy { from, to } => {
                        let region =
                            [vk::BufferCopy::default().src_offset(from.offset).dst_offset(to.offset).size(from.bytes)];
                        if from.bytes > 0 {
                            device.cmd_copy_buffer(list, from.buffer.raw, to.buffer.raw, &region);
                        }
                    }
                    Command::Clear(range) => {
                        device.cmd_fill_buffer(list, range.buffer.raw, range.offset, range.bytes, 0)
                    }
                    Command::Barrier => barrier(device, list, work, vk::PipelineStageFlags::empty()),
                    Command::Timestamp if self.timestamps > 0 => {
                        let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
                        device.cmd_write_timestamp(list, stage, self.queries, stamp);
                        stamp += 1;
                    }
                    Command::Timestamp => {}
                }
            }
        }
        // What was written is seen by the host.
        let seen = [vk::MemoryBarrier::default()
            .src_access_mask(accesses(work).1)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        // SAFETY: as above.
        unsafe {
            let (host, none) = (vk::PipelineStageFlags::HOST, vk::DependencyFlags::empty());
            device.cmd_pipeline_barrier(list, work, host, none, &seen, &[], &[]);
            device.end_command_buffer(list).named("vkEndCommandBuffer")
        }
    }

    /// A descriptor set for each run of a kernel.
    fn describe(&mut self, commands: &[Command]) -> Result<Vec<vk::DescriptorSet>, VulkanError> {
        let device = &self.device.0.raw;
        let runs = || {
            commands.iter().filter_map(|command| match command {
                Command::Run { pipeline, ranges, .. } => Some((pipeline, ranges)),
                _ => None,
            })
        };
        let count = runs().count() as u32;
        if count == 0 {
            return Ok(Vec::new());
        }
        let ranges: usize = runs().map(|(_, ranges)| ranges.len()).sum();
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count((ranges as u32).max(1))];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(count).pool_sizes(&sizes);
        // SAFETY: here and below, each structure is complete and lives until its call returns, and all handles are of this device.
        self.sets = unsafe { device.create_descriptor_pool(&info, None) }.named("vkCreateDescriptorPool")?;
        let layouts: Vec<_> = runs().map(|(pipeline, _)| pipeline.set).collect();
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.sets).set_layouts(&layouts);
        // SAFETY: as above.
        let sets = unsafe { device.allocate_descriptor_sets(&info) }.named("vkAllocateDescriptorSets")?;
        for ((_, ranges), &set) in runs().zip(&sets) {
            let range = |range: &BufferRange| {
                vk::DescriptorBufferInfo::default().buffer(range.buffer.raw).offset(range.offset).range(range.bytes)
            };
            bind(device, set, &[], ranges.iter().map(range));
        }
        Ok(sets)
    }

    /// Submits the command buffer after all that was submitted to its queue before. One that still runs is waited for first.
    pub fn submit(&mut self) -> Result<(), VulkanError> {
        self.submit_after(&[])
    }

    /// Submits it to begin when these points of the other queue are reached too. Their work must have been submitted before.
    pub fn submit_after(&mut self, after: &[TimelinePoint]) -> Result<(), VulkanError> {
        self.wait()?;
        self.done_at = self.device.submit(self.list, self.done_at.kind, after)?;
        Ok(())
    }

    /// The point on the timeline at which its last run ends.
    pub fn done_at(&self) -> TimelinePoint {
        self.done_at
    }

    /// Waits until its last run has ended.
    pub fn wait(&self) -> Result<(), VulkanError> {
        self.device.wait_until(self.done_at)
    }

    /// Seconds between consecutive timestamps of the last run; none where the queue has no timestamps.
    pub fn seconds(&self) -> Result<Vec<f64>, VulkanError> {
        let Some(tick) =
            self.device.timestamp_period(self.done_at.kind).filter(|_| self.timestamps > 1 && self.done_at.number > 0)
        else {
            return Ok(Vec::new());
        };
        self.wait()?;
        let mut ticks = vec![0u64; self.timestamps as usize];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the list has run and written all of its timestamps.
        unsafe { self.device.0.raw.get_query_pool_results(self.queries, 0, &mut ticks, flags) }
            .named("vkGetQueryPoolResults")?;
        Ok(ticks.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as f64 * tick).collect())
    }
}

/// Puts ranges of buffers at bindings 0 and on of a set.
pub(crate) fn bind(
    device: &ash::Device,
    set: vk::DescriptorSet,
    uniforms: &[u32],
    ranges: impl Iterator<Item = vk::DescriptorBufferInfo>,
) {
    let ranges: Vec<[vk::DescriptorBufferInfo; 1]> = ranges.map(|range| [range]).collect();
    let writes: Vec<_> = (0..)
        .zip(&ranges)
        .map(|(binding, range)| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(binding)
                .descriptor_type(crate::device::kind_of(uniforms, binding))
                .buffer_info(range)
        })
        .collect();
    // SAFETY: the set and the buffers are of this device, and the structures live until the call returns.
    unsafe { device.update_descriptor_sets(&writes, &[]) };
}

/// The pipeline stages of a queue.
fn stages(kind: QueueKind) -> vk::PipelineStageFlags {
    match kind {
        QueueKind::Compute => vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
        QueueKind::Transfer => vk::PipelineStageFlags::TRANSFER,
    }
}

/// The read and write accesses of these stages.
fn accesses(stages: vk::PipelineStageFlags) -> (vk::AccessFlags, vk::AccessFlags) {
    let mut all = (vk::AccessFlags::empty(), vk::AccessFlags::empty());
    for (stage, reads, writes) in [
        (vk::PipelineStageFlags::COMPUTE_SHADER, vk::AccessFlags::SHADER_READ, vk::AccessFlags::SHADER_WRITE),
        (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_READ, vk::AccessFlags::TRANSFER_WRITE),
        (vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ, vk::AccessFlags::HOST_WRITE),
    ] {
        if stages.contains(stage) {
            all = (all.0 | reads, all.1 | writes);
        }
    }
    all
}

/// Makes later work wait for earlier work and for `others`, and see what they wrote.
fn barrier(
    device: &ash::Device,
    list: vk::CommandBuffer,
    work: vk::PipelineStageFlags,
    others: vk::PipelineStageFlags,
) {
    let (reads, writes) = accesses(work);
    let before = accesses(work | others).1;
    let memory = [vk::MemoryBarrier::default().src_access_mask(before).dst_access_mask(reads | writes)];
    let none = vk::DependencyFlags::empty();
    // SAFETY: the list is being written, by this thread alone.
    unsafe { device.cmd_pipeline_barrier(list, work | others, work, none, &memory, &[], &[]) };
}

impl Drop for Recording {
    fn drop(&mut self) {
        // A device that is lost has ended all of its work; there is nobody to tell.
        let _ = self.wait();
        let device = &self.device.0.raw;
        // SAFETY: the list has ended; null handles are allowed.
        unsafe {
            device.destroy_query_pool(self.queries, None);
            device.destroy_command_pool(self.pool, None);
            device.destroy_descriptor_pool(self.sets, None);
        }
    }
}
