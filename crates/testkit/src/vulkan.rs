//! Kernels on a Vulkan device: lavapipe, which computes on the CPU and is the same everywhere.
use impasto_kernel::{BufferData, CompiledModule, Kernel, Launch, param_bytes};
use impasto_spirv::{Words, interface};
use impasto_vulkan::{Buffer, Loader, PhysicalDeviceType, VulkanDevice};

/// Runs the rest of the test of this name in a child, and says whether this is it: a driver may crash, lavapipe is told to compile fast, which it
/// reads when it is loaded, and the validation layer watches every call and every module.
#[macro_export]
macro_rules! in_child {
    ($test:literal) => {
        $crate::vulkan::is_child(concat!(module_path!(), "::", $test))
    };
}

/// Called by [`in_child`] with the path of the test.
pub fn is_child(test: &str) -> bool {
    if std::env::var_os("IMPASTO_IN_CHILD").is_some() {
        return true;
    }
    // Tests are named without the crate that they are in.
    let test = test.split_once("::").map_or(test, |(_, test)| test);
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("IMPASTO_IN_CHILD", "1")
        .env("GALLIVM_PERF", "nopt")
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && text.contains("1 passed"), "{}: {text}", done.status);
    assert!(!text.contains("Validation"), "{text}");
    print!("{text}");
    false
}

/// The software device.
pub fn open() -> VulkanDevice {
    open_that(|kind| kind == PhysicalDeviceType::Software)
}

/// The software device, with what modules with these capabilities need.
pub fn open_for(capabilities: &[u32]) -> VulkanDevice {
    opened(|kind| kind == PhysicalDeviceType::Software, capabilities)
}

/// The first device of such a kind.
pub fn open_that(is_it: impl Fn(PhysicalDeviceType) -> bool) -> VulkanDevice {
    opened(is_it, &[])
}

fn opened(is_it: impl Fn(PhysicalDeviceType) -> bool, capabilities: &[u32]) -> VulkanDevice {
    let missing = "there is no software Vulkan device that is watched: install mesa-vulkan-drivers, libvulkan1 and vulkan-validationlayers, as tools/test.sh does";
    let instance = Loader::open().expect(missing).create_instance().expect(missing);
    let all = instance.enumerate().expect(missing);
    let physical = all.iter().find(|p| is_it(p.describe().kind)).expect(missing);
    VulkanDevice::open_for(physical, capabilities).unwrap_or_else(|e| panic!("{e}: {missing}"))
}

fn bytes(data: &BufferData) -> Vec<u8> {
    let n = data.ty.bytes() as usize;
    data.bits.iter().flat_map(|b| b.to_le_bytes()[..n].to_vec()).collect()
}

/// What the buffers hold after a launch.
pub fn run(device: &VulkanDevice, kernel: &Kernel, module: &CompiledModule, launch: &Launch) -> Vec<BufferData> {
    let mut buffers = Vec::new();
    for data in &launch.buffers {
        let bytes = bytes(data);
        let buffer = device.buffer(bytes.len() as u64).unwrap();
        buffer.write(&bytes).unwrap();
        buffers.push(buffer);
    }
    let constants = param_bytes(kernel, &launch.scalars).unwrap();
    let entry = module.entries.iter().find(|e| e.name == kernel.name).unwrap();
    // SAFETY: spirv-val accepts what the compiler writes, which tests/spirv.rs sees to on the same kernels; the executor ran the
    // kernel on buffers of the same sizes, and would have refused an access outside of them.
    let pipeline = unsafe { device.pipeline(&module.words(), &interface(entry)) }.unwrap();
    device.run(&pipeline, &buffers.iter().collect::<Vec<_>>(), &constants, launch.groups).unwrap();
    let read = |(data, buffer): (&BufferData, &Buffer)| {
        let n = data.ty.bytes() as usize;
        let mut all = vec![0; data.bits.len() * n];
        buffer.read(&mut all).unwrap();
        let number = |c: &[u8]| c.iter().rev().fold(0u64, |a, &b| a << 8 | u64::from(b));
        BufferData { ty: data.ty, bits: all.chunks_exact(n).map(number).collect() }
    };
    launch.buffers.iter().zip(&buffers).map(read).collect()
}
