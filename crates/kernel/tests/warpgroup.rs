//! Copies and products that go on while other ops run. If one of these failed, kernels for Hopper would be tested against a wrong meaning, or a race
//! in one of them would not be seen before it is on a device.

use half::{bf16, f16};
use impasto_kernel::{
    Buf, BufMut, BufferData, Builder, Kernel, Launch, LeftTile, MatrixLayout, Scalar, Vec4, WarpgroupProduct, execute,
    optimise,
};
use impasto_testkit::kernel::random::Rng;

/// A product of one warpgroup: 64 rows, so many columns and steps of 16 along k.
#[derive(Clone, Copy, Debug)]
struct Case {
    n: u32,
    steps: u32,
    factor: Scalar,
    layout: MatrixLayout,
    /// The left tile is in registers.
    registers: bool,
    /// A second product is added to the first.
    twice: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let registers = rng.below(2) == 0;
        let layout = [MatrixLayout::Row, MatrixLayout::Column][rng.below(2)];
        let most = if registers && layout == MatrixLayout::Row { 8 } else { 4 };
        Case {
            n: 8 * (1 + rng.below(16) as u32),
            steps: 1 + rng.below(most) as u32,
            factor: [Scalar::F16, Scalar::Bf16][rng.below(2)],
            layout,
            registers,
            twice: rng.below(2) == 0,
        }
    }

    /// Rows of the right tile, with those of further blocks of columns.
    fn right_rows(&self) -> u32 {
        match self.layout {
            MatrixLayout::Column => self.n,
            MatrixLayout::Row => 16 * self.steps * self.n.div_ceil(64),
        }
    }

    fn number(&self, bits: u64) -> f64 {
        match self.factor {
            Scalar::F16 => f16::from_bits(bits as u16).to_f64(),
            _ => bf16::from_bits(bits as u16).to_f64(),
        }
    }

    /// Buffers: rows of 64 factors of both tiles, results by invocation.
    fn kernel(&self) -> Kernel {
        let (case, rows) = (*self, self.right_rows());
        Builder::kernel("product", [128, 1, 1], |k| {
            let (x, y) = (k.buffer::<Vec4<u32>>("x"), k.buffer::<Vec4<u32>>("y"));
            let z = k.buffer_mut::<f32>("z");
            let (a, b) = (k.shared::<Vec4<u32>>("a", 64 * 8), k.shared::<Vec4<u32>>("b", rows * 8));
            let sums = k.registers::<f32>("sums", case.n / 2);
            let left = k.registers::<u32>("left", 4 * case.steps);
            let t = k.local_index();
            k.for_step(t, 64 * 8u32, 128, |_, i| k.async_copy(a, i ^ (i / 8u32 % 8u32), x, i, true));
            k.for_step(t, rows * 8, 128, |_, i| k.async_copy(b, i ^ (i / 8u32 % 8u32), y, i, true));
            k.async_commit();
            k.async_wait(0);
            k.barrier();
            if case.registers {
                // Row by row as the buffer has them, and only as wide as that is.
                let (lane, warp) = (t % 32u32, t / 32u32);
                for i in 0..4 * case.steps {
                    let [row, column] = WarpgroupProduct::place(0, 2 * i);
                    let row = warp * 16u32 + lane / 4u32 + row;
                    let word = row * 32u32 + (lane % 4u32 + column / 2) % 32u32;
                    let four = x.load(word / 4u32);
                    let parts = [0, 1, 2, 3].map(|c| four.component(c));
                    let of = |c: usize| (word % 4u32).eq(c as u32).select(parts[c], 0u32);
                    left.store(i, of(0) + of(1) + of(2) + of(3));
                }
            }
            for turn in 0..1 + u32::from(case.twice) {
                let tile = if case.registers { LeftTile::Registers(left) } else { LeftTile::At(a, k.lit(0u32)) };
                let size = [case.n, case.steps];
                k.warpgroup_mul_add(sums, tile, (b, k.lit(0u32)), size, case.factor, case.layout, turn > 0);
            }
            k.warpgroup_wait(0);
            for i in 0..case.n / 2 {
                z.store(t * (case.n / 2) + i, sums.load(i));
            }
        })
        .unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// Two factors of a tile in its buffer, as words hold them.
    fn factor_of(&self, words: &[u64], row: u32, column: u32) -> f64 {
        self.number(words[(row * 32 + column / 2) as usize] >> (16 * (column % 2)) & 0xffff)
    }

    fn expected(&self, [x, y]: [&[u64]; 2], invocation: u32, i: u32) -> f64 {
        let [row, column] = WarpgroupProduct::place(invocation, i);
        let term = |j: u32| {
            let left = self.factor_of(x, row, j % 64);
            let right = match self.layout {
                MatrixLayout::Column => self.factor_of(y, column, j),
                MatrixLayout::Row => self.factor_of(y, column / 64 * 16 * self.steps + j, column % 64),
            };
            left * right
        };
        (0..16 * self.steps).map(term).sum::<f64>() * if self.twice { 2.0 } else { 1.0 }
    }
}

fn words(rng: &mut Rng, case: &Case, rows: u32) -> BufferData {
    let mut data = BufferData::zeros(Scalar::U32, rows as usize * 32);
    let mut half = || {
        let x = rng.below(2001) as f32 / 1000.0 - 1.0;
        u64::from(if case.factor == Scalar::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() })
    };
    data.bits.iter_mut().for_each(|word| *word = half() | half() << 16);
    data
}

fn run(kernel: &Kernel, buffers: Vec<BufferData>) -> Result<BufferData, String> {
    let mut launch = Launch::new([1, 1, 1], buffers);
    execute(kernel, &mut launch).map_err(|e| e.to_string())?;
    Ok(launch.buffers.pop().expect("there is a result"))
}

#[test]
fn products_of_warpgroups_are_those_of_float64() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let kernel = case.kernel();
        let result = BufferData::zeros(Scalar::F32, 64 * case.n as usize);
        let buffers = vec![words(&mut rng, &case, 64), words(&mut rng, &case, case.right_rows()), result];
        let text: Kernel = kernel.to_string().parse().unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let best = optimise(&kernel).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        for made in [&kernel, &text, &best] {
            let got = run(made, buffers.clone()).unwrap_or_else(|e| panic!("{case:?}: {e}")).to_f32().unwrap();
            for invocation in 0..128 {
                for i in 0..case.n / 2 {
                    let expected = case.expected([&buffers[0].bits, &buffers[1].bits], invocation, i);
                    let got = f64::from(got[(invocation * (case.n / 2) + i) as usize]);
                    assert!((got - expected).abs() < 1e-4, "{case:?}: {invocation}, {i}: {got}, not {expected}");
                }
            }
        }
    }
}

/// What the executor says of a kernel whose body is this.
fn refused(body: impl FnOnce(&Builder)) -> String {
    let kernel = Builder::kernel("wrong", [128, 1, 1], body).unwrap_or_else(|e| panic!("{e}"));
    let words = BufferData::zeros(Scalar::U32, 64 * 32);
    run(&kernel, vec![words, BufferData::zeros(Scalar::F32, 128)]).unwrap_err()
}

/// Starts to copy a whole tile.
fn copy_tile<'k>(k: &'k Builder, tile: BufMut<'k, Vec4<u32>>, x: Buf<'k, Vec4<u32>>) {
    k.for_step(k.local_index(), 64 * 8u32, 128, |_, i| k.async_copy(tile, i, x, i, true));
    k.async_commit();
}

/// A product of a tile with itself.
fn square<'k>(k: &'k Builder, tile: BufMut<'k, Vec4<u32>>, sums: BufMut<'k, f32>) {
    let (a, b) = (LeftTile::At(tile, k.lit(0u32)), (tile, k.lit(0u32)));
    k.warpgroup_mul_add(sums, a, b, [64, 4], Scalar::F16, MatrixLayout::Column, false);
}

#[test]
fn what_is_on_its_way_is_neither_read_nor_written() {
    let early = refused(|k| {
        let (x, z) = (k.buffer::<Vec4<u32>>("x"), k.buffer_mut::<f32>("z"));
        let tile = k.shared::<Vec4<u32>>("tile", 64 * 8);
        copy_tile(k, tile, x);
        k.barrier();
        z.store(k.local_index(), tile.load(k.local_index()).component(0).to::<f32>());
    });
    assert!(early.contains("on its way"), "{early}");
    let sums = refused(|k| {
        let (x, z) = (k.buffer::<Vec4<u32>>("x"), k.buffer_mut::<f32>("z"));
        let (tile, sums) = (k.shared::<Vec4<u32>>("tile", 64 * 8), k.registers::<f32>("sums", 32));
        copy_tile(k, tile, x);
        k.async_wait(0);
        k.barrier();
        square(k, tile, sums);
        z.store(k.local_index(), sums.load(0));
    });
    assert!(sums.contains("on its way"), "{sums}");
    let tile = refused(|k| {
        let (x, z) = (k.buffer::<Vec4<u32>>("x"), k.buffer_mut::<f32>("z"));
        let (tile, sums) = (k.shared::<Vec4<u32>>("tile", 64 * 8), k.registers::<f32>("sums", 32));
        copy_tile(k, tile, x);
        k.async_wait(0);
        k.barrier();
        square(k, tile, sums);
        k.async_copy(tile, k.local_index(), x, k.local_index(), true);
        k.warpgroup_wait(0);
        z.store(k.local_index(), sums.load(0));
    });
    assert!(tile.contains("still reads"), "{tile}");
}

#[test]
fn part_of_a_warpgroup_multiplies_nothing() {
    let error = refused(|k| {
        let (x, z) = (k.buffer::<Vec4<u32>>("x"), k.buffer_mut::<f32>("z"));
        let (tile, sums) = (k.shared::<Vec4<u32>>("tile", 64 * 8), k.registers::<f32>("sums", 32));
        k.for_step(k.local_index(), 64 * 8u32, 128, |_, i| tile.store(i, x.load(i)));
        k.barrier();
        k.if_(k.local_index().lt(64), || square(k, tile, sums));
        z.store(k.local_index(), 0f32);
    });
    assert!(error.contains("not all 128 invocations"), "{error}");
}

#[test]
fn registers_are_named_by_constants() {
    let error = Builder::kernel("wrong", [128, 1, 1], |k| {
        let sums = k.registers::<f32>("sums", 32);
        sums.store(k.local_index() % 32u32, 0f32);
    });
    assert!(error.unwrap_err().to_string().contains("is a constant below 32"));
}
