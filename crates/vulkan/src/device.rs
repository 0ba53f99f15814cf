//! An open device: compiling kernels, and running one.

use std::ffi::CString;
use std::sync::Arc;

use ash::vk;

use crate::commands::bind;
use crate::error::{Named, VulkanError};
use crate::features::VulkanFeatures;
use crate::instance::Inner;
use crate::memory::Buffer;
use crate::physical::PhysicalDevice;
use crate::pipeline_cache::Identity;
use crate::queue::{Queue, QueueIndex, QueueKind};
use impasto_graph::Meter;

/// An open device with its queues.
#[derive(Clone)]
pub struct VulkanDevice(pub(crate) Arc<DeviceInner>);

pub(crate) struct DeviceInner {
    pub(crate) raw: ash::Device,
    /// By [`QueueKind`].
    pub(crate) queues: Vec<Queue>,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    features: VulkanFeatures,
    instance: Arc<Inner>,
    /// The driver's pipeline cache; merged into by one thread at a time.
    pub(crate) pipelines: vk::PipelineCache,
    pub(crate) cache_lock: std::sync::RwLock<()>,
    pub(crate) identity: Identity,
    pub(crate) meter: Meter,
    /// Host memory for offloaded values.
    pub(crate) offloaded: Meter,
    #[cfg(feature = "faults")]
    pub(crate) name: std::sync::OnceLock<String>,
}

impl VulkanDevice {
    /// Opens a device with its first queue that computes, another for copies where it has one, and all [`VulkanFeatures`] that it has.
    pub fn open(physical: &PhysicalDevice) -> Result<VulkanDevice, VulkanError> {
        VulkanDevice::open_for(physical, &[])
    }

    /// Opens a device as [`open`](VulkanDevice::open) does, and with what modules with these capabilities need, by their numbers in SPIR-V. What the device
    /// lacks of that is an error, with the name of the feature.
    pub fn open_for(physical: &PhysicalDevice, capabilities: &[u32]) -> Result<VulkanDevice, VulkanError> {
        physical.offers(capabilities)?;
        let (kernels, copies) = physical.queues().ok_or(VulkanError::Lacks("queue for computing"))?;
        let device = VulkanDevice::with_queues(physical, capabilities, kernels, copies)?;
        // A second queue is believed when it has copied something.
        let holds = copies.is_none() || device.transfer_queue_copies().unwrap_or(false);
        device.meter().start_over();
        match holds {
            true => Ok(device),
            false => VulkanDevice::with_queues(physical, capabilities, kernels, None),
        }
    }

    fn with_queues(
        physical: &PhysicalDevice,
        capabilities: &[u32],
        kernels: QueueIndex,
        copies: Option<QueueIndex>,
    ) -> Result<VulkanDevice, VulkanError> {
        let features = physical.features();
        let raw = physical.create(kernels, copies, &features, capabilities).named("vkCreateDevice")?;
        let instance = physical.instance.clone();
        // SAFETY: the handle belongs to the instance, which lives.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(physical.handle) };
        // SAFETY: as above.
        let told = unsafe { instance.raw.get_physical_device_properties(physical.handle) };
        let identity = Identity { vendor: told.vendor_id, device: told.device_id, driver: told.pipeline_cache_uuid };
        let (pipelines, cache_lock) = (vk::PipelineCache::null(), std::sync::RwLock::new(()));
        let meter = Meter::new();
        // Owned from here on, so that an error below closes it.
        let mut opened = DeviceInner {
            raw,
            queues: Vec::new(),
            memory,
            features,
            instance,
            pipelines,
            cache_lock,
            identity,
            meter,
            offloaded: Meter::new(),
            #[cfg(feature = "faults")]
            name: std::sync::OnceLock::new(),
        };
        let info = vk::PipelineCacheCreateInfo::default();
        // SAFETY: `info` is complete and lives until the call returns.
        opened.pipelines = unsafe { opened.raw.create_pipeline_cache(&info, None) }.named("vkCreatePipelineCache")?;
        opened.queues.push(Queue::new(&opened.raw, kernels, opened.counter()?));
        let timeline = opened.counter()?;
        opened.queues.push(match copies {
            Some(found) => Queue::new(&opened.raw, found, timeline),
            None => opened.queues[0].beside(timeline),
        });
        Ok(VulkanDevice(Arc::new(opened)))
    }

    /// Sets the name under which faults are injected into it. Without one it has none.
    #[cfg(feature = "faults")]
    pub fn set_name(&self, name: &str) {
        let _ = self.0.name.set(name.into());
    }

    /// Seconds of one tick of the device's clock, if it has one for this queue.
    pub(crate) fn timestamp_period(&self, kind: QueueKind) -> Option<f64> {
        let nanoseconds = f64::from(self.0.features.limits.tick_picoseconds) / 1e3;
        (nanoseconds > 0.0 && self.queue(kind).clock).then_some(nanoseconds / 1e9)
    }

    /// The features that are enabled.
    pub fn features(&self) -> &VulkanFeatures {
        &self.0.features
    }

    /// Compiles a kernel: the entry point of a SPIR-V module that the interface names.
    ///
    /// # Safety
    ///
    /// The words must be a valid module for this device, of that interface: a driver does not check them. What the kernel reads
    /// and writes must lie in the buffers that [`run`](VulkanDevice::run) is given.
    pub unsafe fn pipeline(&self, words: &[u32], interface: &Interface<'_>) -> Result<ComputePipeline, VulkanError> {
        let device = &self.0.raw;
        let (features, limits) = (&self.0.features, &self.0.features.limits);
        let &Interface { entry, buffers, constants, subgroup, uniforms, unoptimised } = interface;
        if constants > limits.constants {
            return Err(VulkanError::TooLarge { wanted: constants.into(), have: limits.constants.into() });
        }
        if buffers > limits.buffers {
            return Err(VulkanError::TooMany { what: "buffers", wanted: buffers, have: limits.buffers });
        }
        let name = CString::new(entry).map_err(|_| VulkanError::Lacks("entry point with a zero in its name"))?;
        let (least, most) = features.subgroup_sizes;
        let choice = |n: u32| features.subgroup_choice && n.is_power_of_two() && (least..=most).contains(&n);
        if subgroup.is_some_and(|n| !choice(n)) {
            return Err(VulkanError::Lacks("subgroups of that size to choose"));
        }
        let mut pipeline = ComputePipeline {
            device: self.clone(),
            buffers,
            uniforms: uniforms.to_vec(),
            constants,
            set: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            module: vk::ShaderModule::null(),
            raw: vk::Pipeline::null(),
        };
        let slot = |number| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(number)
                .descriptor_type(kind_of(uniforms, number))
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let slots: Vec<_> = (0..buffers).map(slot).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&slots);
        // SAFETY: here and below, each structure is complete and lives until its call returns, and all handles are of this device.
        pipeline.set =
            unsafe { device.create_descriptor_set_layout(&info, None) }.named("vkCreateDescriptorSetLayout")?;
        let sets = [pipeline.set];
        // Vulkan counts push constants in words.
        let range = vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(constants.next_multiple_of(4));
        let ranges = [range];
        let info = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(&sets)
            .push_constant_ranges(&ranges[..usize::from(constants > 0)]);
        // SAFETY: as above.
        pipeline.layout = unsafe { device.create_pipeline_layout(&info, None) }.named("vkCreatePipelineLayout")?;
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: as above; the caller vouches for the words.
        pipeline.module = unsafe { device.create_shader_module(&info, None) }.named("vkCreateShaderModule")?;
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(subgroup.unwrap_or(0));
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(pipeline.module)
            .name(&name);
        if subgroup.is_some() {
            stage = stage.push_next(&mut size);
        }
        let flags = match unoptimised {
            true => vk::PipelineCreateFlags::DISABLE_OPTIMIZATION,
            false => vk::PipelineCreateFlags::empty(),
        };
        let infos = [vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(pipeline.layout)];
        let _remembering = self.0.cache_lock.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: as above; several threads may use the cache at a time.
        let made = unsafe { device.create_compute_pipelines(self.0.pipelines, &infos, None) };
        let made = made.map_err(|(_, result)| result).named("vkCreateComputePipelines")?;
        pipeline.raw = made.first().copied().ok_or(VulkanError::Lacks("pipeline in its answer"))?;
        Ok(pipeline)
    }

    /// Runs a kernel over `groups` workgroups, with the bytes of its push constants, and waits for its end.
    pub fn run(
        &self,
        pipeline: &ComputePipeline,
        buffers: &[&Buffer],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<(), VulkanError> {
        let fits = buffers.len() == pipeline.buffers as usize && constants.len() == pipeline.constants as usize;
        if !fits || !Arc::ptr_eq(&self.0, &pipeline.device.0) {
            return Err(VulkanError::Lacks("such kernel for these buffers and constants"));
        }
        if buffers.iter().any(|buffer| !Arc::ptr_eq(&self.0, &buffer.device.0)) {
            return Err(VulkanError::Lacks("such buffer"));
        }
        let most = self.0.features.limits.groups;
        if let Some((&wanted, &have)) = groups.iter().zip(&most).find(|(wanted, have)| wanted > have) {
            return Err(VulkanError::TooMany { what: "workgroups", wanted, have });
        }
        let mut work = Work {
            device: self,
            pool: vk::DescriptorPool::null(),
            commands: vk::CommandPool::null(),
            fence: vk::Fence::null(),
        };
        work.run(pipeline, buffers, constants, groups)
    }
}

impl DeviceInner {
    /// Creates a timeline semaphore; null where the device has none.
    fn counter(&self) -> Result<vk::Semaphore, VulkanError> {
        if !self.features.timeline {
            return Ok(vk::Semaphore::null());
        }
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: `info` is complete and lives until the call returns; the device has the feature.
        unsafe { self.raw.create_semaphore(&info, None) }.named("vkCreateSemaphore")
    }
}

/// The objects of one run.
struct Work<'a> {
    device: &'a VulkanDevice,
    pool: vk::DescriptorPool,
    commands: vk::CommandPool,
    fence: vk::Fence,
}

impl Work<'_> {
    fn run(
        &mut self,
        pipeline: &ComputePipeline,
        buffers: &[&Buffer],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<(), VulkanError> {
        let (device, queue) = (&self.device.0.raw, self.device.queue(QueueKind::Compute));
        let kinds = [vk::DescriptorType::STORAGE_BUFFER, vk::DescriptorType::UNIFORM_BUFFER];
        let sizes = kinds.map(|ty| vk::DescriptorPoolSize::default().ty(ty).descriptor_count(pipeline.buffers.max(1)));
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        // SAFETY: here and below, each structure is complete and lives until its call returns, and all handles are of this device.
        self.pool = unsafe { device.create_descriptor_pool(&info, None) }.named("vkCreateDescriptorPool")?;
        let layouts = [pipeline.set];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.pool).set_layouts(&layouts);
        // SAFETY: as above.
        let sets = unsafe { device.allocate_descriptor_sets(&info) }.named("vkAllocateDescriptorSets")?;
        let set = sets.first().copied().ok_or(VulkanError::Lacks("descriptor set in its answer"))?;
        let whole = |buffer: &&Buffer| vk::DescriptorBufferInfo::default().buffer(buffer.raw).range(vk::WHOLE_SIZE);
        bind(device, set, &pipeline.uniforms, buffers.iter().map(whole));

        let info = vk::CommandPoolCreateInfo::default().queue_family_index(queue.family);
        // SAFETY: as above.
        self.commands = unsafe { device.create_command_pool(&info, None) }.named("vkCreateCommandPool")?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.commands).command_buffer_count(1);
        // SAFETY: as above.
        let list = unsafe { device.allocate_command_buffers(&info) }.named("vkAllocateCommandBuffers")?;
        let commands = list.first().copied().ok_or(VulkanError::Lacks("command buffer in its answer"))?;
        // What the kernel wrote must be seen by the host.
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let mut padded = constants.to_vec();
        padded.resize(constants.len().next_multiple_of(4), 0);
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the commands are recorded in order by this thread alone, with handles of this device that outlive the run.
        unsafe {
            device.begin_command_buffer(commands, &begin).named("vkBeginCommandBuffer")?;
            device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
            device.cmd_bind_descriptor_sets(commands, vk::PipelineBindPoint::COMPUTE, pipeline.layout, 0, &[set], &[]);
            if !padded.is_empty() {
                device.cmd_push_constants(commands, pipeline.layout, vk::ShaderStageFlags::COMPUTE, 0, &padded);
            }
            device.cmd_dispatch(commands, groups[0], groups[1], groups[2]);
            device.cmd_pipeline_barrier(
                commands,
                vk::PipelineStageFlags::COMPUTE_SHADER,
                vk::PipelineStageFlags::HOST,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
            device.end_command_buffer(commands).named("vkEndCommandBuffer")?;
        }
        // SAFETY: as above.
        self.fence = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }.named("vkCreateFence")?;
        let lists = [commands];
        let submit = [vk::SubmitInfo::default().command_buffers(&lists)];
        queue.submit(device, &submit, self.fence)?;
        // SAFETY: the fence was submitted.
        unsafe { device.wait_for_fences(&[self.fence], true, u64::MAX) }.named("vkWaitForFences")
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let device = &self.device.0.raw;
        // SAFETY: the fence was waited for, or nothing was submitted; null handles are allowed.
        unsafe {
            device.destroy_fence(self.fence, None);
            device.destroy_command_pool(self.commands, None);
            device.destroy_descriptor_pool(self.pool, None);
        }
    }
}

/// The entry point and the bindings of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface<'a> {
    /// The name of the entry point.
    pub entry: &'a str,
    /// Storage buffers, at bindings 0 and on of set 0.
    pub buffers: u32,
    /// Bytes of push constants.
    pub constants: u32,
    /// Invocations in a subgroup, where the kernel counts on a number: a power of two among [`VulkanFeatures::subgroup_sizes`].
    pub subgroup: Option<u32>,
    /// Those of the bindings that are uniform buffers instead.
    pub uniforms: &'a [u32],
    /// Compile without optimisation: slower kernels, for modules that the driver's optimiser cannot handle.
    pub unoptimised: bool,
}

/// The descriptor type of a binding.
pub(crate) fn kind_of(uniforms: &[u32], binding: u32) -> vk::DescriptorType {
    match uniforms.contains(&binding) {
        true => vk::DescriptorType::UNIFORM_BUFFER,
        false => vk::DescriptorType::STORAGE_BUFFER,
    }
}

/// A compiled kernel.
pub struct ComputePipeline {
    pub(crate) device: VulkanDevice,
    pub(crate) buffers: u32,
    pub(crate) uniforms: Vec<u32>,
    pub(crate) constants: u32,
    pub(crate) set: vk::DescriptorSetLayout,
    pub(crate) layout: vk::PipelineLayout,
    module: vk::ShaderModule,
    pub(crate) raw: vk::Pipeline,
}

impl Drop for ComputePipeline {
    fn drop(&mut self) {
        let device = &self.device.0.raw;
        // SAFETY: runs are waited for, so nothing uses these any more; null handles are allowed.
        unsafe {
            device.destroy_pipeline(self.raw, None);
            device.destroy_shader_module(self.module, None);
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_descriptor_set_layout(self.set, None);
        }
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // The instance is a field of this, so it ends after the device.
        let _ = &self.instance;
        // SAFETY: buffers, pipelines and recordings hold the device, so this is its last use; null handles are allowed.
        unsafe {
            self.raw.destroy_pipeline_cache(self.pipelines, None);
            self.queues.iter().for_each(|queue| self.raw.destroy_semaphore(queue.timeline(), None));
            self.raw.destroy_device(None);
        }
    }
}
