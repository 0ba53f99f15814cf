//! Kernels that look into the corners of this emitter, each with inputs: they run on the interpreter, are assembled, and run on a GPU by the example.

use half::{bf16, f16};
use impasto_kernel::{
    Accumulator, BufferData, Builder, Int, IntoVal, Kernel, Launch, Lit, MatrixA, MatrixB, MatrixLayout, Scalar,
    Shared32, Val, Vec4,
};

use crate::kernel::random::Rng;

pub struct Case {
    pub kernel: Kernel,
    pub launch: Launch,
    /// The relative error allowed; 0 is bit-equal.
    pub error: f64,
}

fn case(kernel: Kernel, groups: [u32; 3], buffers: Vec<BufferData>, scalars: &[u64]) -> Case {
    let mut launch = Launch::new(groups, buffers);
    launch.scalars = scalars.to_vec();
    Case { kernel, launch, error: 0.0 }
}

fn kernel(name: &str, workgroup: [u32; 3], body: impl FnOnce(&Builder)) -> Kernel {
    Builder::kernel(name, workgroup, body).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn ints(n: usize, seed: u64, below: usize) -> BufferData {
    let mut rng = Rng::new(seed);
    BufferData { ty: Scalar::U32, bits: (0..n).map(|_| rng.below(below) as u64).collect() }
}

/// Small whole numbers of a type: sums and products of them are exact in any order.
fn whole(ty: Scalar, n: usize, seed: u64) -> BufferData {
    let mut rng = Rng::new(seed);
    let number = |rng: &mut Rng| {
        let x = rng.below(9) as f32 - 4.0;
        match ty {
            Scalar::F16 => f16::from_f32(x).to_bits().into(),
            Scalar::Bf16 => bf16::from_f32(x).to_bits().into(),
            Scalar::F32 => x.to_bits().into(),
            _ => x as i32 as u32 as u64,
        }
    };
    BufferData { ty, bits: (0..n).map(|_| number(&mut rng)).collect() }
}

pub fn all() -> Vec<Case> {
    let mut all =
        vec![swaps(), counts(), leaves(), switches(), atomics(), arrays(), much_shared(), lengths(), halves()];
    for workgroup in [[64, 1, 1], [8, 8, 2], [40, 1, 1], [7, 3, 1]] {
        all.push(subgroups::<u32>("subgroups_u32", Scalar::U32, workgroup));
        all.push(subgroups::<i32>("subgroups_i32", Scalar::I32, workgroup));
        all.push(float_subgroups(workgroup));
    }
    all.extend([false, true].map(blocks::<f16>));
    all.extend([false, true].map(blocks::<bf16>));
    all.push(small_sums());
    all.push(functions());
    all.push(small_functions());
    all
}

/// Carried values that change places, of several sizes.
fn swaps() -> Case {
    let made = kernel("swaps", [32, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let n = k.param::<u32>("n");
        let i = k.global_id(0);
        let (a, b, c) = (k.var(x.load(i)), k.var(x.load(i + 1u32)), k.var(x.load(i + 2u32)));
        let (p, q) = (k.var(x.load(i).gt(7)), k.var(x.load(i + 1u32).gt(7)));
        let (s, t) = (k.var(x.load(i).to::<u64>()), k.var(k.lit(1u64 << 40)));
        k.for_(0u32, n + (i & 3u32), |_, _| {
            let (u, v, w) = (a.get(), b.get(), c.get());
            a.set(v);
            b.set(w);
            c.set(u);
            let (l, r) = (p.get(), q.get());
            p.set(r);
            q.set(l);
            let (l, r) = (s.get(), t.get());
            s.set(r);
            t.set(l);
        });
        let sum = a.get() + b.get() * 100u32 + c.get() * 10_000u32 + p.get().to::<u32>() * 7u32 + q.get().to::<u32>();
        y.store(i, sum + (s.get() >> 37u64).to::<u32>() + t.get().to::<u32>());
    });
    case(made, [2, 1, 1], vec![ints(70, 1, 100), BufferData::zeros(Scalar::U32, 64)], &[5])
}

/// Loops whose index would run past the end of its type.
fn counts() -> Case {
    let made = kernel("counts", [1, 1, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let (most, below, zero) = (k.param::<u32>("most"), k.param::<i32>("below"), k.param::<u32>("zero"));
        let n = k.var(0u32);
        let count = || n.set(n.get() * 3u32 + 1u32);
        k.for_step(most - 5u32, most, 3, |_, _| count());
        k.for_step(below - 7i32, below, 4, |_, _| count());
        k.for_step(k.lit(-2i32), below, i32::MAX as u32, |_, _| count());
        k.for_(zero, 0u32, |_, _| count());
        k.for_step(k.lit(-5i32), k.lit(6i32), 5, |_, i| n.set(n.get() + i.to::<u32>()));
        k.for_(most - 2u32, most, |_, i| n.set(n.get() ^ i));
        y.store(0, n.get());
    });
    case(made, [1, 1, 1], vec![BufferData::zeros(Scalar::U32, 1)], &[u32::MAX.into(), i32::MAX as u64, 0])
}

/// Exits over several levels, with results.
fn leaves() -> Case {
    let made = kernel("leaves", [32, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let i = k.global_id(0);
        let sum = k.var(0u32);
        k.loop_(|outer| {
            k.for_(0u32, 10u32, |inner, j| {
                let v = x.load((i + j + sum.get()) % 64u32);
                sum.set(sum.get() + v);
                k.if_(v.gt(90), || outer.break_());
                k.if_(v.gt(70), || inner.continue_());
                k.if_(v.gt(60), || inner.break_());
                k.if_(v.eq(13), || {
                    y.store(i, 13);
                    k.return_();
                });
                k.if_(sum.get().gt(500), || outer.continue_());
                sum.set(sum.get() * 2u32);
            });
            k.if_(sum.get().gt(1000), || outer.break_());
            sum.set(sum.get() + 1u32);
        });
        y.store(i, sum.get());
    });
    case(made, [2, 1, 1], vec![ints(64, 2, 100), BufferData::zeros(Scalar::U32, 64)], &[])
}

fn switches() -> Case {
    let made = kernel("switches", [32, 1, 1], |k| {
        let (x, y) = (k.buffer::<i32>("x"), k.buffer_mut::<i32>("y"));
        let i = k.global_id(0);
        let v = k.var(x.load(i));
        k.match_(
            v.get(),
            |arms| {
                arms.case(&[-4, 2], || v.set(v.get() * 100i32));
                arms.case(&[0], || ());
                arms.case(&[1], || k.if_(i.gt(20), || v.set(9i32)));
                arms.case(&[3], || k.return_());
            },
            || v.set(v.get() - 1i32),
        );
        y.store(i, v.get());
    });
    case(made, [2, 1, 1], vec![whole(Scalar::I32, 64, 3), BufferData::zeros(Scalar::I32, 64)], &[])
}

/// Atomics whose result does not depend on their order.
fn atomics() -> Case {
    let made = kernel("atomics", [64, 1, 1], |k| {
        let (x, f) = (k.buffer::<u32>("x"), k.buffer_mut::<f32>("f"));
        let (u, s) = (k.buffer_mut::<u32>("u"), k.buffer_mut::<i32>("s"));
        let (inner, sums) = (k.shared::<u32>("inner", 8), k.shared::<f32>("sums", 2));
        let (i, l) = (k.global_id(0), k.local_index());
        k.if_(l.lt(8), || inner.store(l, 0xFF0u32));
        k.if_(l.lt(2), || sums.store(l, 0.5f32));
        k.barrier();
        let v = x.load(i);
        u.atomic_add(0, v);
        u.atomic_min(1, v);
        u.atomic_max(2, v + (1u32 << 31));
        u.atomic_and(3, !(k.lit(1u32) << v));
        u.atomic_or(4, k.lit(1u32) << v);
        u.atomic_xor(5, v);
        s.atomic_min(0, -v.to::<i32>());
        s.atomic_max(1, v.to::<i32>() - 200i32);
        f.atomic_sum(0, v.to::<f32>());
        inner.atomic_add(0, v);
        inner.atomic_xor(1, v * 3u32);
        inner.atomic_max(2, v * 99u32);
        sums.atomic_sum(1, v.to::<f32>() * 0.5f32);
        let won = inner.atomic_compare_exchange(3, 0xFF0, 1);
        k.if_(won.eq(0xFF0), || {
            inner.atomic_exchange(4, 77);
        });
        k.barrier();
        k.if_(l.lt(8), || u.store(k.workgroup_id(0) * 8u32 + l + 8u32, inner.load(l)));
        k.if_(l.lt(2), || f.store(k.workgroup_id(0) * 2u32 + l + 2u32, sums.load(l)));
    });
    let floats = BufferData::from(&[0.25f32; 8][..]);
    let signed = BufferData::from(&[i32::MAX, i32::MIN][..]);
    let unsigned = BufferData { ty: Scalar::U32, bits: vec![u32::MAX.into(); 32] };
    case(made, [2, 1, 1], vec![ints(128, 4, 32), floats, unsigned, signed], &[])
}

/// Private arrays that are cleared with and without a loop, of bools too, and a shared one of bools.
fn arrays() -> Case {
    let made = kernel("arrays", [32, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let (large, small, bits) =
            (k.private::<u64>("large", 100), k.private::<u32>("small", 7), k.private::<bool>("b", 9));
        let seen = k.shared::<bool>("seen", 32);
        let i = k.local_index();
        let v = x.load(i);
        large.store(v % 100u32, v.to::<u64>() << 33u64);
        small.store(v % 7u32, v);
        bits.store(v % 9u32, v.gt(3));
        seen.store(i, v.gt(50));
        k.barrier();
        let sum = k.var(0u32);
        k.for_(0u32, 100u32, |_, j| {
            sum.set(sum.get() * 5u32 + (large.load(j) >> 32u64).to::<u32>());
            sum.set(sum.get() + small.load(j % 7u32) + bits.load(j % 9u32).to::<u32>());
            sum.set(sum.get() + seen.load(j % 32u32).to::<u32>());
        });
        y.store(i, sum.get());
    });
    case(made, [1, 1, 1], vec![ints(32, 5, 100), BufferData::zeros(Scalar::U32, 32)], &[])
}

/// More shared memory than a module declares itself: it is the launch's.
fn much_shared() -> Case {
    let made = kernel("much_shared", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let (a, b) = (k.shared::<u32>("a", 3), k.shared::<Vec4<u32>>("b", 3500));
        let l = k.local_index();
        k.if_(l.lt(3), || a.store(l, 5u32));
        let v = x.load(l);
        b.store(l * 54u32, k.vector([v, v + 1u32, v + 2u32, v + 3u32]));
        k.barrier();
        let other = b.load((l * 7u32 + 3u32) % 64u32 * 54u32);
        y.store(l, other.component(0) * other.component(3) + a.load(l % 3u32));
    });
    case(made, [1, 1, 1], vec![ints(64, 6, 1000), BufferData::zeros(Scalar::U32, 64)], &[])
}

/// Lengths of buffers, and parameters of all sizes.
fn lengths() -> Case {
    let made = kernel("lengths", [1, 1, 1], |k| {
        let (a, b) = (k.buffer::<f16>("a"), k.buffer::<(f32, u64)>("b"));
        let (c, y) = (k.buffer::<Vec4<f32>>("c"), k.buffer_mut::<u32>("y"));
        let (p, q, r) = (k.param::<f16>("p"), k.param::<u64>("q"), k.param::<bf16>("r"));
        let (s, t) = (k.param::<i32>("s"), k.param::<f32>("t"));
        for (i, n) in [a.len(), b.len(), c.len(), y.len()].into_iter().enumerate() {
            y.store(i as u32, n);
        }
        y.store(4, p.to::<f32>().bits_as::<u32>());
        y.store(5, (q >> 32u64).to::<u32>());
        y.store(6, r.to::<f32>().bits_as::<u32>());
        y.store(7, (s / 3i32).to::<u32>());
        y.store(8, t.bits_as::<u32>() + b.load(1).second().to::<u32>());
    });
    let buffers = vec![
        whole(Scalar::F16, 37, 7),
        ints(21 * 4, 8, 1000),
        whole(Scalar::F32, 12, 9),
        BufferData::zeros(Scalar::U32, 9),
    ];
    let scalars = [0x4248, 0x1234_5678_9ABC_DEF0, 0x4049, (-100i32) as u32 as u64, 0x4048_F5C3];
    case(made, [1, 1, 1], buffers, &scalars)
}

/// Arithmetic on f16: exact where there is one rounding.
fn halves() -> Case {
    let made = kernel("halves", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<f16>("x"), k.buffer_mut::<f16>("y"));
        let (z, f) = (k.buffer_mut::<i64>("z"), k.buffer_mut::<f32>("f"));
        let i = k.global_id(0);
        let (a, b) = (x.load(i), x.load(127u32 - i));
        let made = [
            a + b,
            a - b,
            a * b,
            a.min(b),
            a.max(b),
            -a,
            a.abs(),
            a.floor(),
            a.ceil(),
            a.trunc(),
            a.round_even(),
            a.lt(b).select(a, b),
            a.to::<i32>().to::<f16>(),
            (a.to::<f32>() * 1000f32).to::<u32>().to::<f16>(),
            a.ne(b).to::<f16>(),
            a.bits_as::<bf16>().to::<f32>().to::<f16>(),
        ];
        for (n, v) in made.into_iter().enumerate() {
            y.store(i * 16u32 + n as u32, v);
        }
        z.store(i, a.to::<i64>() - b.to::<u64>().to::<i64>());
        f.store(i, a.to::<f32>().to::<bf16>().to::<f32>());
    });
    let mut rng = Rng::new(10);
    let bits = (0..128).map(|i| match i % 8 {
        0 => [0x7C00u64, 0xFC00, 0x7E00, 0x0001, 0x8001, 0x8000, 0x7BFF, 0x03FF][i / 8 % 8],
        _ => rng.bits() & 0xFFFF,
    });
    let x = BufferData { ty: Scalar::F16, bits: bits.collect() };
    let results = vec![
        x,
        BufferData::zeros(Scalar::F16, 2048),
        BufferData::zeros(Scalar::I64, 128),
        BufferData::zeros(Scalar::F32, 128),
    ];
    case(made, [2, 1, 1], results, &[])
}

/// All functions of a subgroup: of all lanes, of some, of those that are left in a loop.
fn subgroups<T>(name: &str, ty: Scalar, workgroup: [u32; 3]) -> Case
where
    T: Lit + Int + Shared32 + for<'k> IntoVal<'k, T>,
{
    let [sx, sy, sz] = workgroup;
    let made = kernel(&format!("{name}_{sx}_{sy}_{sz}"), workgroup, |k| {
        let (x, y) = (k.buffer::<T>("x"), k.buffer_mut::<T>("y"));
        let n = k.workgroup_id(0) * (sx * sy * sz) + k.local_index();
        let at = k.var(n * 32u32);
        let v = x.load(n);
        let all = |v: Val<'_, T>| {
            let odd = (v.to::<u32>() & 1u32).eq(1);
            let made = [
                v.subgroup_add(),
                v.subgroup_min(),
                v.subgroup_max(),
                v.subgroup_exclusive_add(),
                v.subgroup_broadcast_first(),
                odd.subgroup_all().to::<T>(),
                odd.subgroup_any().to::<T>(),
            ];
            for made in made {
                y.store(at.get(), made);
                at.set(at.get() + 1u32);
            }
        };
        all(v);
        // Partners are there or gone together.
        k.if_((k.subgroup_lane() / 2u32 % 3u32).ne(1) & k.subgroup_lane().lt(6), || {
            y.store(at.get(), v.subgroup_shuffle_xor(1));
            all(v);
        });
        let turns = k.var(0u32);
        k.while_(
            || turns.get().lt(k.subgroup_lane() % 4u32),
            |_| {
                y.store(n * 32u32 + 20u32 + turns.get(), v.subgroup_add());
                turns.set(turns.get() + 1u32);
            },
        );
        y.store(n * 32u32 + 30u32, k.subgroup_id().to::<T>());
        y.store(n * 32u32 + 31u32, (k.subgroup_lane() + k.subgroup_size() * 100u32).to::<T>());
    });
    let lanes = 2 * (sx * sy * sz) as usize;
    case(made, [2, 1, 1], vec![whole(ty, lanes, 11), BufferData::zeros(ty, 32 * lanes)], &[])
}

fn float_subgroups(workgroup: [u32; 3]) -> Case {
    let [sx, sy, sz] = workgroup;
    let made = kernel(&format!("subgroups_f32_{sx}_{sy}_{sz}"), workgroup, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let n = k.local_index();
        let v = x.load(n);
        let all = |v: Val<'_, f32>, at: Val<'_, u32>| {
            let made = [
                v.subgroup_add(),
                v.subgroup_min(),
                v.subgroup_max(),
                v.subgroup_exclusive_add(),
                v.subgroup_broadcast_first(),
            ];
            for (i, made) in made.into_iter().enumerate() {
                y.store(at + i as u32, made);
            }
        };
        all(v, n * 16u32);
        k.if_(v.gt(0.0), || all(v, n * 16u32 + 8u32));
    });
    let lanes = (sx * sy * sz) as usize;
    case(made, [1, 1, 1], vec![whole(Scalar::F32, lanes, 12), BufferData::zeros(Scalar::F32, 16 * lanes)], &[])
}

/// Products of matrices that lie in shared memory, in all layouts, as scalars or as vectors.
fn blocks<T>(vectors: bool) -> Case
where
    T: Lit + impasto_kernel::Factor<f32>,
{
    use MatrixLayout::{Column, Row};
    let name = format!("blocks_{}_{}", T::SCALAR.name(), if vectors { "vectors" } else { "scalars" });
    let made = kernel(&name, [32, 1, 1], |k| {
        let (x, z) = (k.buffer::<T>("x"), k.buffer_mut::<f32>("z"));
        let (ones, fours) = (k.shared::<T>("ones", 1024), k.shared::<Vec4<T>>("fours", 256));
        let pitch = k.param::<u32>("pitch");
        k.for_(0u32, 8u32, |_, i| {
            let at = i * 32u32 + k.local_index();
            let load = |c: u32| x.load(at * 4u32 + c);
            if vectors {
                fours.store(at, k.vector([load(0), load(1), load(2), load(3)]));
            } else {
                (0..4).for_each(|c| ones.store(at * 4u32 + c, load(c)));
            }
        });
        k.barrier();
        let mut at = 0;
        for (left, right) in [(Row, Row), (Row, Column), (Column, Row), (Column, Column)] {
            // Rows of 24 elements, once as a number in the kernel and once as one that it is given.
            for stride in [k.lit(24u32), pitch] {
                macro_rules! load {
                    ($ty:ty, $from:literal, $layout:expr) => {
                        match vectors {
                            true => k.matrix_load::<$ty>(fours, k.lit($from / 4u32), stride / 4u32, $layout),
                            false => k.matrix_load::<$ty>(ones, k.lit($from), stride, $layout),
                        }
                    };
                }
                let zero = k.matrix_fill::<Accumulator<f32, 16, 16>>(1.0);
                let a = load!(MatrixA<T, 16, 16>, 8u32, left);
                let b = load!(MatrixB<T, 16, 16>, 400u32, right);
                let sum = k.matrix_mul_add(a, b, zero);
                k.matrix_store(z, at, 16, left, sum);
                let a = load!(MatrixA<T, 32, 16>, 16u32, left);
                let b = load!(MatrixB<T, 16, 8>, 408u32, right);
                let before = k.matrix_load::<Accumulator<f32, 32, 8>>(z, 4096, 32, right);
                k.matrix_store(z, at + 256, 32, Column, k.matrix_mul_add(a, b, before));
                let a = load!(MatrixA<T, 16, 8>, 0u32, left);
                let b = load!(MatrixB<T, 8, 8>, 512u32, right);
                let before = k.matrix_load::<Accumulator<f32, 16, 8>>(z, 4096, 24, left);
                k.matrix_store(z, at + 512, 8, Row, k.matrix_mul_add(a, b, before));
                at += 1024;
            }
        }
    });
    let mut z = whole(Scalar::F32, 16 * 1024, 14);
    z.bits[..1024].fill(0);
    case(made, [1, 1, 1], vec![whole(T::SCALAR, 1024, 13), z], &[24])
}

/// Sums of f16 in matrices, by way of shared memory, with arithmetic.
fn small_sums() -> Case {
    use MatrixLayout::{Column, Row};
    let made = kernel("small_sums", [64, 1, 1], |k| {
        let (x, z) = (k.buffer::<f16>("x"), k.buffer_mut::<f16>("z"));
        let tile = k.shared::<f16>("tile", 512);
        let s = k.subgroup_id();
        let a = k.matrix_load::<MatrixA<f16, 16, 16>>(x, s * 256u32, 16, Row);
        let b = k.matrix_load::<MatrixB<f16, 16, 16>>(x, 512, 16, Column);
        let c = k.matrix_load::<Accumulator<f16, 16, 16>>(x, 768, 16, Column);
        let sum = k.matrix_mul_add(a, b, c);
        k.matrix_store(tile, s * 256u32, 16, Column, sum);
        k.subgroup_barrier();
        let back = k.matrix_load::<Accumulator<f16, 16, 16>>(tile, s * 256u32, 16, Row);
        let other = back.scaled(f16::from_f32(0.5)).plus(sum).minus(c);
        k.matrix_store(z, s * 256u32, 16, Row, other);
        let wide = sum.elements_as::<f32>().scaled(0.25f32).elements_as::<f16>();
        k.matrix_store(z, s * 256u32 + 512u32, 16, Column, wide);
    });
    case(made, [1, 1, 1], vec![whole(Scalar::F16, 1024, 15), BufferData::zeros(Scalar::F16, 1024)], &[])
}

/// What is within the bounds of the device.
fn functions() -> Case {
    let made = kernel("functions", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        let v = x.load(i);
        let p = v.abs() + 0.01f32;
        let made = [
            p.sqrt(),
            p.inverse_sqrt(),
            v.exp(),
            p.log() + 10f32,
            v.sin() + 2f32,
            (v * 100f32).cos() + 2f32,
            v.tanh() + 2f32,
            v / (p + 1f32),
            p.pow(v * 0.25f32),
            v.mul_add(p, 3.0f32),
            1e-38f32.into_val(k) / p,
            p / 1e38f32,
        ];
        for (n, made) in made.into_iter().enumerate() {
            y.store(i * 12u32 + n as u32, made);
        }
    });
    let x: Vec<f32> = (0..256).map(|i| (i as f32 - 128.0) / 13.0).collect();
    let made = case(made, [4, 1, 1], vec![BufferData::from(&x[..]), BufferData::zeros(Scalar::F32, 12 * 256)], &[]);
    Case { error: 1e-5, ..made }
}

/// The same of f16.
fn small_functions() -> Case {
    let made = kernel("small_functions", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<f16>("x"), k.buffer_mut::<f16>("y"));
        let i = k.global_id(0);
        let v = x.load(i);
        let p = v.abs() + k.lit(f16::from_f32(0.25));
        for (n, made) in [p.sqrt(), p.inverse_sqrt(), v.exp(), v.tanh(), v / p, v.mul_add(p, p)].into_iter().enumerate()
        {
            y.store(i * 6u32 + n as u32, made);
        }
    });
    let x = BufferData {
        ty: Scalar::F16,
        bits: (0..128).map(|i| f16::from_f32((i as f32 - 64.0) / 16.0).to_bits().into()).collect(),
    };
    Case { error: 2e-3, ..case(made, [2, 1, 1], vec![x, BufferData::zeros(Scalar::F16, 6 * 128)], &[]) }
}

/// Whether these are the results, within the error of a case.
pub fn right(case: &Case, expected: &[BufferData], got: &[BufferData]) -> Result<(), String> {
    if case.error == 0.0 {
        return crate::kernel::same(expected, got);
    }
    for (i, (a, b)) in expected.iter().zip(got).enumerate() {
        let value = |bits: u64| match a.ty {
            Scalar::F16 => f64::from(f16::from_bits(bits as u16)),
            Scalar::F32 => f64::from(f32::from_bits(bits as u32)),
            _ => bits as f64,
        };
        for (j, (&x, &y)) in a.bits.iter().zip(&b.bits).enumerate() {
            let (want, have) = (value(x), value(y));
            let off = (want - have).abs();
            // What is below the smallest normal number has fewer digits.
            if off > case.error * want.abs() + 1e-40 && want != have || want.is_nan() != have.is_nan() {
                return Err(format!("buffer {i}, element {j}: {want} and {have}"));
            }
        }
    }
    Ok(())
}
