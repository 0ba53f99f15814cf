//! Functions that are compiled twice from the same tokens, as kernel functions and as plain Rust, and must compute the same.
//!
//! Each takes a `u32` below 1,000, an `i32` between -500 and 500, an `f32`, and 16 numbers each of two slices; so nothing overflows, which
//! plain Rust would not forgive.

use impasto_kernel::{BufferData, Kernel, KernelError, KernelStruct, Launch, Scalar};

use crate::kernel::random::Rng;

pub const INVOCATIONS: u32 = 64;

/// The same function in both languages.
pub struct Twin {
    pub name: &'static str,
    pub kernel: fn() -> Result<Kernel, KernelError>,
    pub plain: fn(u32, i32, f32, &[u32], &[f32]) -> u64,
    pub result: Scalar,
}

/// What plain Rust has to be told that kernels know.
mod plain {
    use std::ops::{Add, Mul};

    pub fn private<T: Default + Clone>(n: usize) -> Vec<T> {
        vec![T::default(); n]
    }

    #[derive(Clone, Copy)]
    pub struct Vec4 {
        pub x: f32,
        pub y: f32,
        pub z: f32,
        pub w: f32,
    }
    pub fn vec4(x: f32, y: f32, z: f32, w: f32) -> Vec4 {
        Vec4 { x, y, z, w }
    }
    impl Add for Vec4 {
        type Output = Vec4;
        fn add(self, o: Vec4) -> Vec4 {
            vec4(self.x + o.x, self.y + o.y, self.z + o.z, self.w + o.w)
        }
    }
    impl Mul for Vec4 {
        type Output = Vec4;
        fn mul(self, o: Vec4) -> Vec4 {
            vec4(self.x * o.x, self.y * o.y, self.z * o.z, self.w * o.w)
        }
    }
    pub trait Bits {
        fn bits(self) -> u64;
    }
    impl Bits for f32 {
        fn bits(self) -> u64 {
            self.to_bits().into()
        }
    }
    impl Bits for u32 {
        fn bits(self) -> u64 {
            self.into()
        }
    }
    impl Bits for i32 {
        fn bits(self) -> u64 {
            (self as u32).into()
        }
    }
    impl Bits for i64 {
        fn bits(self) -> u64 {
            self as u64
        }
    }
    impl Bits for u64 {
        fn bits(self) -> u64 {
            self
        }
    }
}

#[derive(Clone, Copy, KernelStruct)]
pub struct Complex {
    re: f32,
    im: f32,
}

#[derive(Clone, Copy, KernelStruct)]
pub struct Ball {
    at: Complex,
    turns: [u32; 3],
    alive: bool,
}

const LIMIT: u32 = 700;

macro_rules! twins {
    ($($(helper $helper_args:tt $(-> $helper_ret:ty)? { $helper:ident $($helper_body:tt)* })* fn $name:ident $args:tt -> $ret:ident { $($body:tt)* })*) => {
        $(mod $name {
            pub mod plain {
                #![allow(unused, clippy::all)]
                use super::super::{Ball, Complex, LIMIT, plain::*};
                $(fn $helper $helper_args $(-> $helper_ret)? { $($helper_body)* })*
                fn call $args -> $ret { $($body)* }
                pub fn bits(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u64 {
                    call(a, b, c, u, f).bits()
                }
            }
            pub mod kernel {
                #![allow(unused)]
                use super::super::{Ball, Complex, LIMIT};
                use impasto_kernel::prelude::*;
                $(#[kernel_fn] fn $helper $helper_args $(-> $helper_ret)? { $($helper_body)* })*
                #[kernel_fn]
                fn call $args -> $ret { $($body)* }
                #[kernel(workgroup = 16)]
                pub fn $name(a: &[u32], b: &[i32], c: &[f32], u: &[u32], f: &[f32], out: &mut [$ret]) {
                    let i = global_id(0);
                    out[i] = call(a[i], b[i], c[i], u, f);
                }
            }
        })*
        pub fn all() -> Vec<Twin> {
            vec![$(Twin {
                name: stringify!($name),
                kernel: $name::kernel::$name,
                plain: $name::plain::bits,
                result: <$ret as impasto_kernel::Lit>::SCALAR,
            }),*]
        }
    };
}

impl Twin {
    /// Inputs with this seed, and what plain Rust makes of them.
    pub fn launch(&self, seed: u64) -> (Launch, Vec<u64>) {
        let rng = &mut Rng::new(seed);
        let n = INVOCATIONS as usize;
        let float = |rng: &mut Rng| (rng.below(4001) as f32 - 2000.0) / 64.0;
        let a: Vec<u32> = (0..n).map(|_| rng.below(1000) as u32).collect();
        let b: Vec<i32> = (0..n).map(|_| rng.below(1001) as i32 - 500).collect();
        let c: Vec<f32> = (0..n).map(|_| float(rng)).collect();
        let u: Vec<u32> = (0..16).map(|_| rng.below(1000) as u32).collect();
        let f: Vec<f32> = (0..16).map(|_| float(rng)).collect();
        let want = (0..n).map(|i| (self.plain)(a[i], b[i], c[i], &u, &f)).collect();
        let buffers = vec![
            BufferData::from(&a[..]),
            BufferData::from(&b[..]),
            BufferData::from(&c[..]),
            BufferData::from(&u[..]),
            BufferData::from(&f[..]),
            BufferData::zeros(self.result, n),
        ];
        (Launch::new([INVOCATIONS / 16, 1, 1], buffers), want)
    }
}

twins! {
    fn arithmetic(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> i32 {
        let d = a as i32;
        let e = (d + b) * 3 - b / 7 + d % 11;
        let g = (a << 3) ^ (a >> 2) | a & 12;
        -e + (g as i32) - !b + (7 - b) + 2 * d
    }
    fn floats(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> f32 {
        let x = c * 0.5 + 1.5 - f[3];
        let y = 2.0 * x - (a as f32) / 4.0;
        (-y).abs().max(x).min(100.0).floor() + 1.0 - c.ceil() * x.trunc()
    }
    fn wide(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> i64 {
        let x = (b as i64) << 33;
        let y = x / 7 + (a as i64) * 1000000007 - 5;
        if y > x { y } else { -x }
    }
    fn unsigned_wide(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u64 {
        let mut h = 14695981039346656037u64;
        for i in 0..4 {
            h = h ^ (u[i] as u64);
            h ^= h >> 29;
        }
        h & 0xFFFF_FFFF_FFFF_0000 | (a as u64)
    }
    fn casts(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> i32 {
        let t = a > 500;
        let x = (c * 1e9) as i32;
        let y = (c * -1e9) as u32;
        (x / 2) + (y / 4) as i32 + t as i32 + (b as u32 >> 16) as i32 + (a as f32 as u64 as i32)
    }
    fn comparisons(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = 0;
        if a < 300 { n += 1; }
        if a <= u[0] { n += 2; }
        if 10 > b { n += 4; }
        if c >= f[1] { n += 8; }
        if a == u[2] { n += 16; }
        if b != -7 { n += 32; }
        if (a > 5) == (b > 5) { n += 64; }
        if !(a > 100) { n += 128; }
        n
    }
    fn short_circuit(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = 0;
        if a < 16 && u[a as usize] > 100 { n += 1; }
        if a >= 16 || f[a as usize] > 0.0 { n += 2; }
        let t = (b > 0 && b < 50) || (a > 3 && !(c > 0.0));
        if t | (a == 7) { n += 4; }
        if true && a > 5 { n += 8; }
        if a > 5 || false { n += 16; }
        n
    }
    helper(x: &mut u32) -> bool { touched *x += 1; *x > 2 }
    fn short_circuit_effects(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = a % 4;
        let t = touched(&mut n) && touched(&mut n) || touched(&mut n);
        if t { n + 100 } else { n }
    }
    fn if_values(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> f32 {
        let x = if a > 500 { c } else if a > 250 { 2.0 * c } else { 0.25 };
        let (p, q) = if b > 0 { (x, 1.0) } else { (3.0, c) };
        let r = if p > q { let s = p - q; s * s } else { 1.0 };
        r + if a % 2 == 0 { p } else { q }
    }
    fn shadowing(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let x = a + 1;
        let x = x * 2;
        let mut y = x;
        {
            let mut x = x + 5;
            x += 1;
            y += x;
            let y = 7;
            x = x + y;
        }
        let y = y + x;
        y
    }
    fn compound(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut x = a;
        x += 7;
        x *= 3;
        x -= 2;
        x /= 5;
        x %= 97;
        x <<= 4;
        x >>= 1;
        x ^= 0x55;
        x |= 0x100;
        x &= 0xFFF;
        x
    }
    fn for_ranges(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = 0;
        for i in 0..u.len() {
            n += u[i];
        }
        for i in (1..a).step_by(17) {
            n += i;
        }
        for i in (3..16).rev() {
            n = n * 3 % 100003 + u[i as usize];
        }
        for i in -3..b {
            n += (i * i) as u32 % 5;
        }
        for _ in 0..a % 4 {
            n += 1;
        }
        n
    }
    fn nested_loops(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = 0;
        'outer: for i in 0..a % 20 {
            let mut j = 0;
            while j < i {
                j += 1;
                if (i + j) % 7 == 0 {
                    continue 'outer;
                }
                if i * j > 100 {
                    break 'outer;
                }
                if j % 3 == 0 {
                    continue;
                }
                n += i * j;
            }
            n += 1;
        }
        n
    }
    fn loop_values(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut i = 0;
        let found = loop {
            if i >= 16 {
                break 1000;
            }
            if u[i as usize] > a {
                break i;
            }
            i += 1;
        };
        let (x, y) = 'up: loop {
            i += 1;
            loop {
                i += 2;
                if i > 40 {
                    break 'up (i, 7);
                }
                if i % 5 == 0 {
                    break;
                }
            }
        };
        let z = 'all: loop {
            i += 1;
            loop {
                i += 3;
                if i % 7 == 0 {
                    break 'all i * 2;
                }
                if i % 2 == 0 {
                    continue 'all;
                }
            }
        };
        found * 3 + x * 2 + y + z
    }
    fn collatz(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = a % 100 + 1;
        let mut steps = 0;
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    }
    fn matches(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let x = match a % 12 {
            0 => 5,
            1 | 2 => u[1],
            3..=6 | 9 => {
                let y = a + 1;
                y * 2
            }
            LIMIT => 3,
            other => other + 100,
        };
        let mut n = x;
        match b {
            -5..=5 => n += 1,
            -500..=-490 | 490..=500 => {
                n += 2;
            }
            _ => {}
        }
        match (a > 500) as u32 {
            0 => n,
            _ => n + 1000,
        }
    }
    helper(x: i32, n: u32) -> i32 {
        early
        if x < 0 {
            return -1;
        }
        let mut y = x;
        for i in 0..n {
            y += i as i32;
            if y > 300 {
                return y;
            }
            match y % 5 {
                0 => return 0,
                1 => continue,
                _ => {}
            }
            y += 1;
        }
        y * 2
    }
    fn early_return(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> i32 {
        let x = early(b, a % 20);
        if x == 0 {
            return early(b + 3, 4);
        }
        let y = if x > 100 { return x - 100 } else { x + 1 };
        y + early(y, 2)
    }
    helper(a: f32, b: f32) -> (f32, f32) { ordered if a < b { (a, b) } else { (b, a) } }
    helper(pair: (f32, f32), x: &mut f32) { widen let (low, high) = pair; *x = *x * 2.0 + high - low; }
    helper(xs: &[f32], n: u32) -> f32 {
        total
        let mut sum = 0.0;
        for i in 0..n {
            sum += xs[i as usize];
        }
        sum
    }
    fn functions(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> f32 {
        let mut x = 1.0;
        let pair = ordered(c, f[0]);
        widen(pair, &mut x);
        widen(ordered(2.0, 1.0), &mut x);
        let (low, mut high) = ordered(f[1], x);
        high += 1.0;
        total(f, a % 16) + low * high
    }
    helper(z: Complex, w: Complex) -> Complex { times Complex { re: z.re * w.re - z.im * w.im, im: z.re * w.im + z.im * w.re } }
    fn structs(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> f32 {
        let im = 1.0;
        let mut z = Complex { re: c / 64.0, im };
        for i in 0..a % 4 {
            z = times(z, Complex { im: 0.5, re: f[i as usize] / 64.0 });
            z.re += 1.0;
        }
        let mut ball = Ball { at: z, turns: [a, 2, 3], alive: true };
        ball.at.im = ball.at.re + 0.5;
        ball.turns[1] += 4;
        ball.alive = b > 0;
        let t = ball.turns[0] + ball.turns[1];
        let other = if ball.alive { ball.at } else { z };
        other.re + other.im + t as f32
    }
    fn arrays(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut x = [a, 1, 2];
        x[0] += 5;
        x[2] = x[0] * 2;
        let y = [[1, 2], [a, x[1]]];
        let mut p = private::<u32>(8);
        for i in 0..8 {
            p[((i + a as usize) % 8) as usize] = u[i as usize];
        }
        p[(a % 8) as usize] += x[2];
        for i in 0..3 {
            // Zero again in each turn.
            let mut q = private::<u32>(2);
            q[(a % 2) as usize] += i;
            p[i as usize] += q[0];
        }
        let mut n = y[1][0] + y[0][1];
        for i in 0..8 {
            n = n * 3 % 10007 + p[i as usize];
        }
        n
    }
    fn vectors(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> f32 {
        let v = vec4(c, 1.0, f[2], a as f32);
        let mut w = v * vec4(2.0, c, 0.5, 0.25) + v;
        w.y += 3.0;
        w.z = w.x - w.y;
        let s = w * w;
        s.x + s.y - s.z + w.w
    }
    fn order_of_effects(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut p = private::<u32>(4);
        let mut i = 0;
        p[{ i += 1; i as usize }] = { i += 1; i };
        p[0] += { p[0] = 5; 7 };
        let n = i + { i *= 3; i } * 10;
        n * 1000 + p[0] * 100 + p[1] * 10 + p[2]
    }
    fn dead_ends(a: u32, b: i32, c: f32, u: &[u32], f: &[f32]) -> u32 {
        let mut n = a;
        loop {
            if n > 10 {
                n /= 2;
                continue;
            } else {
                break;
            }
        }
        #[allow(while_true)]
        while true {
            n += 1;
            if n > 20 {
                if b > 0 { return n } else { break }
            }
        }
        loop {
            n += 3;
            if n % 4 == 0 {
                return n + 1;
            }
        }
    }
}
