//! The layer on a driver that every machine can have. What a user would lose: a buffer that holds something else than was written.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use impasto_vulkan::{
    Buffer, BufferRange, Instance, Loader, MemoryLocation, PhysicalDevice, PhysicalDeviceType, QueueKind, Recorder,
    VulkanDevice, VulkanError,
};

/// Lavapipe, or a failure that says what to install: without it this test would show nothing.
fn lavapipe() -> (Instance, PhysicalDevice) {
    let needs = "the Vulkan loader and lavapipe are needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    let instance = Loader::open().expect(needs).create_instance().expect(needs);
    let devices = instance.enumerate().expect("devices are listed");
    let software = devices.into_iter().find(|physical| physical.describe().kind == PhysicalDeviceType::Software);
    (instance, software.expect(needs))
}

#[test]
fn a_description_is_complete() {
    let (_instance, physical) = lavapipe();
    let said = physical.describe();
    assert!(said.label.starts_with("llvmpipe") && said.computes && said.uuid.is_some(), "{said:?}");
    assert!(said.version >= (1, 1, 0) && said.memory > 0 && said.max_allocation > 0 && said.max_binding >= 1 << 27);
    assert!(said.subgroup.0 >= 1 && said.subgroup.0 <= said.subgroup.1);
}

#[test]
fn bytes_come_back_as_they_went_in_and_too_many_are_refused() {
    let (instance, physical) = lavapipe();
    let device = VulkanDevice::open(&physical).expect("it opens");
    // The device keeps alive what it needs.
    drop((instance, physical));
    for length in [1_usize, 3, 4, 4096, 1 << 20] {
        let buffer = device.buffer(length as u64).expect("memory");
        let written: Vec<u8> = (0..length).map(|i| (i * 31 + 7) as u8).collect();
        buffer.write(&written).expect("it is written");
        let mut read = vec![0; length];
        buffer.read(&mut read).expect("it is read");
        assert_eq!(read, written);
        let error = buffer.write(&vec![0; length + 1]).expect_err("it does not fit");
        assert_eq!(error, VulkanError::TooLarge { wanted: length as u64 + 1, have: length as u64 });
    }
}

#[test]
fn more_memory_than_there_is_is_an_error_that_says_so() {
    let (_instance, physical) = lavapipe();
    let device = VulkanDevice::open(&physical).expect("it opens");
    let Err(error) = device.buffer(1 << 50) else { panic!("a petabyte was given") };
    assert!(error.code().is_some() && !error.is_lost(), "{error}");
    assert!(error.to_string().starts_with("vk"), "{error}");
}

#[test]
fn what_one_lane_has_copied_the_other_copies_on() {
    let (_instance, physical) = lavapipe();
    let device = VulkanDevice::open(&physical).expect("it opens");
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").subsec_nanos();
    println!("seed {seed}");
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i.wrapping_mul(seed | 1) >> 9) as u8).collect();
    let buffer = |home| Arc::new(device.buffer_at(bytes.len() as u64, home).expect("memory"));
    let chain: Vec<Arc<Buffer>> = [
        MemoryLocation::Host,
        MemoryLocation::Device,
        MemoryLocation::Offloaded,
        MemoryLocation::Device,
        MemoryLocation::Host,
    ]
    .map(buffer)
    .into();
    chain[0].write(&bytes).expect("it is written");
    let part = |buffer: &Arc<Buffer>| BufferRange { buffer: buffer.clone(), offset: 0, bytes: buffer.bytes() };
    let queues = [QueueKind::Transfer, QueueKind::Compute].into_iter().cycle();
    let mut lists: Vec<_> = (chain.windows(2).zip(queues))
        .map(|(pair, kind)| {
            let mut recorder = Recorder::new(&device, kind);
            recorder.copy(part(&pair[0]), part(&pair[1])).expect("it fits");
            recorder.finish().expect("it is written down")
        })
        .collect();
    // All are handed over before the first has ended, each to wait for the one before.
    for at in 0..lists.len() {
        let before = at.checked_sub(1).map(|before| lists[before].done_at());
        lists[at].submit_after(before.as_slice()).expect("it is taken");
    }
    lists.last().expect("there are some").wait().expect("it ends");
    let mut read = vec![0; bytes.len()];
    chain[4].read(&mut read).expect("it is read");
    assert_eq!(read, bytes);
}
