//! Kernels on a driver that every machine can have, watched by the validation layer. What a user would lose: a driver may do anything with a
//! call that breaks a rule of Vulkan, and on another machine it does.
#![cfg(target_os = "linux")]

use std::process::Command;

use impasto_vulkan::{Interface, Loader, PhysicalDeviceType, VulkanDevice, VulkanError};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv;

/// Runs the test of this name again in a child that the validation layer watches, and gives what it printed.
fn watched(test: &str) -> String {
    let layer = "VK_LAYER_KHRONOS_validation";
    let done = Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture"])
        .env("VK_INSTANCE_LAYERS", layer)
        .env("IMPASTO_IN_CHILD", "1")
        .output()
        .expect("the child starts");
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let needs = "install vulkan-validationlayers, as tools/test.sh does";
    assert!(done.status.success() && text.contains("1 passed"), "{}: {needs}\n{text}", done.status);
    text
}

fn is_child() -> bool {
    std::env::var_os("IMPASTO_IN_CHILD").is_some()
}

fn lavapipe() -> VulkanDevice {
    let needs = "install libvulkan1, mesa-vulkan-drivers and vulkan-validationlayers, as tools/test.sh does";
    let instance = Loader::open().expect(needs).create_instance().expect(needs);
    let all = instance.enumerate().expect("devices are listed");
    let software = all.iter().find(|physical| physical.describe().kind == PhysicalDeviceType::Software);
    VulkanDevice::open(software.expect(needs)).expect("it opens")
}

/// Two entry points, `sum` and `product`: `x[i] = x[i] + c` and `x[i] = x[i] * c`, where `c` is a push constant.
fn words() -> Vec<u32> {
    use spirv::StorageClass::{Input, PushConstant, StorageBuffer};
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(spirv::Capability::Shader);
    b.memory_model(spirv::AddressingModel::Logical, spirv::MemoryModel::GLSL450);
    let (void, uint) = (b.type_void(), b.type_int(32, 0));
    let zero = b.constant_bit32(uint, 0);
    let vector = b.type_vector(uint, 3);
    let array = b.type_runtime_array(uint);
    b.decorate(array, spirv::Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let (block, constants) = (b.type_struct([array]), b.type_struct_id(None, [uint]));
    for one in [block, constants] {
        b.decorate(one, spirv::Decoration::Block, []);
        b.member_decorate(one, 0, spirv::Decoration::Offset, [Operand::LiteralBit32(0)]);
    }
    let [to_block, to_constants, to_vector] = [(StorageBuffer, block), (PushConstant, constants), (Input, vector)]
        .map(|(class, of)| b.type_pointer(None, class, of));
    let (to_element, to_constant) =
        (b.type_pointer(None, StorageBuffer, uint), b.type_pointer(None, PushConstant, uint));
    let buffer = b.variable(to_block, None, StorageBuffer, None);
    b.decorate(buffer, spirv::Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
    b.decorate(buffer, spirv::Decoration::Binding, [Operand::LiteralBit32(0)]);
    let constant = b.variable(to_constants, None, PushConstant, None);
    let id = b.variable(to_vector, None, Input, None);
    b.decorate(id, spirv::Decoration::BuiltIn, [Operand::BuiltIn(spirv::BuiltIn::GlobalInvocationId)]);
    let signature = b.type_function(void, []);
    for name in ["sum", "product"] {
        let main = b.begin_function(void, None, spirv::FunctionControl::NONE, signature).unwrap();
        b.begin_block(None).unwrap();
        let id_now = b.load(vector, None, id, None, []).unwrap();
        let i = b.composite_extract(uint, None, id_now, [0]).unwrap();
        let at = b.access_chain(to_element, None, buffer, [zero, i]).unwrap();
        let c = b.access_chain(to_constant, None, constant, [zero]).unwrap();
        let (x, c) = (b.load(uint, None, at, None, []).unwrap(), b.load(uint, None, c, None, []).unwrap());
        let y = if name == "sum" { b.i_add(uint, None, x, c) } else { b.i_mul(uint, None, x, c) }.unwrap();
        b.store(at, y, None, []).unwrap();
        b.ret().unwrap();
        b.end_function().unwrap();
        b.entry_point(spirv::ExecutionModel::GLCompute, main, name, [id]);
        b.execution_mode(main, spirv::ExecutionMode::LocalSize, [4, 1, 1]);
    }
    b.module().assemble()
}

fn interface(entry: &str) -> Interface<'_> {
    Interface { entry, buffers: 1, constants: 4, subgroup: None, uniforms: &[], unoptimised: false }
}

fn apply(device: &VulkanDevice, interface: &Interface<'_>, numbers: [u32; 4], c: u32) -> Vec<u32> {
    let buffer = device.buffer(16).expect("memory");
    buffer.write(&numbers.map(u32::to_ne_bytes).concat()).expect("it is written");
    // SAFETY: the module is ours, with this interface, and four invocations touch four numbers.
    let pipeline = unsafe { device.pipeline(&words(), interface) }.expect("it is built");
    device.run(&pipeline, &[&buffer], &c.to_ne_bytes(), [1, 1, 1]).expect("it runs");
    let mut bytes = [0; 16];
    buffer.read(&mut bytes).expect("it is read");
    bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn entry_points_are_found_by_name_and_given_their_constants() {
    if !is_child() {
        let said = watched("kernels::entry_points_are_found_by_name_and_given_their_constants");
        assert!(!said.contains("Validation"), "{said}");
        return;
    }
    let device = lavapipe();
    assert_eq!(apply(&device, &interface("sum"), [1, 2, 3, 4], 10), [11, 12, 13, 14]);
    assert_eq!(apply(&device, &interface("product"), [1, 2, 3, 4], 10), [10, 20, 30, 40]);
    // The driver is asked not to optimise: the same numbers.
    let plain = Interface { unoptimised: true, ..interface("product") };
    assert_eq!(apply(&device, &plain, [1, 2, 3, 4], 10), [10, 20, 30, 40]);
    let (size, _) = device.features().subgroup_sizes;
    let chosen = Interface { subgroup: Some(size), ..interface("sum") };
    assert_eq!(apply(&device, &chosen, [1, 2, 3, 4], u32::MAX), [0, 1, 2, 3]);
}

#[test]
fn the_layer_really_watches() {
    if !is_child() {
        let said = watched("kernels::the_layer_really_watches");
        assert!(said.contains("Validation Error"), "{said}");
        return;
    }
    // A kernel that uses a buffer, in a layout that has none.
    let wrong = Interface { buffers: 0, ..interface("sum") };
    // SAFETY: the kernel is never run.
    drop(unsafe { lavapipe().pipeline(&words(), &wrong) });
}

#[test]
fn a_device_is_opened_with_what_kernels_ask_for() {
    let device = lavapipe();
    let have = device.features();
    // What lavapipe has had since Mesa 22.
    assert!(have.version >= (1, 2) && have.i64 && have.i16 && have.storage16 && have.f16, "{have:?}");
    assert!(have.signed_zeros32 && have.subgroup.vote && have.subgroup.arithmetic && have.subgroup.shuffle, "{have:?}");
    assert!(have.limits.constants >= 128 && have.limits.invocations >= 128 && have.limits.buffers >= 4, "{have:?}");
}

#[test]
fn a_device_is_opened_for_what_a_module_asks_for_or_refused_by_name() {
    if !is_child() {
        let said = watched("kernels::a_device_is_opened_for_what_a_module_asks_for_or_refused_by_name");
        assert!(!said.contains("Validation"), "{said}");
        return;
    }
    let instance = Loader::open().expect("a loader").create_instance().expect("an instance");
    let physical =
        instance.enumerate().expect("devices").into_iter().find(|p| p.describe().kind == PhysicalDeviceType::Software);
    let physical = physical.expect("lavapipe");
    use spirv::Capability as C;
    // What lavapipe has had since Mesa 22, one by one and together.
    let has = [C::Shader, C::Float64, C::Int64, C::Int64Atomics, C::Int16, C::Int8, C::Float16]
        .into_iter()
        .chain([C::UniformAndStorageBuffer16BitAccess, C::UniformAndStorageBuffer8BitAccess, C::StoragePushConstant8])
        .chain([C::VariablePointers, C::DotProduct, C::GroupNonUniformArithmetic])
        .map(|c| c as u32);
    let all: Vec<u32> = has.collect();
    for asked in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
        let device = VulkanDevice::open_for(&physical, asked).unwrap_or_else(|e| panic!("{asked:?}: {e}"));
        assert_eq!(apply(&device, &interface("sum"), [1, 2, 3, 4], 10), [11, 12, 13, 14]);
    }
    let lacks = VulkanDevice::open_for(&physical, &[1, C::StorageInputOutput16 as u32]).err();
    assert_eq!(lacks, Some(VulkanError::Lacks("storageInputOutput16")));
}

#[test]
fn what_does_not_fit_the_kernel_is_refused() {
    let device = lavapipe();
    let limits = device.features().limits;
    let build = |interface: Interface<'_>| {
        // SAFETY: as in `apply`; the kernel is run with four invocations only.
        unsafe { device.pipeline(&words(), &interface) }
    };
    let too_long = Interface { constants: limits.constants + 4, ..interface("sum") };
    assert!(matches!(build(too_long), Err(VulkanError::TooLarge { .. })));
    let too_many = Interface { buffers: limits.buffers + 1, ..interface("sum") };
    assert!(matches!(build(too_many), Err(VulkanError::TooMany { what: "buffers", .. })));
    assert!(matches!(build(Interface { subgroup: Some(3), ..interface("sum") }), Err(VulkanError::Lacks(_))));
    assert!(matches!(build(interface("s\0m")), Err(VulkanError::Lacks(_))));
    let (pipeline, buffer) = (build(interface("sum")).expect("it is built"), device.buffer(16).expect("memory"));
    assert!(device.run(&pipeline, &[&buffer], &[0; 3], [1, 1, 1]).is_err());
    assert!(device.run(&pipeline, &[], &[0; 4], [1, 1, 1]).is_err());
    let groups = [1, limits.groups[1].saturating_add(1), 1];
    let refused = device.run(&pipeline, &[&buffer], &[0; 4], groups);
    assert!(matches!(refused, Err(VulkanError::TooMany { what: "workgroups", .. })) || limits.groups[1] == u32::MAX);
    assert!(device.run(&pipeline, &[&buffer], &[0; 4], [1, 1, 1]).is_ok());
}
