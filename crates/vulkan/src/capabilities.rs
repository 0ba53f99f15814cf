//! The Vulkan feature that each SPIR-V capability needs.
//!
//! Our kernels are written for the [`VulkanFeatures`](crate::VulkanFeatures) that every device is opened with. A module of another compiler says itself
//! what it needs, and a device is opened with that, too ([`VulkanDevice::open_for`](crate::VulkanDevice::open_for)). Capabilities that are not listed here need
//! no feature, or are none of a module that computes: the driver is left to say so.

use ash::vk;

use crate::error::VulkanError;
use crate::features::FeatureChain;
use crate::physical::PhysicalDevice;

/// The feature of a capability, by the name that Vulkan gives it, and where it stands in the structures.
fn feature<'c>(chain: &'c mut FeatureChain<'_>, capability: u32) -> Option<(&'static str, &'c mut vk::Bool32)> {
    let (core, small) = (&mut chain.core, &mut chain.small);
    let (storage16, storage8) = (&mut chain.storage16, &mut chain.storage8);
    Some(match capability {
        9 => ("shaderFloat16", &mut small.shader_float16),
        10 => ("shaderFloat64", &mut core.shader_float64),
        11 => ("shaderInt64", &mut core.shader_int64),
        12 => ("shaderBufferInt64Atomics", &mut chain.atomics64.shader_buffer_int64_atomics),
        22 => ("shaderInt16", &mut core.shader_int16),
        25 => ("shaderImageGatherExtended", &mut core.shader_image_gather_extended),
        27 => ("shaderStorageImageMultisample", &mut core.shader_storage_image_multisample),
        28 => ("shaderUniformBufferArrayDynamicIndexing", &mut core.shader_uniform_buffer_array_dynamic_indexing),
        29 => ("shaderSampledImageArrayDynamicIndexing", &mut core.shader_sampled_image_array_dynamic_indexing),
        30 => ("shaderStorageBufferArrayDynamicIndexing", &mut core.shader_storage_buffer_array_dynamic_indexing),
        31 => ("shaderStorageImageArrayDynamicIndexing", &mut core.shader_storage_image_array_dynamic_indexing),
        39 => ("shaderInt8", &mut small.shader_int8),
        49 => ("shaderStorageImageExtendedFormats", &mut core.shader_storage_image_extended_formats),
        55 => ("shaderStorageImageReadWithoutFormat", &mut core.shader_storage_image_read_without_format),
        56 => ("shaderStorageImageWriteWithoutFormat", &mut core.shader_storage_image_write_without_format),
        4433 => ("storageBuffer16BitAccess", &mut storage16.storage_buffer16_bit_access),
        4434 => ("uniformAndStorageBuffer16BitAccess", &mut storage16.uniform_and_storage_buffer16_bit_access),
        4435 => ("storagePushConstant16", &mut storage16.storage_push_constant16),
        4436 => ("storageInputOutput16", &mut storage16.storage_input_output16),
        4441 => ("variablePointersStorageBuffer", &mut chain.pointers.variable_pointers_storage_buffer),
        4442 => ("variablePointers", &mut chain.pointers.variable_pointers),
        4448 => ("storageBuffer8BitAccess", &mut storage8.storage_buffer8_bit_access),
        4449 => ("uniformAndStorageBuffer8BitAccess", &mut storage8.uniform_and_storage_buffer8_bit_access),
        4450 => ("storagePushConstant8", &mut storage8.storage_push_constant8),
        5345 => ("vulkanMemoryModel", &mut chain.model.vulkan_memory_model),
        5346 => ("vulkanMemoryModelDeviceScope", &mut chain.model.vulkan_memory_model_device_scope),
        6016..=6019 => ("shaderIntegerDotProduct", &mut chain.dot.shader_integer_dot_product),
        6022 => ("cooperativeMatrix", &mut chain.matrix.cooperative_matrix),
        _ => return None,
    })
}

impl FeatureChain<'_> {
    /// Enables what these capabilities need.
    pub(crate) fn want(&mut self, capabilities: &[u32]) {
        for &c in capabilities {
            if let Some((_, bit)) = feature(self, c) {
                *bit = vk::TRUE;
            }
        }
        // Vulkan wants the one with the other.
        if self.pointers.variable_pointers != 0 {
            self.pointers.variable_pointers_storage_buffer = vk::TRUE;
        }
    }
}

impl PhysicalDevice {
    /// Whether the device has the feature of every one of these capabilities, by their numbers in SPIR-V; one that it lacks is named.
    pub fn offers(&self, capabilities: &[u32]) -> Result<(), VulkanError> {
        let mut chain = self.query_features();
        for &c in capabilities {
            if let Some((name, &mut vk::FALSE)) = feature(&mut chain, c) {
                return Err(VulkanError::Lacks(name));
            }
        }
        let ops = self.features().subgroup;
        let subgroup = [
            (62, ops.vote, "VK_SUBGROUP_FEATURE_VOTE_BIT"),
            (63, ops.arithmetic, "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT"),
            (64, ops.ballot, "VK_SUBGROUP_FEATURE_BALLOT_BIT"),
            (65, ops.shuffle, "VK_SUBGROUP_FEATURE_SHUFFLE_BIT"),
        ];
        match subgroup.iter().find(|(c, has, _)| !has && capabilities.contains(c)) {
            Some(&(_, _, name)) => Err(VulkanError::Lacks(name)),
            None => Ok(()),
        }
    }
}
