//! Products by warpgroups, on the executor against the plain kernels, and as PTX for NVIDIA's assembler: few machines have a Hopper GPU.

use impasto_kernel::Scalar;
use impasto_ptx::{PtxTarget, compiler};

use super::super::super::elementwise;
use super::super::super::warpgroup::WarpgroupGemm;
use super::super::super::warpgroup_flash::WarpgroupFlash;
use super::*;
use impasto_testkit::ptx::ptxas;

/// Numbers of 16 bits as the words that copies move.
fn words(data: &BufferData) -> BufferData {
    let mut made = BufferData::zeros(Scalar::U32, data.bits.len().div_ceil(8) * 4);
    for (word, two) in made.bits.iter_mut().zip(data.bits.chunks(2)) {
        *word = two[0] | two.get(1).map_or(0, |high| high << 16);
    }
    made
}

/// A product that warpgroups can compute.
fn random_for_warpgroups(r: &mut Random) -> (Gemm, u32) {
    loop {
        let (gemm, left) = random(r);
        let depth = r.pick(&[8, 40, 64, 72, 136, 520]);
        let left_type = DType::F16;
        let n: u32 = r.pick(&[3, 36, 64, 100, 160, 200]);
        let left = left / gemm.depth * depth;
        let window = match gemm.left {
            Left::Window(w) => Left::Window(Window { channels: depth as usize, x_type: left_type, n: n as usize, ..w }),
            Left::Rows => Left::Rows,
        };
        let right_transposed = gemm.right_transposed || gemm.segments > 1 || !n.is_multiple_of(8);
        let gemm = Gemm { depth, left_type, n, left: window, right_transposed, ..gemm };
        if gemm.k() < 2000 {
            return (gemm, left);
        }
    }
}

#[test]
fn products_of_warpgroups_are_those_of_the_plain_kernel() {
    let mut r = Random::new();
    let (mut split, mut whole) = (0, 0);
    while split + whole < 10 || split == 0 || whole == 0 {
        let (gemm, left) = random_for_warpgroups(&mut r);
        let product = WarpgroupGemm::new(&gemm).expect("it fits");
        let inputs = [r.data(DType::F16, left), r.data(DType::F16, gemm.batch * gemm.k() * gemm.n)];
        let result = gemm.batch * gemm.m * gemm.n;
        let mut ends = vec![];
        ends.extend(gemm.bias.map(|b| r.data(b.dtype, b.rows.map_or(1, |rows| gemm.m / rows) * gemm.n)));
        ends.extend(gemm.residual.map(|dtype| r.data(dtype, result)));
        ends.push(r.data(gemm.out, result));
        let expected = run(&gemm.kernel().unwrap(), gemm.groups(), [inputs.to_vec(), ends.clone()].concat());
        let mut inputs = inputs.map(|data| words(&data)).to_vec();
        let got = match product.split().finish() {
            None => {
                whole += 1;
                inputs.extend(ends);
                run(&product.kernel().unwrap(), product.groups(), inputs)
            }
            Some((finish, groups)) => {
                split += 1;
                inputs.push(r.data(DType::F32, (product.split().scratch_bytes() / 4) as u32));
                ends.insert(0, run(&product.kernel().unwrap(), product.groups(), inputs));
                run(&finish.unwrap(), groups, ends)
            }
        };
        let error = apart(&expected, &got, gemm.out);
        let allowed = if gemm.out == DType::F16 { 1e-3 } else { 1e-5 };
        assert!(error < allowed, "{} x {} x {}: {error}", gemm.m, gemm.n, gemm.k());
    }
}

#[test]
fn gated_sums_are_values_times_their_gates() {
    let mut r = Random::new();
    for _ in 0..3 {
        let (m, n, depth) = (r.next(150) as u32 + 1, r.pick(&[40, 80, 132]), r.pick(&[64, 136]));
        let (plain, _) = random_for_warpgroups(&mut r);
        let bias = Some(Bias { dtype: DType::F16, rows: None });
        let wide = Gemm {
            batch: 1,
            m,
            n: 2 * n,
            segments: 1,
            depth,
            left: Left::Rows,
            right_transposed: true,
            bias,
            activation: None,
            residual: None,
            scale: 1.0,
            out: DType::F32,
            ..plain
        };
        let inputs = [r.data(DType::F16, m * depth), r.data(DType::F16, depth * 2 * n), r.data(DType::F16, 2 * n)];
        let ungated = [inputs.to_vec(), vec![r.data(DType::F32, m * 2 * n)]].concat();
        let ungated = run(&wide.kernel().unwrap(), wide.groups(), ungated);
        let gated = elementwise::gated_gelu(m, n, DType::F32, None, DType::F32).unwrap();
        let groups = super::super::super::groups_of_lines(u64::from(m * n));
        let expected = run(&gated, groups, vec![ungated, r.data(DType::F32, m * n)]);
        let product = WarpgroupGemm::new(&Gemm { n, geglu: true, ..wide }).expect("it fits");
        let [a, b, bias] = inputs;
        let buffers = vec![words(&a), words(&b), bias, r.data(DType::F32, m * n)];
        let got = run(&product.kernel().unwrap(), product.groups(), buffers);
        let error = apart(&expected, &got, DType::F32);
        assert!(error < 1e-5, "{m} x {n} x {depth}: {error}");
    }
}

#[test]
fn attention_by_warpgroups_is_that_of_the_plain_kernel() {
    let mut r = Random::new();
    for _ in 0..6 {
        let [batch, heads] = [1 + r.next(2), 1 + r.next(2)].map(|n| n as usize);
        let [queries, keys] = [1 + r.next(150), 1 + r.next(300)].map(|n| n as usize);
        let [width, value_width] = [r.pick(&[8, 40, 64, 160]), r.pick(&[8, 40, 80, 136])];
        let scale = r.pick(&[0.2, 3.0]);
        let kv_heads = if heads == 2 { 1 + r.next(2) as usize } else { 1 };
        let h = Heads { batch, heads, kv_heads, queries, keys, width, value_width, scale, causal: false, bias: None };
        let to = r.pick(&[DType::F16, DType::F32]);
        let flash = WarpgroupFlash::new(&h, [DType::F16; 3]).expect("it fits");
        let shared = heads / kv_heads;
        let sizes = [queries * width, keys * width / shared, keys * value_width / shared, queries * value_width];
        let types = [DType::F16, DType::F16, DType::F16, to];
        let buffers: Vec<BufferData> =
            sizes.iter().zip(types).map(|(n, dtype)| r.data(dtype, (batch * heads * n) as u32)).collect();
        let expected = attention::attention(&h, types).unwrap();
        let expected = run(&expected, attention::workgroups(&h), buffers.clone());
        let packed = buffers.iter().enumerate().map(|(i, b)| if i < 3 { words(b) } else { b.clone() }).collect();
        let got = run(&flash.kernel(to).unwrap(), flash.groups(), packed);
        let error = apart(&expected, &got, to);
        assert!(error < 2e-3, "{queries} queries, {keys} keys, {width} and {value_width} wide: {error}");
    }
}

#[test]
fn assemblers_take_products_of_warpgroups() {
    let mut r = Random(7);
    let mut kernels: Vec<Kernel> = (0..6)
        .map(|_| WarpgroupGemm::new(&random_for_warpgroups(&mut r).0).expect("it fits").kernel().unwrap())
        .collect();
    for (m, n, depth) in [(8192, 320, 320), (2048, 10240, 1280), (8192, 8192, 8192), (128, 1280, 11520)] {
        let (plain, _) = random_for_warpgroups(&mut r);
        let gemm = Gemm { batch: 1, m, n, segments: 1, depth, left: Left::Rows, bias: None, ..plain };
        kernels.push(WarpgroupGemm::new(&gemm).expect("it fits").kernel().unwrap());
    }
    for (width, keys) in [(40, 4096), (64, 4096), (80, 1024), (128, 4096), (160, 77), (64, 77)] {
        let (queries, value_width) = (4096, width);
        let (heads, kv_heads, scale, causal) = (8, 8, 0.125, false);
        let h = Heads { batch: 2, heads, kv_heads, queries, keys, width, value_width, scale, causal, bias: None };
        kernels.push(WarpgroupFlash::new(&h, [DType::F16; 3]).expect("it fits").kernel(DType::F16).unwrap());
    }
    for (i, kernel) in kernels.iter_mut().enumerate() {
        kernel.name = format!("{}_{i}", kernel.name);
    }
    let module = compiler(PtxTarget::Sm90a).compile(&kernels).unwrap_or_else(|e| panic!("{e}"));
    ptxas::assemble(&module.bytes, PtxTarget::Sm90a).unwrap_or_else(|e| panic!("{e}"));
    // Other targets refuse them by name.
    let error = compiler(PtxTarget::Sm80).compile(&kernels[..1]).unwrap_err().to_string();
    assert!(error.contains("warpgroup"), "{error}");
}
