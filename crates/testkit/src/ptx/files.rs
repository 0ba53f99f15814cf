//! The file tests: each file in `tests/files` holds cases, each a target, a kernel, and the module that it becomes, or why it does not.

use half::{bf16, f16};
use impasto_kernel::{BufferData, Kernel, Launch, Scalar, Space, execute};

use super::cases::{self, Case};
use crate::kernel::random::Rng;

/// All files, as they are when this is built.
pub const FILES: [(&str, &str); 7] = [
    ("arithmetic.txt", include_str!("../../../ptx/tests/files/arithmetic.txt")),
    ("control.txt", include_str!("../../../ptx/tests/files/control.txt")),
    ("memory.txt", include_str!("../../../ptx/tests/files/memory.txt")),
    ("subgroup.txt", include_str!("../../../ptx/tests/files/subgroup.txt")),
    ("matrix.txt", include_str!("../../../ptx/tests/files/matrix.txt")),
    ("warpgroup.txt", include_str!("../../../ptx/tests/files/warpgroup.txt")),
    ("refused.txt", include_str!("../../../ptx/tests/files/refused.txt")),
];

/// What stands before the first case, and the cases: heading, kernel, and what it becomes.
pub fn split(text: &str) -> (&str, Vec<(&str, &str, &str)>) {
    let mut parts = text.split("==== ");
    let head = parts.next().unwrap_or("");
    let case = |case| {
        let (head, rest) = str::split_once(case, '\n').unwrap_or((case, ""));
        let (kernel, module) = rest.split_once("----\n").unwrap_or((rest, ""));
        (head, kernel, module)
    };
    (head, parts.map(case).collect())
}

/// Elements of each buffer.
const ELEMENTS: usize = 256;

/// Random inputs for a kernel, small enough for indices to stay inside when they are taken from them.
fn inputs(kernel: &Kernel) -> Launch {
    let mut rng = Rng::new(7);
    let mut number = |s: Scalar| {
        let float = (rng.below(2001) as f32 - 1000.0) / 64.0;
        match s {
            Scalar::F32 => float.to_bits().into(),
            Scalar::F16 => f16::from_f32(float).to_bits().into(),
            Scalar::Bf16 => bf16::from_f32(float).to_bits().into(),
            Scalar::I32 => (rng.below(41) as i32 - 20) as u32 as u64,
            Scalar::I64 => (rng.below(41) as i64 - 20) as u64,
            _ => rng.below(41) as u64,
        }
    };
    let mut buffers = Vec::new();
    for m in kernel.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_))) {
        let (s, n) = match m.ty.lanes() {
            Some((s, n)) => (s, n.next_power_of_two() as usize),
            None => (Scalar::U32, kernel.lay_out(m.ty).stride() as usize / 4),
        };
        buffers.push(BufferData { ty: s, bits: (0..ELEMENTS * n).map(|_| number(s)).collect() });
    }
    let mut launch = Launch::new([2, 1, 1], buffers);
    launch.scalars = kernel.params().iter().map(|p| number(p.ty)).collect();
    launch
}

/// A kernel of a file with inputs, and what the executor makes of them.
pub struct FileCase {
    pub kernel: Kernel,
    pub launch: Launch,
    expected: Vec<BufferData>,
    /// What devices may be off by.
    error: f64,
}

/// The kernels of all files that are not refused.
pub fn kernels() -> Vec<FileCase> {
    let mut all = Vec::new();
    for (file, text) in FILES {
        for (head, kernel, module) in split(text).1 {
            if module.starts_with("error") {
                continue;
            }
            let mut kernel: Kernel = kernel.parse().unwrap_or_else(|e| panic!("{file}, {head}: {e}"));
            let error = if head.contains("within bounds") { 2e-3 } else { 0.0 };
            kernel.name = format!("{}_{}", kernel.name, all.len());
            let launch = inputs(&kernel);
            let mut expected = launch.clone();
            execute(&kernel, &mut expected).unwrap_or_else(|e| panic!("{file}, {head}: {e}"));
            all.push(FileCase { kernel, launch, expected: expected.buffers, error });
        }
    }
    all
}

/// Whether these are the results.
pub fn right(case: &FileCase, got: &[BufferData]) -> Result<(), String> {
    let FileCase { kernel, launch, expected, error } = case;
    cases::right(&Case { kernel: kernel.clone(), launch: launch.clone(), error: *error }, expected, got)
}
