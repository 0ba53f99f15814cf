//! The features of a device that kernels use: read by [`PhysicalDevice::features`], all enabled by [`VulkanDevice::open`](crate::VulkanDevice::open).

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;

use ash::{ext, khr, vk};
use serde::{Deserialize, Serialize};

use crate::memory::visible_and_cached;
use crate::physical::{CooperativeMatrix, Extensions, PhysicalDevice};
use crate::queue::QueueIndex;

/// Younger than ash.
const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";

/// The features of a device that kernels use. On an open device all of them are enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VulkanFeatures {
    /// The Vulkan version that can be used, major and minor.
    pub version: (u32, u32),
    /// Arithmetic in 16-bit floats.
    pub f16: bool,
    /// The 16-bit brain float as a type of values.
    pub bf16: bool,
    /// Cooperative matrices of brain floats.
    pub bf16_matrix: bool,
    /// Arithmetic in 8-bit integers.
    pub i8: bool,
    /// Arithmetic in 16-bit integers.
    pub i16: bool,
    /// Arithmetic in 64-bit integers.
    pub i64: bool,
    /// Elements of 8 bits in buffers.
    pub storage8: bool,
    /// Elements of 16 bits in buffers.
    pub storage16: bool,
    /// Numbers of 16 bits in push constants.
    pub constants16: bool,
    /// Whether 16-bit floats keep the signs of zeros, infinities and NaN where a kernel asks for it.
    pub signed_zeros16: bool,
    /// The same of 32-bit floats.
    pub signed_zeros32: bool,
    /// Subgroup operations.
    pub subgroup: SubgroupOps,
    /// The smallest and the largest subgroup.
    pub subgroup_sizes: (u32, u32),
    /// Whether a kernel may choose among these sizes.
    pub subgroup_choice: bool,
    /// Cooperative matrices.
    pub matrix: bool,
    /// The shapes of its cooperative matrices.
    pub products: Vec<CooperativeMatrix>,
    /// The Vulkan memory model.
    pub memory_model: bool,
    /// Timeline semaphores, with Vulkan 1.2.
    pub timeline: bool,
    /// Whether device-local memory is host-visible: then nothing has to be staged.
    pub visible: bool,
    /// Whether that memory is host-cached too.
    pub cached: bool,
    /// Limits of compute shaders.
    pub limits: KernelLimits,
}

/// Subgroup operations of compute shaders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubgroupOps {
    /// `all` and `any`.
    pub vote: bool,
    /// Reductions and scans.
    pub arithmetic: bool,
    /// Ballots and broadcasts.
    pub ballot: bool,
    /// Shuffles between lanes.
    pub shuffle: bool,
}

/// Limits of compute shaders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLimits {
    /// Workgroups of one run: x, y, z.
    pub groups: [u32; 3],
    /// Invocations in a workgroup along x, y and z.
    pub workgroup: [u32; 3],
    /// Invocations in a workgroup.
    pub invocations: u32,
    /// Bytes of memory that a workgroup shares.
    pub shared: u32,
    /// Bytes of push constants.
    pub constants: u32,
    /// Storage buffers.
    pub buffers: u32,
    /// Bytes of a storage buffer that a kernel can reach.
    pub binding: u64,
    /// Where the part of a buffer that a kernel reaches may begin: at multiples of this.
    pub alignment: u64,
    /// A tick of the device's clock; 0 if its kernels are not timed.
    pub tick_picoseconds: u32,
}

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bfloat16Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    scalar: vk::Bool32,
    dot_product: vk::Bool32,
    cooperative_matrix: vk::Bool32,
    _marker: PhantomData<&'a ()>,
}

// SAFETY: this is the number that the registry gives the structure, and these are its fields.
unsafe impl vk::TaggedStructure for Bfloat16Features<'_> {
    const STRUCTURE_TYPE: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);
}
// SAFETY: the registry lists it as an extension of both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features<'_> {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features<'_> {}

impl Default for Bfloat16Features<'_> {
    fn default() -> Self {
        Bfloat16Features {
            s_type: <Self as vk::TaggedStructure>::STRUCTURE_TYPE,
            p_next: std::ptr::null_mut(),
            scalar: 0,
            dot_product: 0,
            cooperative_matrix: 0,
            _marker: PhantomData,
        }
    }
}

/// The chain of Vulkan structures by which features are queried and enabled.
#[derive(Default)]
pub(crate) struct FeatureChain<'a> {
    pub(crate) core: vk::PhysicalDeviceFeatures,
    pub(crate) storage16: vk::PhysicalDevice16BitStorageFeatures<'a>,
    pub(crate) storage8: vk::PhysicalDevice8BitStorageFeatures<'a>,
    pub(crate) small: vk::PhysicalDeviceShaderFloat16Int8Features<'a>,
    pub(crate) model: vk::PhysicalDeviceVulkanMemoryModelFeatures<'a>,
    timeline: vk::PhysicalDeviceTimelineSemaphoreFeatures<'a>,
    sizes: vk::PhysicalDeviceSubgroupSizeControlFeatures<'a>,
    pub(crate) matrix: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'a>,
    bfloat16: Bfloat16Features<'a>,
    // Only modules of others ask for these.
    pub(crate) atomics64: vk::PhysicalDeviceShaderAtomicInt64Features<'a>,
    pub(crate) pointers: vk::PhysicalDeviceVariablePointersFeatures<'a>,
    pub(crate) dot: vk::PhysicalDeviceShaderIntegerDotProductFeatures<'a>,
}

/// The Vulkan version and the extensions of a device.
struct Supported {
    core: u32,
    extensions: Extensions,
}

impl Supported {
    /// Whether a feature structure is there: by the version that took its extension in, or by the extension.
    fn has(&self, since: u32, name: &CStr) -> bool {
        self.modern() && (self.core >= since || self.extensions.has(name))
    }

    /// The structures came with Vulkan 1.1; before that there is nothing to ask for.
    fn modern(&self) -> bool {
        self.core >= vk::API_VERSION_1_1
    }
}

/// What came with an extension, and the version that has it without one. Two are extensions only.
const STORAGE8: (u32, &CStr) = (vk::API_VERSION_1_2, khr::_8bit_storage::NAME);
const SMALL: (u32, &CStr) = (vk::API_VERSION_1_2, khr::shader_float16_int8::NAME);
const MODEL: (u32, &CStr) = (vk::API_VERSION_1_2, khr::vulkan_memory_model::NAME);
const FLOATS: (u32, &CStr) = (vk::API_VERSION_1_2, khr::shader_float_controls::NAME);
const SIZES: (u32, &CStr) = (vk::API_VERSION_1_3, ext::subgroup_size_control::NAME);
const MATRIX: (u32, &CStr) = (u32::MAX, khr::cooperative_matrix::NAME);
const BF16: (u32, &CStr) = (u32::MAX, BFLOAT16);
const ATOMICS64: (u32, &CStr) = (vk::API_VERSION_1_2, khr::shader_atomic_int64::NAME);
const DOT: (u32, &CStr) = (vk::API_VERSION_1_3, khr::shader_integer_dot_product::NAME);

impl PhysicalDevice {
    fn supported(&self) -> Supported {
        // SAFETY: the handle belongs to this instance, which lives.
        let plain = unsafe { self.instance.raw.get_physical_device_properties(self.handle) };
        Supported { core: plain.api_version.min(self.instance.version), extensions: self.extensions() }
    }

    /// Reads the features of the device. Infallible: what a driver does not answer is absent.
    pub fn features(&self) -> VulkanFeatures {
        let instance = &self.instance.raw;
        let supported = self.supported();
        // SAFETY: the handle belongs to this instance, which lives.
        let limits = unsafe { instance.get_physical_device_properties(self.handle) }.limits;
        // SAFETY: as above.
        let memory = unsafe { instance.get_physical_device_memory_properties(self.handle) };
        let [visible, cached] = visible_and_cached(&memory);
        let mut found = VulkanFeatures {
            visible,
            cached,
            version: (vk::api_version_major(supported.core), vk::api_version_minor(supported.core)),
            limits: KernelLimits {
                groups: limits.max_compute_work_group_count,
                workgroup: limits.max_compute_work_group_size,
                invocations: limits.max_compute_work_group_invocations,
                shared: limits.max_compute_shared_memory_size,
                constants: limits.max_push_constants_size,
                buffers: limits
                    .max_per_stage_descriptor_storage_buffers
                    .min(limits.max_descriptor_set_storage_buffers)
                    .min(limits.max_per_stage_resources),
                binding: limits.max_storage_buffer_range.into(),
                alignment: limits.min_storage_buffer_offset_alignment.max(4),
                tick_picoseconds: match limits.timestamp_compute_and_graphics {
                    0 => 0,
                    _ => (limits.timestamp_period * 1e3) as u32,
                },
            },
            ..VulkanFeatures::default()
        };
        self.read_features(&mut found);
        if supported.modern() {
            self.read_properties(&supported, &mut found);
        }
        found
    }

    /// Queries the feature structures; what the driver does not answer is absent. The structures are no longer chained.
    pub(crate) fn query_features(&self) -> FeatureChain<'static> {
        let supported = self.supported();
        let mut chain = FeatureChain::default();
        if !supported.modern() {
            // SAFETY: the handle belongs to the instance, which lives.
            chain.core = unsafe { self.instance.raw.get_physical_device_features(self.handle) };
            return chain;
        }
        let mut all =
            vk::PhysicalDeviceFeatures2::default().push_next(&mut chain.storage16).push_next(&mut chain.pointers);
        let part = |(since, name): (u32, &CStr)| supported.has(since, name);
        if part(STORAGE8) {
            all = all.push_next(&mut chain.storage8);
        }
        if part(SMALL) {
            all = all.push_next(&mut chain.small);
        }
        if part(MODEL) {
            all = all.push_next(&mut chain.model);
        }
        // As an extension its functions have other names: the version it is.
        if supported.core >= vk::API_VERSION_1_2 {
            all = all.push_next(&mut chain.timeline);
        }
        if part(SIZES) {
            all = all.push_next(&mut chain.sizes);
        }
        if part(MATRIX) {
            all = all.push_next(&mut chain.matrix);
        }
        if part(BF16) {
            all = all.push_next(&mut chain.bfloat16);
        }
        if part(ATOMICS64) {
            all = all.push_next(&mut chain.atomics64);
        }
        if part(DOT) {
            all = all.push_next(&mut chain.dot);
        }
        // SAFETY: the chain holds structures that this version or an extension of the device has, and they live.
        unsafe { self.instance.raw.get_physical_device_features2(self.handle, &mut all) };
        chain.core = all.features;
        chain
    }

    fn read_features(&self, found: &mut VulkanFeatures) {
        let chain = self.query_features();
        let core = chain.core;
        found.i16 = core.shader_int16 != 0;
        found.i64 = core.shader_int64 != 0;
        found.storage16 = chain.storage16.storage_buffer16_bit_access != 0;
        found.constants16 = chain.storage16.storage_push_constant16 != 0;
        found.storage8 = chain.storage8.storage_buffer8_bit_access != 0;
        found.f16 = chain.small.shader_float16 != 0;
        found.i8 = chain.small.shader_int8 != 0;
        found.memory_model = chain.model.vulkan_memory_model != 0 && chain.model.vulkan_memory_model_device_scope != 0;
        found.timeline = chain.timeline.timeline_semaphore != 0;
        found.subgroup_choice = chain.sizes.subgroup_size_control != 0;
        found.matrix = chain.matrix.cooperative_matrix != 0;
        found.products = if found.matrix { self.cooperative() } else { Vec::new() };
        found.bf16 = chain.bfloat16.scalar != 0;
        found.bf16_matrix = chain.bfloat16.cooperative_matrix != 0;
    }

    /// Reads what is a property and needs no enabling.
    fn read_properties(&self, supported: &Supported, found: &mut VulkanFeatures) {
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut subgroup);
        let (knows_sizes, knows_floats) = (supported.has(SIZES.0, SIZES.1), supported.has(FLOATS.0, FLOATS.1));
        if knows_sizes {
            all = all.push_next(&mut sizes);
        }
        if knows_floats {
            all = all.push_next(&mut floats);
        }
        // SAFETY: as above.
        unsafe { self.instance.raw.get_physical_device_properties2(self.handle, &mut all) };
        found.signed_zeros16 = floats.shader_signed_zero_inf_nan_preserve_float16 != 0;
        found.signed_zeros32 = floats.shader_signed_zero_inf_nan_preserve_float32 != 0;
        let fixed = subgroup.subgroup_size;
        found.subgroup_sizes =
            if knows_sizes { (sizes.min_subgroup_size, sizes.max_subgroup_size) } else { (fixed, fixed) };
        found.subgroup_choice &= sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
        let computes = subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
        let can = |what| computes && subgroup.supported_operations.contains(what);
        found.subgroup = SubgroupOps {
            vote: can(vk::SubgroupFeatureFlags::VOTE),
            arithmetic: can(vk::SubgroupFeatureFlags::ARITHMETIC),
            ballot: can(vk::SubgroupFeatureFlags::BALLOT),
            shuffle: can(vk::SubgroupFeatureFlags::SHUFFLE),
        };
    }

    /// Creates the device with these features, what these SPIR-V capabilities need, and these queues; the device was found to have all of it.
    pub(crate) fn create(
        &self,
        kernels: QueueIndex,
        copies: Option<QueueIndex>,
        features: &VulkanFeatures,
        capabilities: &[u32],
    ) -> Result<ash::Device, vk::Result> {
        let supported = self.supported();
        let family = |family: u32, count: usize| {
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0, 1.0][..count])
        };
        let queues = match copies {
            Some(copies) if copies.family == kernels.family => vec![family(kernels.family, 2)],
            Some(copies) => vec![family(kernels.family, 1), family(copies.family, 1)],
            None => vec![family(kernels.family, 1)],
        };
        let mut chain = FeatureChain::enabling(features);
        chain.want(capabilities);
        let names = chain.extensions(&supported, features);
        let core = chain.core;
        let mut all = vk::PhysicalDeviceFeatures2::default().features(core);
        all = chain.link(all);
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let info = if supported.modern() { info.push_next(&mut all) } else { info.enabled_features(&core) };
        // SAFETY: the handle belongs to the instance; `info` and all that it points to live until the call returns.
        unsafe { self.instance.raw.create_device(self.handle, &info, None) }
    }
}

/// Whether one of these feature bits is set.
fn any(bits: &[vk::Bool32]) -> bool {
    bits.iter().any(|&bit| bit != vk::FALSE)
}

impl<'a> FeatureChain<'a> {
    /// The structures that enable these features.
    fn enabling(f: &VulkanFeatures) -> FeatureChain<'a> {
        let mut chain = FeatureChain::default();
        chain.core = chain.core.shader_int16(f.i16).shader_int64(f.i64);
        chain.storage16 =
            chain.storage16.storage_buffer16_bit_access(f.storage16).storage_push_constant16(f.constants16);
        chain.storage8 = chain.storage8.storage_buffer8_bit_access(f.storage8);
        chain.small = chain.small.shader_float16(f.f16).shader_int8(f.i8);
        chain.model = chain.model.vulkan_memory_model(f.memory_model).vulkan_memory_model_device_scope(f.memory_model);
        chain.timeline = chain.timeline.timeline_semaphore(f.timeline);
        chain.sizes = chain.sizes.subgroup_size_control(f.subgroup_choice);
        chain.matrix = chain.matrix.cooperative_matrix(f.matrix);
        (chain.bfloat16.scalar, chain.bfloat16.cooperative_matrix) = (f.bf16.into(), f.bf16_matrix.into());
        chain
    }

    fn uses_storage8(&self) -> bool {
        let s = &self.storage8;
        any(&[s.storage_buffer8_bit_access, s.uniform_and_storage_buffer8_bit_access, s.storage_push_constant8])
    }

    fn uses_small(&self) -> bool {
        any(&[self.small.shader_float16, self.small.shader_int8])
    }

    fn uses_bfloat16(&self) -> bool {
        any(&[self.bfloat16.scalar, self.bfloat16.cooperative_matrix])
    }

    /// The names of the extensions that the enabled features need: those that this Vulkan version has not taken in.
    fn extensions(&self, supported: &Supported, features: &VulkanFeatures) -> Vec<*const c_char> {
        let needed = [
            (features.signed_zeros16 || features.signed_zeros32, FLOATS),
            (self.uses_storage8(), STORAGE8),
            (self.uses_small(), SMALL),
            (self.model.vulkan_memory_model != 0, MODEL),
            (self.sizes.subgroup_size_control != 0, SIZES),
            (self.matrix.cooperative_matrix != 0, MATRIX),
            (self.uses_bfloat16(), BF16),
            (self.atomics64.shader_buffer_int64_atomics != 0, ATOMICS64),
            (self.dot.shader_integer_dot_product != 0, DOT),
            // A device with this extension must not be opened without it.
            (supported.extensions.has(khr::portability_subset::NAME), (u32::MAX, khr::portability_subset::NAME)),
        ];
        let missing = needed.into_iter().filter(|&(is_needed, (since, _))| is_needed && supported.core < since);
        missing.map(|(_, (_, name))| name.as_ptr()).collect()
    }

    /// Appends the structures in which a feature is enabled.
    fn link(&'a mut self, mut all: vk::PhysicalDeviceFeatures2<'a>) -> vk::PhysicalDeviceFeatures2<'a> {
        let (storage8, small, bfloat16) = (self.uses_storage8(), self.uses_small(), self.uses_bfloat16());
        let s = &self.storage16;
        let uniform = s.uniform_and_storage_buffer16_bit_access;
        if any(&[s.storage_buffer16_bit_access, uniform, s.storage_push_constant16, s.storage_input_output16]) {
            all = all.push_next(&mut self.storage16);
        }
        if storage8 {
            all = all.push_next(&mut self.storage8);
        }
        if small {
            all = all.push_next(&mut self.small);
        }
        if self.model.vulkan_memory_model != 0 {
            all = all.push_next(&mut self.model);
        }
        if self.timeline.timeline_semaphore != 0 {
            all = all.push_next(&mut self.timeline);
        }
        if self.sizes.subgroup_size_control != 0 {
            all = all.push_next(&mut self.sizes);
        }
        if self.matrix.cooperative_matrix != 0 {
            all = all.push_next(&mut self.matrix);
        }
        if bfloat16 {
            all = all.push_next(&mut self.bfloat16);
        }
        if self.atomics64.shader_buffer_int64_atomics != 0 {
            all = all.push_next(&mut self.atomics64);
        }
        if self.dot.shader_integer_dot_product != 0 {
            all = all.push_next(&mut self.dot);
        }
        if self.pointers.variable_pointers_storage_buffer != 0 {
            all = all.push_next(&mut self.pointers);
        }
        all
    }
}
