//! Kernels for matrix units, on the executor, since few devices have matrices, against the plain kernels, which are held to the float64
//! reference on devices.

use impasto_graph::{Fused, Unary};
use impasto_kernel::{BufferData, Launch, Scalar, execute};

use super::super::flash::Flash;
use super::super::gemm::{Bias, Left};
use super::super::{attention, gemm};
use super::*;
use crate::shapes::{Heads, Window};

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = time.map_or(1, |t| t.as_nanos() as u64);
        println!("seed {seed}");
        Random(seed)
    }

    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next(list.len() as u64) as usize]
    }

    fn data(&mut self, dtype: DType, n: u32) -> BufferData {
        let scalar = if dtype == DType::F16 { Scalar::F16 } else { Scalar::F32 };
        let mut data = BufferData::zeros(scalar, n as usize);
        for bits in &mut data.bits {
            let x = self.next(2001) as f32 / 1000.0 - 1.0;
            *bits = if dtype == DType::F16 { f16::from_f32(x).to_bits().into() } else { x.to_bits().into() };
        }
        data
    }

    fn units(&mut self) -> Units {
        let shared = self.pick(&[32 << 10, 48 << 10]);
        Units { subgroup: 32, shape: self.pick(&Units::SHAPES), shared, invocations: 1024, warpgroups: false }
    }
}

fn values(data: &BufferData, dtype: DType) -> Vec<f64> {
    let value = |&bits: &u64| match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        _ => f32::from_bits(bits as u32).into(),
    };
    data.bits.iter().map(value).collect()
}

fn run(kernel: &Kernel, groups: [u32; 3], buffers: Vec<BufferData>) -> BufferData {
    let mut launch = Launch::new(groups, buffers);
    launch.subgroup = 32;
    execute(kernel, &mut launch).unwrap_or_else(|e| panic!("{e}"));
    launch.buffers.pop().expect("there is a result")
}

/// How far apart two results are, as a part of their length.
fn apart(expected: &BufferData, got: &BufferData, dtype: DType) -> f64 {
    let (x, y) = (values(expected, dtype), values(got, dtype));
    let square = |d: f64| d * d;
    let (apart, all) = x.iter().zip(&y).fold((0.0, 0.0), |(d, n), (&x, &y)| (d + square(x - y), n + square(x)));
    (apart / all).sqrt()
}

/// A product of random size and kind, and the elements of its left side.
fn random(r: &mut Random) -> (Gemm, u32) {
    let (f16, f32) = (DType::F16, DType::F32);
    let plain = Gemm {
        batch: 1 + r.next(2) as u32,
        m: 1 + r.next(150) as u32,
        n: r.pick(&[3, 4, 8, 20, 36, 64, 100, 130]),
        segments: 1,
        depth: r.pick(&[1, 4, 9, 32, 40, 72, 520]),
        left: Left::Rows,
        left_type: r.pick(&[f16, f32]),
        right_type: f16,
        right_transposed: r.next(2) == 0,
        geglu: false,
        scale: r.pick(&[1.0, 0.5]),
        bias: None,
        activation: r.pick(&[None, Some(Unary::Silu)]),
        residual: r.pick(&[None, Some(f32), Some(f16)]),
        out: r.pick(&[f16, f32]),
    };
    let bias = |rows| Some(Bias { dtype: f16, rows });
    if r.next(2) == 0 {
        let rows = (plain.batch == 1 && plain.m.is_multiple_of(2) && r.next(2) == 0).then_some(plain.m / 2);
        return (Gemm { bias: bias(rows), ..plain }, plain.batch * plain.m * plain.depth);
    }
    let (stride, upsample) = r.pick(&[(1, 1), (2, 1), (1, 2)]);
    let [height, width] = [4 + r.next(6) as usize, 4 + r.next(6) as usize];
    let side = r.pick(&[2, 3]);
    let out = |n: usize| (n * upsample + 2 - side) / stride + 1;
    let w = Window {
        batch: 2,
        height,
        width,
        channels: plain.depth as usize,
        x_type: plain.left_type,
        out_height: out(height),
        out_width: out(width),
        n: plain.n as usize,
        kernel: [side, side],
        stride,
        padding: [1, 1],
        upsample,
        fused: Fused { bias: true, activation: None, residual: false },
    };
    let pixels = (w.out_height * w.out_width) as u32;
    let left = Left::Window(w);
    let gemm =
        Gemm { batch: 1, m: 2 * pixels, segments: (side * side) as u32, left, bias: bias(Some(pixels)), ..plain };
    (gemm, (2 * height * width * w.channels) as u32)
}

#[test]
fn products_are_those_of_the_plain_kernel() {
    let mut r = Random::new();
    let (mut split, mut whole) = (0, 0);
    // Some, and on until there was one of each.
    while split + whole < 16 || split == 0 || whole == 0 {
        let (gemm, left) = random(&mut r);
        let tiled = Tiled::new(&gemm, r.units()).expect("it fits");
        let mut inputs = vec![r.data(gemm.left_type, left), r.data(DType::F16, gemm.batch * gemm.k() * gemm.n)];
        let result = gemm.batch * gemm.m * gemm.n;
        let mut ends = vec![];
        ends.extend(gemm.bias.map(|b| r.data(b.dtype, b.rows.map_or(1, |rows| gemm.m / rows) * gemm.n)));
        ends.extend(gemm.residual.map(|dtype| r.data(dtype, result)));
        ends.push(r.data(gemm.out, result));
        let plain = [inputs.clone(), ends.clone()].concat();
        let expected = run(&gemm.kernel().unwrap(), gemm.groups(), plain);
        let got = match tiled.split().finish() {
            None => {
                whole += 1;
                inputs.extend(ends);
                run(&tiled.kernel().unwrap(), tiled.groups(), inputs)
            }
            Some((finish, groups)) => {
                split += 1;
                inputs.push(r.data(DType::F32, (tiled.split().scratch_bytes() / 4) as u32));
                ends.insert(0, run(&tiled.kernel().unwrap(), tiled.groups(), inputs));
                run(&finish.unwrap(), groups, ends)
            }
        };
        let error = apart(&expected, &got, gemm.out);
        let allowed = if gemm.left_type == DType::F32 || gemm.out == DType::F16 { 1e-3 } else { 1e-5 };
        assert!(error < allowed, "{:?}, {} x {} x {}: {error}", tiled.tile, gemm.m, gemm.n, gemm.k());
    }
}

#[test]
fn every_part_of_a_split_sum_has_pieces() {
    let mut r = Random::new();
    let mut split = 0;
    for _ in 0..20_000 {
        let (gemm, _) = random(&mut r);
        let tiled = Tiled::new(&Gemm { depth: 1 + r.next(3000) as u32, ..gemm }, r.units()).expect("it fits");
        split += u32::from(tiled.splits > 1);
        let before_the_last = (tiled.splits - 1) * tiled.pieces_of_part();
        assert!(before_the_last < tiled.pieces(), "{} parts of {} pieces", tiled.splits, tiled.pieces());
    }
    assert!(split > 1000, "{split} sums were split");
}

#[test]
fn attention_is_that_of_the_plain_kernel() {
    let mut r = Random::new();
    for _ in 0..8 {
        let [batch, heads] = [1 + r.next(2), 1 + r.next(2)].map(|n| n as usize);
        let [queries, keys] = [1 + r.next(90), 1 + r.next(100)].map(|n| n as usize);
        let [width, value_width] = [r.pick(&[8, 40, 64, 160]), r.pick(&[8, 40, 80])];
        let scale = r.pick(&[0.2, 3.0]);
        let h = Heads {
            batch,
            heads,
            queries,
            keys,
            width,
            value_width,
            scale,
            causal: false,
            kv_heads: heads,
            bias: None,
        };
        let to = r.pick(&[DType::F16, DType::F32]);
        let flash = Flash::new(&h, [DType::F16; 3], r.units()).expect("it fits");
        let sizes = [queries * width, keys * width, keys * value_width, queries * value_width];
        let types = [DType::F16, DType::F16, DType::F16, to];
        let buffers: Vec<BufferData> =
            sizes.iter().zip(types).map(|(n, dtype)| r.data(dtype, (batch * heads * n) as u32)).collect();
        let expected = attention::attention(&h, types).unwrap();
        let expected = run(&expected, attention::workgroups(&h), buffers.clone());
        let got = run(&flash.kernel(to).unwrap(), flash.groups(), buffers);
        let error = apart(&expected, &got, to);
        assert!(error < 2e-3, "{queries} queries, {keys} keys, {width} and {value_width} wide: {error}");
    }
}

#[test]
fn matrices_are_for_halves_only() {
    let mut r = Random::new();
    let (product, _) = random(&mut r);
    assert!(Tiled::new(&gemm::Gemm { right_type: DType::F32, ..product }, r.units()).is_none());
    assert!(Tiled::new(&gemm::Gemm { left_type: DType::BF16, ..product }, r.units()).is_none());
}

#[path = "warpgroup_tests.rs"]
mod warpgroup_tests;

#[path = "ptx_tests.rs"]
mod ptx;
