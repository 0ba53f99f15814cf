//! Kernels on which optimisers of SPIR-V run out of ids: many variables that live across many joins, few of which change any of them.

use impasto_kernel::{Builder, Data, Kernel, KernelError, Launch, Scalar};

/// `v` variables, `j` ifs (or loops, with `repeats`) one after the other, each of which changes `k` variables in turn.
pub fn kernel(repeats: bool, v: u32, j: u32, k: u32, workgroup: u32) -> Result<Kernel, KernelError> {
    Builder::kernel(if repeats { "loop" } else { "sparse" }, [workgroup, 1, 1], |b| {
        let x = b.buffer_mut::<f32>("x");
        let gid = b.global_id(0);
        let trips = gid + 1u32;
        let base = gid * v.max(j);
        let vars: Vec<_> = (0..v).map(|i| b.var(x.load(base + i))).collect();
        let mut next = 0;
        for i in 0..j {
            let factor = x.load(base + i);
            let positive = factor.gt(0.0);
            let body = || {
                for t in 0..k {
                    let var = vars[((next + t) % v) as usize];
                    var.set(var.get() * factor);
                }
            };
            if repeats {
                b.for_(0u32, trips, |_, _| body())
            } else {
                b.if_(positive, body)
            }
            next = (next + k) % v;
        }
        for (i, var) in vars.iter().enumerate() {
            x.store(base + i as u32, var.get());
        }
    })
}

/// Inputs for it: factors near one, half of them negative.
pub fn launch(v: u32, j: u32, invocations: u32) -> Launch {
    let n = (v.max(j) * invocations) as usize;
    let mut data = Data::zeros(Scalar::F32, n);
    for (i, b) in data.bits.iter_mut().enumerate() {
        let x = (1.0 + (i % 97) as f32 / 1024.0) * if i * 7 % 13 < 6 { -1.0 } else { 1.0 };
        *b = x.to_bits().into();
    }
    Launch::new([1, 1, 1], vec![data])
}
