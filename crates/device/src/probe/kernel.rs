//! The kernel of a device's trial, in SPIR-V and in PTX: `out[i] = in[i] * 3 + i` in unsigned 32-bit arithmetic, for `i` below
//! [`COUNT`]. Whole numbers, so that the result must be exact.

use impasto_vulkan::Interface;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl, MemoryModel,
    StorageClass,
};

/// Numbers in the buffers.
pub const COUNT: u32 = 4096;
/// Threads in a group.
pub const GROUP: u32 = 64;

/// The numbers that go in: nothing that memory holds by chance.
pub fn input() -> Vec<u32> {
    (0..COUNT).map(|i| i.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995).collect()
}

/// What must come out.
fn expected(i: u32, input: u32) -> u32 {
    input.wrapping_mul(3).wrapping_add(i)
}

/// Whether a device has computed rightly.
pub fn compare(input: &[u32], output: &[u32]) -> Result<(), String> {
    let wrong = (0..).zip(input.iter().zip(output)).find(|&(i, (input, output))| expected(i, *input) != *output);
    match wrong {
        None if input.len() == output.len() => Ok(()),
        None => Err(format!("{} numbers came back instead of {}", output.len(), input.len())),
        Some((i, (input, output))) => {
            Err(format!("it computes wrongly: number {i} is {output} instead of {}", expected(i, *input)))
        }
    }
}

/// What the kernel is called and takes.
pub const INTERFACE: Interface<'static> =
    Interface { entry: "main", buffers: 2, constants: 0, subgroup: None, uniforms: &[], unoptimised: false };

/// The kernel as SPIR-V 1.0 words: buffers at bindings 0 and 1 of set 0.
pub fn spirv() -> Result<Vec<u32>, String> {
    let mut b = Builder::new();
    b.set_version(1, 0);
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let void = b.type_void();
    let uint = b.type_int(32, 0);
    let three = b.constant_bit32(uint, 3);
    let zero = b.constant_bit32(uint, 0);
    let vector = b.type_vector(uint, 3);
    let array = b.type_runtime_array(uint);
    b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let block = b.type_struct([array]);
    // Version 1.0 has no class for storage buffers; this is how it says the same.
    b.decorate(block, Decoration::BufferBlock, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let to_block = b.type_pointer(None, StorageClass::Uniform, block);
    let to_uint = b.type_pointer(None, StorageClass::Uniform, uint);
    let to_vector = b.type_pointer(None, StorageClass::Input, vector);
    let buffers = [0, 1].map(|binding| {
        let buffer = b.variable(to_block, None, StorageClass::Uniform, None);
        b.decorate(buffer, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
        b.decorate(buffer, Decoration::Binding, [Operand::LiteralBit32(binding)]);
        buffer
    });
    let id = b.variable(to_vector, None, StorageClass::Input, None);
    b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);

    let signature = b.type_function(void, []);
    let body = |b: &mut Builder| -> Result<u32, rspirv::dr::Error> {
        let main = b.begin_function(void, None, FunctionControl::NONE, signature)?;
        b.begin_block(None)?;
        let id = b.load(vector, None, id, None, [])?;
        let i = b.composite_extract(uint, None, id, [0])?;
        let from = b.access_chain(to_uint, None, buffers[0], [zero, i])?;
        let number = b.load(uint, None, from, None, [])?;
        let product = b.i_mul(uint, None, number, three)?;
        let sum = b.i_add(uint, None, product, i)?;
        let to = b.access_chain(to_uint, None, buffers[1], [zero, i])?;
        b.store(to, sum, None, [])?;
        b.ret()?;
        b.end_function()?;
        Ok(main)
    };
    let main = body(&mut b).map_err(|error| format!("the trial's kernel could not be built: {error}"))?;
    b.entry_point(ExecutionModel::GLCompute, main, INTERFACE.entry, [id]);
    b.execution_mode(main, ExecutionMode::LocalSize, [GROUP, 1, 1]);
    Ok(b.module().assemble())
}

/// The same as PTX, for the oldest architecture that is still compiled for, so that every driver takes it.
pub const PTX: &std::ffi::CStr = c"
.version 6.0
.target sm_50
.address_size 64
.visible .entry impasto_trial(.param .u64 source, .param .u64 result)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<6>;
    ld.param.u64 %d0, [source];
    ld.param.u64 %d1, [result];
    cvta.to.global.u64 %d2, %d0;
    cvta.to.global.u64 %d3, %d1;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    mul.wide.u32 %d4, %r3, 4;
    add.u64 %d2, %d2, %d4;
    add.u64 %d3, %d3, %d4;
    ld.global.u32 %r4, [%d2];
    mad.lo.u32 %r5, %r4, 3, %r3;
    st.global.u32 [%d3], %r5;
    ret;
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_a_module_that_reads_back() {
        let words = spirv().expect("it is built");
        let module = rspirv::dr::load_words(&words).expect("it parses");
        assert_eq!(module.entry_points.len(), 1);
        assert_eq!(words[0], 0x0723_0203);
    }

    #[test]
    fn one_wrong_number_is_noticed() {
        let input = input();
        let mut output: Vec<u32> = (0..).zip(&input).map(|(i, n)| expected(i, *n)).collect();
        assert_eq!(compare(&input, &output), Ok(()));
        output[4095] ^= 1;
        assert!(compare(&input, &output).unwrap_err().contains("number 4095"));
        assert!(compare(&input, &output[..7]).is_err());
        assert!(compare(&input, &input).is_err());
    }
}
