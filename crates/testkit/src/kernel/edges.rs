//! Kernels at the edges of numbers, for devices to be held to the executor.

use impasto_kernel::{BufferData, Builder, Kernel, Launch, Scalar};

use super::random::Rng;

/// What other languages leave undefined: quotients, shifts, conversions, and comparisons with NaN, of all pairs of awkward numbers.
pub fn undefined_elsewhere() -> (Kernel, Launch) {
    let ints = [0, 1, -1, 7, -7, 31, 32, 33, i32::MIN, i32::MAX, 12345, -99999];
    let floats = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1e10,
        -1e10,
        3e38,
        -3e38,
        1e20,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        2147483648.0,
    ];
    let kernel = Builder::kernel("edges", [1, 1, 1], |k| {
        let (x, y) = (k.buffer::<i32>("x"), k.buffer_mut::<i32>("y"));
        let (f, g) = (k.buffer::<f32>("f"), k.buffer_mut::<f32>("g"));
        let z = k.buffer_mut::<i64>("z");
        let at = k.var(0u32);
        k.for_(0u32, ints.len() as u32, |_, i| {
            k.for_(0u32, ints.len() as u32, |_, j| {
                let (a, b) = (x.load(i), x.load(j));
                let (c, d) = (a.to::<u32>(), b.to::<u32>());
                let (p, q) = (a.to::<i64>() << 31i64, b.to::<i64>());
                for (n, v) in [
                    a / b,
                    a % b,
                    a << b,
                    a >> b,
                    (c / d).to(),
                    (c % d).to(),
                    (c >> d).to(),
                    a.min(b),
                    c.max(d).to(),
                    a.abs(),
                    a.reverse_bits(),
                ]
                .into_iter()
                .enumerate()
                {
                    y.store(at.get() + n as u32, v);
                }
                for (n, v) in [p / q, p % q, p >> q, c.to::<i64>(), c.to::<u64>().to::<i64>() * q, p.to::<u32>().to()]
                    .into_iter()
                    .enumerate()
                {
                    z.store(at.get() + n as u32, v);
                }
                at.set(at.get() + 11u32);
            });
        });
        at.set(0u32);
        k.for_(0u32, floats.len() as u32, |_, i| {
            let a = f.load(i);
            for (n, v) in
                [a.to::<i32>(), a.to::<u32>().to(), a.to::<i64>().to::<i32>(), (a.to::<u64>() >> 32u64).to::<i32>()]
                    .into_iter()
                    .enumerate()
            {
                y.store(i * 4u32 + (2000 + n as u32), v);
            }
            k.for_(0u32, floats.len() as u32, |_, j| {
                let b = f.load(j);
                for (n, v) in
                    [a + b, a - b, a * b, a.min(b), b.max(a), a.round_even(), a.floor() - b.ceil(), a.trunc().abs(), -a]
                        .into_iter()
                        .enumerate()
                {
                    g.store(at.get() + n as u32, v);
                }
                for (n, v) in [a.lt(b), a.le(b), a.eq(b), a.ne(b), a.gt(b), a.ge(b)].into_iter().enumerate() {
                    g.store(at.get() + (9 + n as u32), v.select(1.0f32, 0.0f32));
                }
                at.set(at.get() + 15u32);
            });
        });
    })
    .unwrap();
    let buffers = vec![
        BufferData::from(&ints[..]),
        BufferData::zeros(Scalar::I32, 3000),
        BufferData::from(&floats[..]),
        BufferData::zeros(Scalar::F32, 15 * 256),
        BufferData::zeros(Scalar::I64, 2000),
    ];
    (kernel, Launch::new([1, 1, 1], buffers))
}

/// Numbers of 16 bits, rounded and laid out; beside it the floats, of which an element takes three.
pub fn small_floats() -> (Kernel, Launch, Vec<u32>) {
    // Ties and what lies beside them, the largest and what is above it, the smallest, infinities and NaN, one with only low bits set.
    let mut words: Vec<u32> =
        vec![0, 1 << 31, 0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFC0_0000, 0x7F7F_FFFF, 0x7F7F_7FFF];
    words.extend([0x3F80_8000, 0x3F81_8000, 0x3F80_7FFF, 0x3F80_8001, 0xBF81_8000, 0x0080_8000, 0x7F7F_8000]);
    let floats = [2049.0, 2051.0, 65504.0, 65519.0, 65520.0, -65520.0, 1e-4, 6.1e-5, 1.0 / 3.0, -1e5, 0.1];
    words.extend(floats.map(f32::to_bits));
    words.resize(words.len().next_multiple_of(3), 7);
    let n = words.len() / 3;
    let kernel: Kernel = format!(
        "kernel small(1, 1, 1) {{
  buffer x: f32 read
  buffer b: bf16x3 write
  buffer h: f16x3 write
  buffer m: [{{bf16x2, f16x2, u64x3, bf16, i64}}; 2] write
  buffer y: f32x3 write
  %0 = const 0 : u32
  %1 = const 1 : u32
  %2 = const {n} : u32
  %3 = const 3 : u32
  %4 = const 2 : u32
  for @0 %5: u32 = %0 to %2 step 1 () {{
    %6 = mul %5, %3 : u32
    %7 = add %6, %1 : u32
    %8 = add %6, %4 : u32
    %9 = load x[%6] : f32
    %10 = load x[%7] : f32
    %11 = load x[%8] : f32
    %12 = make %9, %10, %11 : f32x3
    %13 = convert %12 : bf16x3
    %14 = convert %12 : f16x3
    store b[%5], %13
    store h[%5], %14
    %15 = convert %13 : f32x3
    store y[%5], %15
    %16 = load m[%5] : [{{bf16x2, f16x2, u64x3, bf16, i64}}; 2]
    %17 = extract %16[1] : {{bf16x2, f16x2, u64x3, bf16, i64}}
    %18 = extract %13[0] : bf16
    %19 = insert %17[3], %18 : {{bf16x2, f16x2, u64x3, bf16, i64}}
    %20 = extract %14[1] : f16
    %21 = extract %14[2] : f16
    %22 = make %20, %21 : f16x2
    %23 = insert %19[1], %22 : {{bf16x2, f16x2, u64x3, bf16, i64}}
    %24 = insert %16[0], %23 : [{{bf16x2, f16x2, u64x3, bf16, i64}}; 2]
    store m[%5], %24
    continue @0
  }}
  return
}}"
    )
    .parse()
    .unwrap();
    let layout = kernel.layout(kernel.memories()[3].ty).unwrap();
    // 4 + 4 bytes and a gap up to 32, three numbers of 8 bytes, 2 bytes and a gap, 8 bytes, and a gap up to 96.
    assert_eq!((layout.align, layout.stride()), (32, 192));
    let mut rng = Rng::new(1);
    // Numbers of 16 bits that are no NaN, so that they come back bit by bit.
    let word = |rng: &mut Rng| rng.bits() & 0x3FFF_3FFF;
    let launch = Launch::new(
        [1, 1, 1],
        vec![
            BufferData { ty: Scalar::F32, bits: words.iter().map(|&w| w.into()).collect() },
            BufferData::zeros(Scalar::Bf16, 4 * n),
            BufferData::zeros(Scalar::F16, 4 * n),
            BufferData { ty: Scalar::U32, bits: (0..48 * n).map(|_| word(&mut rng)).collect() },
            BufferData { ty: Scalar::F32, bits: vec![9; 4 * n] },
        ],
    );
    (kernel, launch, words)
}

/// Leaves out elements whose words have a NaN of 16 bits in them, of which devices choose the bits.
pub fn leave_out_nan(words: &[u32], here: &[BufferData], got: &mut [BufferData]) {
    for (e, three) in words.chunks(3).enumerate() {
        if three.iter().any(|&w| f32::from_bits(w).is_nan()) {
            got[3].bits[48 * e..48 * (e + 1)].copy_from_slice(&here[3].bits[48 * e..48 * (e + 1)]);
        }
    }
}
