//! Derivatives through buffers and arrays of structs and arrays: the same numbers as with a buffer for each member.

use crate::derivatives::gradients::{adjoints, hold, kernel, wide};
use crate::derivatives::poses::{moved, whole, words};
use impasto_autodiff::{Chain, Differentiate, Purpose};
use impasto_kernel::prelude::*;
use impasto_kernel::{BufferData, Launch, execute, optimise};
use impasto_testkit::kernel::random::Rng;

#[kernel(workgroup = 4)]
fn by_members(
    at: &[Vec3<f32>],
    kind: &[u32],
    turn: &[Vec2<f32>],
    y: &mut [Vec3<f32>],
    kinds: &mut [u32],
    z: &mut [Vec2<f32>],
) {
    let i = global_id(0);
    let j = (i + 1) % 4;
    let (a, b, c, d, e) = moved(at[j], kind[i], turn[i].x, turn[j].y);
    y[i] = vec3(a, b, c);
    kinds[i] = kind[i] + 1;
    z[i] = vec2(d, e);
}

/// One number for each word, out of those of `at` and `turn`.
fn numbers(at: &[f32], turn: &[f32]) -> Vec<f32> {
    let each = |i: usize| [&at[4 * i..4 * i + 3], &[0.0], &turn[2 * i..2 * i + 2], &[0.0; 2]].concat();
    (0..4).flat_map(each).collect()
}

fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| (rng.below(2001) as f32 - 1000.0) / 700.0).collect()
}

fn f32s(d: Option<&BufferData>) -> Vec<f32> {
    d.and_then(BufferData::to_f32).expect("an adjoint of f32")
}

fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + b.abs())), "{a:?} and {b:?}");
}

/// The launches of both kernels with the same numbers.
fn launches(seed: u64) -> (Launch, Launch, [Vec<f32>; 2]) {
    let (at, turn, kind) = (random(seed, 16), random(seed + 1, 8), [2u32, 0, 3, 1]);
    let none = vec![0f32; 16];
    let whole = Launch::new([1, 1, 1], vec![words(&at, &kind, &turn), words(&none, &[0; 4], &none)]);
    let of = |x: &[f32]| BufferData::from(x);
    let buffers = vec![
        of(&at),
        BufferData::from(&kind[..]),
        of(&turn),
        of(&none),
        BufferData::from(&[0u32; 4][..]),
        of(&none[..8]),
    ];
    (whole, Launch::new([1, 1, 1], buffers), [at, turn])
}

#[test]
fn a_buffer_of_structs_has_the_adjoints_that_buffers_of_its_members_have() {
    let (whole, members) = (whole().unwrap(), by_members().unwrap());
    // Which are those that differences say.
    let (_, narrow, _) = launches(5);
    let double = |d: &BufferData| {
        d.to_f32().map_or(d.clone(), |x| BufferData::wide(&x.iter().map(|&x| x.into()).collect::<Vec<_>>()))
    };
    hold(&members, &wide(1, narrow.buffers.iter().map(double).collect()), 3).unwrap();
    for whole in [whole.clone(), optimise(&whole).unwrap()] {
        let (a, b, _) = launches(5);
        let (w, v) = (random(8, 16), random(9, 8));
        let grad = whole.grad().unwrap();
        let adjoint = |of, read| Purpose::Derivative { of, read };
        assert!(grad.purposes.contains(&adjoint(0, false)) && grad.purposes.contains(&adjoint(1, true)));
        assert!(grad.report.to_string().contains("adjoints of x, y"), "{}", grad.report);
        let got = grad.execute(&a, &[(1, BufferData::from(&numbers(&w, &v)[..]))]).unwrap();
        let expected = members
            .grad()
            .unwrap()
            .execute(&b, &[(3, BufferData::from(&w[..])), (5, BufferData::from(&v[..]))])
            .unwrap();
        near(&f32s(got.of(0)), &numbers(&f32s(expected.of(0)), &f32s(expected.of(2))));

        let (d, e) = (random(10, 16), random(11, 8));
        let got = whole.jvp().unwrap().execute(&a, &[(0, BufferData::from(&numbers(&d, &e)[..]))]).unwrap();
        let expected = members
            .jvp()
            .unwrap()
            .execute(&b, &[(0, BufferData::from(&d[..])), (2, BufferData::from(&e[..]))])
            .unwrap();
        near(&f32s(got.of(1)), &numbers(&f32s(expected.of(3)), &f32s(expected.of(5))));
        // The primal is computed as well, with the whole numbers.
        let (mut c, _, _) = launches(5);
        execute(&whole, &mut c).unwrap();
        assert_eq!(got.launch.buffers[1], c.buffers[1]);
    }
}

#[test]
fn a_chain_of_launches_on_structs_has_the_adjoints_of_its_members() {
    let (w, v) = (random(8, 16), random(9, 8));
    let (a, b, _) = launches(7);
    let run = |kernel: &Kernel, launch: Launch, given: Vec<(usize, BufferData)>, step: &[usize], back: &[usize]| {
        let mut chain = Chain::new();
        let numbers: Vec<usize> = launch.buffers.into_iter().map(|d| chain.buffer(d)).collect();
        let of = |order: &[usize]| order.iter().map(|&i| numbers[i]).collect::<Vec<_>>();
        let kernel = chain.kernel(kernel).unwrap();
        for order in [step, back, step] {
            chain.launch(kernel, [1, 1, 1], &[], &of(order)).unwrap();
        }
        chain.differentiate(&given, 2).unwrap().1
    };
    let got = run(&whole().unwrap(), a, vec![(1, BufferData::from(&numbers(&w, &v)[..]))], &[0, 1], &[1, 0]);
    let given = vec![(3, BufferData::from(&w[..])), (5, BufferData::from(&v[..]))];
    let expected = run(&by_members().unwrap(), b, given, &[0, 1, 2, 3, 4, 5], &[3, 4, 5, 0, 1, 2]);
    near(&f32s(Some(&got[0])), &numbers(&f32s(Some(&expected[0])), &f32s(Some(&expected[2]))));
    assert!(f32s(Some(&got[0])).iter().any(|x| *x != 0.0));
}

#[derive(Clone, Copy, KernelStruct)]
struct Complex {
    re: f32,
    im: f32,
}

/// Powers of complex numbers, handed round in memory of the workgroup and kept in an array.
#[kernel(workgroup = 4)]
fn complex(x: &[Vec2<f32>], y: &mut [f32]) {
    let l = local_index();
    let mut s = shared::<Complex>(4);
    let mut z = Complex { re: x[l].x, im: x[l].y };
    for i in 0..3 {
        s[l] = z;
        barrier();
        let o = s[(l + i + 1) % 4];
        z = Complex { re: z.re * o.re - z.im * o.im, im: z.re * o.im + z.im * o.re };
        barrier();
    }
    y[2 * l] = z.re;
    y[2 * l + 1] = z.im * z.re;
}

#[test]
fn structs_in_memory_of_the_workgroup_have_the_derivatives_that_differences_say() {
    let x: Vec<f64> = random(3, 8).into_iter().map(f64::from).collect();
    let launch = wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0; 8])]);
    let grad = hold(&complex().unwrap(), &launch, 4).unwrap();
    assert!(adjoints(&grad, &launch, &[(1, vec![1.0; 8])]).unwrap()[0].is_some());
}

#[test]
fn arrays_of_structs_of_an_invocation_have_the_derivatives_that_differences_say() {
    let k = kernel("pairs", 1, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let a = k.private::<(f32, u32)>("a", 6);
        k.for_(0u32, 6u32, |_, i| a.store(i, k.pair(x.load(i) * 2.0f32, (i * 5u32 + 1u32) % 6u32)));
        k.for_(0u32, 6u32, |_, i| {
            let (here, next) = (a.load(i), a.load(a.load(i).second()));
            a.store(i, k.pair(here.first() * next.first(), here.second()));
        });
        k.for_(0u32, 6u32, |_, i| y.store(i, a.load(i).first()));
    });
    let x: Vec<f64> = random(4, 6).into_iter().map(f64::from).collect();
    hold(&k, &wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0; 6])]), 4).unwrap();
}
