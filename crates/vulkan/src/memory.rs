//! Memory of a device.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;

use crate::device::VulkanDevice;
use crate::error::{Named, VulkanError};
use crate::queue::QueueKind;
use impasto_graph::Meter;

/// The kind of memory that a buffer is allocated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLocation {
    /// Device-local memory, host-visible too where host and device share their memory.
    Device,
    /// Host-visible memory: staging for a device with memory of its own.
    Host,
    /// Host memory that holds values offloaded from the device. It does not count as the device's.
    Offloaded,
}

/// Memory that kernels read and write.
pub struct Buffer {
    pub(crate) device: VulkanDevice,
    pub(crate) raw: vk::Buffer,
    memory: vk::DeviceMemory,
    bytes: u64,
    cached: bool,
    /// Bytes that the driver was asked for, which may be a few more than `bytes`.
    allocated: u64,
    location: MemoryLocation,
    /// Where the host sees it, for as long as it lives; one thread at a time.
    mapped: Option<Mutex<Mapped>>,
}

struct Mapped(NonNull<u8>);

// SAFETY: the address is good in every thread.
unsafe impl Send for Mapped {}

impl VulkanDevice {
    /// Meters the device memory that the driver was asked for.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// Meters the host memory that holds offloaded values.
    pub fn offload_meter(&self) -> &Meter {
        &self.0.offloaded
    }

    fn meter_of(&self, location: MemoryLocation) -> &Meter {
        if location == MemoryLocation::Offloaded { self.offload_meter() } else { self.meter() }
    }

    /// Allocates a buffer that the host can read and write.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer, VulkanError> {
        self.buffer_at(bytes, MemoryLocation::Host)
    }

    /// Allocates a buffer in this kind of memory.
    pub fn buffer_at(&self, bytes: u64, location: MemoryLocation) -> Result<Buffer, VulkanError> {
        let device = &self.0.raw;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::UNIFORM_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let families = QueueKind::both().map(|kind| self.queue(kind).family);
        let info = vk::BufferCreateInfo::default().size(bytes.max(4)).usage(usage);
        let info = match families[0] == families[1] {
            true => info,
            false => info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families),
        };
        // SAFETY: `info` is complete and lives until the call returns.
        let raw = unsafe { device.create_buffer(&info, None) }.named("vkCreateBuffer")?;
        // Owned from here on, so that an error below frees it.
        let memory = vk::DeviceMemory::null();
        let mut buffer =
            Buffer { device: self.clone(), raw, memory, bytes, allocated: 0, location, cached: false, mapped: None };
        // SAFETY: the buffer belongs to this device.
        let needs = unsafe { device.get_buffer_memory_requirements(raw) };
        let index = memory_type(&self.0.memory, needs.memory_type_bits, location)?;
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index as u32);
        if !self.meter_of(location).take(needs.size) {
            return Err(VulkanError::OverBudget { wanted: needs.size });
        }
        #[cfg(feature = "faults")]
        if self.0.name.get().is_some_and(|name| impasto_faults::alloc(name, needs.size)) {
            self.meter_of(location).refuse(needs.size);
            let code = vk::Result::ERROR_OUT_OF_DEVICE_MEMORY.as_raw();
            return Err(VulkanError::Call { call: "vkAllocateMemory", code });
        }
        // SAFETY: `info` is complete and lives until the call returns.
        let memory = unsafe { device.allocate_memory(&info, None) }.named("vkAllocateMemory");
        buffer.memory = memory.inspect_err(|_| self.meter_of(location).refuse(needs.size))?;
        buffer.allocated = needs.size;
        // SAFETY: both belong to this device, and the buffer has no memory yet.
        unsafe { device.bind_buffer_memory(raw, buffer.memory, 0) }.named("vkBindBufferMemory")?;
        let flags = self.0.memory.memory_types[index].property_flags;
        buffer.cached = flags.contains(vk::MemoryPropertyFlags::HOST_CACHED);
        if flags.contains(VISIBLE) {
            // SAFETY: the memory is visible to the host and not mapped; the end of the memory ends the mapping.
            let place = unsafe { device.map_memory(buffer.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
            buffer.mapped = NonNull::new(place.named("vkMapMemory")?.cast()).map(|place| Mutex::new(Mapped(place)));
        }
        Ok(buffer)
    }
}

/// Chooses the best memory type among those allowed.
fn memory_type(
    memory: &vk::PhysicalDeviceMemoryProperties,
    allowed: u32,
    location: MemoryLocation,
) -> Result<usize, VulkanError> {
    let count = (memory.memory_type_count as usize).min(vk::MAX_MEMORY_TYPES);
    let heap_bytes = |heap: u32| memory.memory_heaps.get(heap as usize).map_or(0, |heap| heap.size);
    let has = |index: usize, flags| memory.memory_types[index].property_flags.contains(flags);
    let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    let largest = (0..count).filter(|&i| has(i, local)).map(|i| heap_bytes(memory.memory_types[i].heap_index)).max();
    // A small window into the device's memory is not where large things live.
    let wide = |index: usize| Some(heap_bytes(memory.memory_types[index].heap_index)) == largest;
    let find = |fits: &dyn Fn(usize) -> bool| (0..count).find(|&i| allowed & (1 << i) != 0 && fits(i));
    let found = match location {
        MemoryLocation::Device => find(&|i| has(i, local | VISIBLE) && wide(i))
            .or_else(|| find(&|i| has(i, local) && wide(i)))
            .or_else(|| find(&|i| has(i, local)))
            .or_else(|| find(&|_| true)),
        MemoryLocation::Host | MemoryLocation::Offloaded => {
            find(&|i| has(i, VISIBLE | vk::MemoryPropertyFlags::HOST_CACHED)).or_else(|| find(&|i| has(i, VISIBLE)))
        }
    };
    found.ok_or(VulkanError::Lacks("memory that the host can see"))
}

/// Whether device-local memory is host-visible, and whether it is host-cached.
pub(crate) fn visible_and_cached(memory: &vk::PhysicalDeviceMemoryProperties) -> [bool; 2] {
    let best = memory_type(memory, u32::MAX, MemoryLocation::Device);
    let flags = best.map_or(vk::MemoryPropertyFlags::empty(), |index| memory.memory_types[index].property_flags);
    [VISIBLE, VISIBLE | vk::MemoryPropertyFlags::HOST_CACHED].map(|wanted| flags.contains(wanted))
}

/// Host-visible and coherent memory.
const VISIBLE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is this device's, opened this time.
    pub fn is_of(&self, device: &VulkanDevice) -> bool {
        std::sync::Arc::ptr_eq(&self.device.0, &device.0)
    }

    /// Whether the host can read and write it.
    pub fn is_visible(&self) -> bool {
        self.mapped.is_some()
    }

    /// Whether it is host-cached. Memory that is visible and not cached is for writing: each read goes to the device.
    pub fn is_cached(&self) -> bool {
        self.is_visible() && self.cached
    }

    /// Copies bytes to the beginning of the buffer.
    pub fn write(&self, bytes: &[u8]) -> Result<(), VulkanError> {
        self.write_at(0, bytes)
    }

    /// Copies bytes to a place in the buffer. No run of a kernel may use the buffer meanwhile.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), VulkanError> {
        let mapped = self.mapped(offset, bytes.len())?;
        // SAFETY: the bytes lie within the memory, which was just checked, and the lock keeps other threads out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapped.0.as_ptr().add(offset as usize), bytes.len()) };
        Ok(())
    }

    /// Bytes of the buffer where the host sees them, so that several threads can fill different ones at once.
    ///
    /// # Safety
    /// Until the slice is gone nobody else reads or writes these bytes: no other thread, and no kernel or copy of the device.
    #[allow(
        clippy::mut_from_ref,
        reason = "who else has the bytes is the caller's promise, as of any memory that is shared with a device"
    )]
    pub unsafe fn slice_mut(&self, offset: u64, bytes: usize) -> Result<&mut [u8], VulkanError> {
        let start = self.mapped(offset, bytes)?.0.as_ptr();
        // SAFETY: the bytes lie within the memory, which was just checked and lives as long as the buffer; the rest is the caller's.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.add(offset as usize), bytes) })
    }

    /// Copies bytes from the beginning of the buffer.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), VulkanError> {
        self.read_at(0, bytes)
    }

    /// Copies bytes from a place in the buffer. No run of a kernel may write it meanwhile.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), VulkanError> {
        let mapped = self.mapped(offset, bytes.len())?;
        // SAFETY: as in `write_at`.
        unsafe {
            std::ptr::copy_nonoverlapping(mapped.0.as_ptr().add(offset as usize), bytes.as_mut_ptr(), bytes.len())
        };
        Ok(())
    }

    /// The memory, if so many bytes lie there in it.
    fn mapped(&self, offset: u64, bytes: usize) -> Result<MutexGuard<'_, Mapped>, VulkanError> {
        let wanted = offset.saturating_add(bytes as u64);
        if wanted > self.bytes {
            return Err(VulkanError::TooLarge { wanted, have: self.bytes });
        }
        let mapped = self.mapped.as_ref().ok_or(VulkanError::Lacks("way for the host into this buffer"))?;
        Ok(mapped.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let device = &self.device.0.raw;
        // SAFETY: runs are waited for, so nothing uses the buffer any more; null handles are allowed.
        unsafe {
            device.destroy_buffer(self.raw, None);
            device.free_memory(self.memory, None);
        }
        self.device.meter_of(self.location).give_back(self.allocated);
    }
}
