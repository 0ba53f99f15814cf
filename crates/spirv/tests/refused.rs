//! Kernels that need too many ids are refused before the first word is written.

use half::f16;
use impasto_kernel::blowup::Case;
use impasto_kernel::{
    Accumulator, Builder, Kernel, KernelError, MatrixA, MatrixB, MatrixLayout, Target, Val, Var, Vec4,
};
use impasto_spirv::Words;
use impasto_testkit::kernel::places;

const LIMIT: u64 = 4_194_303;

/// What a call of a function is that returns early.
fn call<'k>(k: &'k Builder, x: Val<'k, f32>, a: Val<'k, f32>) -> Val<'k, f32> {
    let given = k.var(0.0f32);
    k.loop_(|l| {
        k.if_(x.lt(a), || {
            given.set(x * a);
            l.break_();
        });
        given.set(x / a);
        l.break_();
    });
    given.get()
}

fn one(name: &str, body: impl FnOnce(&Builder)) -> Vec<Kernel> {
    vec![Builder::kernel(name, [32, 1, 1], body).unwrap()]
}

/// Products with what was read from a buffer, one after the other.
fn chain<'k>(v: Var<'k, f32>, a: Val<'k, f32>, n: u32) {
    (0..n).for_each(|_| v.set(v.get() * a));
}

/// A way to be large: the kernels of a module with `n` of it, and the ids that each takes at least, in hundredths.
struct Shape {
    name: &'static str,
    each: u64,
    make: fn(u32) -> Vec<Kernel>,
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "stores",
        each: 300,
        make: |n| {
            one("stores", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (i, a) = (k.global_id(0), x.load(0));
                (0..n).for_each(|j| y.store(i + j, a));
            })
        },
    },
    Shape {
        name: "arithmetic",
        each: 200,
        make: |n| {
            one("arithmetic", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let a = x.load(0);
                y.store(0, (0..n).fold(x.load(1), |v, _| v * a + 1.5f32));
            })
        },
    },
    Shape {
        name: "integers",
        each: 200,
        make: |n| {
            one("integers", |k| {
                let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
                let b = x.load(0);
                y.store((0..n).fold(x.load(1), |v, _| (v ^ b) * 3u32), b);
            })
        },
    },
    Shape {
        name: "functions",
        each: 300,
        make: |n| {
            one("functions", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let a = x.load(0);
                y.store(0, (0..n).fold(x.load(1), |v, _| (v * a).sqrt().max(a)));
            })
        },
    },
    Shape {
        name: "loads",
        each: 500,
        make: |n| {
            one("loads", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let i = k.global_id(0);
                y.store(0, (0..n).fold(x.load(0), |v, j| v + x.load(i + j)));
            })
        },
    },
    Shape {
        name: "loads of what is written",
        each: 500,
        make: |n| {
            one("both", |k| {
                let y = k.buffer_mut::<f32>("y");
                let i = k.global_id(0);
                (0..n).for_each(|j| y.store(i + j, y.load(i + j) * 1.5f32));
            })
        },
    },
    Shape {
        name: "branches",
        each: 400,
        make: |n| {
            one("branches", |k| {
                let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<f32>("y"));
                let (i, b) = (k.global_id(0), x.load(0));
                (0..n).for_each(|j| k.if_(b.gt(j), || y.store(i, 1.0f32)));
            })
        },
    },
    Shape {
        name: "variables after branches",
        each: 300,
        make: |n| {
            one("joins", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v) = (x.load(0), k.var(x.load(1)));
                for _ in 0..n {
                    k.if_(v.get().gt(a), || v.set(v.get() * a));
                }
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "match",
        each: 590,
        make: |n| {
            one("matches", |k| {
                let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
                let (a, v) = (x.load(0), k.var(x.load(1)));
                for _ in 0..n {
                    let arms = |arms: &mut impasto_kernel::Arms<'_, u32>| {
                        arms.case(&[1, 2], || v.set(v.get() ^ a));
                        arms.case(&[3], || v.set(v.get() * a));
                    };
                    k.match_(v.get(), arms, || y.store(v.get(), a));
                }
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "a loop with a long body",
        each: 100,
        make: |n| {
            one("body", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v) = (x.load(0), k.var(x.load(1)));
                k.for_(0u32, k.global_id(0), |_, _| chain(v, a, n));
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "a loop with a long body and constant ends",
        each: 100,
        make: |n| {
            one("fixed", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v) = (x.load(0), k.var(x.load(1)));
                k.for_(0u32, 8u32, |_, _| chain(v, a, n));
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "what a loop carries",
        each: 690,
        make: |n| {
            one("carried", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let vars: Vec<_> = (0..n).map(|i| k.var(x.load(i))).collect();
                let sums: Vec<_> = (0..n).map(|_| k.var(0.0f32)).collect();
                k.for_(0u32, k.global_id(0), |_, _| {
                    for (v, s) in vars.iter().zip(&sums) {
                        s.set(s.get() + v.get());
                        v.set(v.get() * 1.5f32);
                    }
                });
                vars.iter().chain(&sums).for_each(|v| y.store(0, v.get()));
            })
        },
    },
    Shape {
        name: "while",
        each: 790,
        make: |n| {
            one("whiles", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v, i) = (x.load(0), k.var(x.load(1)), k.var(0u32));
                for _ in 0..n {
                    i.set(0u32);
                    k.while_(
                        || i.get().lt(k.global_id(0)),
                        |_| {
                            i.set(i.get() + 1u32);
                            v.set(v.get() * a);
                        },
                    );
                }
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "nested loops",
        each: 2370,
        make: |n| {
            one("nested", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, i) = (x.load(0), k.global_id(0));
                let v = k.var(x.load(1));
                for _ in 0..n {
                    k.for_(0u32, i, |_, p| {
                        k.for_(p, i, |_, q| {
                            let w = k.var(0.0f32);
                            k.for_(q, i, |_, _| w.set(w.get() + v.get() * a));
                            v.set(v.get() + w.get());
                        });
                    });
                }
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "arrays of one invocation",
        each: 398,
        make: |n| {
            one("arrays", |k| {
                let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<f32>("y"));
                let array = k.private::<f32>("array", 4096);
                let i = x.load(0);
                (0..n).for_each(|j| array.store(i + (j + 2), 1.5f32 + j as f32));
                y.store(0, array.load(i ^ 77u32));
            })
        },
    },
    Shape {
        name: "workgroup memory and barriers",
        each: 890,
        make: |n| {
            one("shared", |k| {
                let y = k.buffer_mut::<f32>("y");
                let tile = k.shared::<f32>("tile", 4096);
                let i = k.global_id(0);
                for j in 0..n {
                    tile.store(i + (2 * j + 2), y.load(i + (j + 2)));
                    k.barrier();
                    y.store(i ^ 9u32, tile.load(i + (2 * j + 3)));
                }
            })
        },
    },
    Shape {
        name: "calls with an early return",
        each: 300,
        make: |n| {
            one("calls", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let a = x.load(0);
                y.store(0, (0..n).fold(x.load(1), |v, _| call(k, v, a)));
            })
        },
    },
    Shape {
        name: "vectors",
        each: 490,
        make: |n| {
            one("vectors", |k| {
                let (x, y) = (k.buffer::<Vec4<f32>>("x"), k.buffer_mut::<Vec4<f32>>("y"));
                let a = x.load(0);
                y.store(0, (0..n).fold(x.load(1), |v, j| v * a + x.load(j + 2)));
            })
        },
    },
    Shape {
        name: "matrices",
        each: 400,
        make: |n| {
            one("matrices", |k| {
                let x = k.buffer::<f16>("x");
                let y = k.buffer_mut::<f32>("y");
                let b = k.matrix_load::<MatrixB<f16, 16, 16>>(x, 0, 16, MatrixLayout::Row);
                let zero = k.matrix_fill::<Accumulator<f32, 16, 16>>(0.0);
                let sum = (0..n).fold(zero, |sum, j| {
                    let a = k.matrix_load::<MatrixA<f16, 16, 16>>(x, 16 * j, 16, MatrixLayout::Row);
                    k.matrix_mul_add(a, b, sum)
                });
                k.matrix_store(y, 0, 16, MatrixLayout::Row, sum);
            })
        },
    },
    Shape {
        name: "atomics",
        each: 398,
        make: |n| {
            one("atomics", |k| {
                let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
                let i = x.load(0);
                (0..n).for_each(|j| {
                    y.atomic_add(i + (j + 2), 1u32);
                });
            })
        },
    },
    Shape {
        name: "subgroups",
        each: 100,
        make: |n| {
            one("subgroups", |k| {
                let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
                y.store(0, (0..n).fold(x.load(k.global_id(0)), |v, _| v.subgroup_add()));
            })
        },
    },
    Shape {
        name: "constants",
        each: 100,
        make: |n| {
            one("constants", |k| {
                let y = k.buffer_mut::<u32>("y");
                let i = k.global_id(0);
                (0..n).for_each(|j| y.store(i, j * 7));
            })
        },
    },
    Shape {
        name: "many kernels",
        each: 700,
        make: |n| {
            let of = n.div_ceil(40);
            (0..n.div_ceil(of)).map(|i| places(&format!("small{i}"), of)).collect()
        },
    },
    Shape {
        name: "variables of arrays",
        each: 100,
        make: |n| {
            one("elements", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (v, c) = (k.var(k.array([0, 1, 2, 3].map(|i| x.load(i)))), x.load(4));
                for j in 0..n {
                    let a = v.get();
                    v.set(a.with(j % 4, a.element(j % 4) * c));
                }
                (0..4).for_each(|i| y.store(i, v.get().element(i)));
            })
        },
    },
    Shape {
        name: "variables of structs in branches and loops",
        each: 1090,
        make: |n| {
            one("structs", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (c, i) = (x.load(4), k.global_id(0));
                let rows = [0, 2].map(|i| k.array([x.load(i), x.load(i + 1)]));
                let v = k.var(k.pair(rows[0], rows[1]));
                for _ in 0..n {
                    k.for_(0u32, i, |_, _| {
                        let row = v.get().first();
                        v.set(k.pair(row.with(1, row.element(1) * c), v.get().second()));
                    });
                    let row = v.get().second();
                    k.if_(c.lt(row.element(0)), || v.set(k.pair(v.get().first(), row.with(0, row.element(0) * c))));
                }
                [v.get().first(), v.get().second()].iter().for_each(|row| {
                    (0..2).for_each(|i| y.store(i, row.element(i)));
                });
            })
        },
    },
    Shape {
        name: "branches that constants decide",
        each: 200,
        make: |n| {
            one("decided", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v, c) = (x.load(0), k.var(x.load(1)), k.var(1u32));
                for _ in 0..n {
                    k.if_else(c.get().lt(2u32), || v.set(v.get() * a), || y.store(1, a));
                    k.match_(c.get() + 1u32, |arms| arms.case(&[2], || v.set(v.get() + a)), || y.store(2, a));
                }
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "a long branch that constants decide",
        each: 100,
        make: |n| {
            one("taken", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v) = (x.load(0), k.var(x.load(1)));
                k.if_(k.lit(true), || chain(v, a, n));
                y.store(0, v.get());
            })
        },
    },
    Shape {
        name: "loops with constant ends",
        each: 2700,
        make: |n| {
            one("turns", |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (a, v) = (x.load(0), k.var(x.load(1)));
                (0..n).for_each(|i| k.for_(0u32, [4, 1000][i as usize % 2], |_, _| chain(v, a, 20)));
                y.store(0, v.get());
            })
        },
    },
    Shape { name: "sparse V 200 8", each: 400, make: |n| blowup(false, n) },
    Shape { name: "loop V 200 8", each: 400, make: |n| blowup(true, n) },
];

fn blowup(repeats: bool, n: u32) -> Vec<Kernel> {
    vec![Case { repeats, variables: n, joins: 200, changes: 8 }.kernel().unwrap()]
}

fn ids(kernels: &[Kernel]) -> u64 {
    impasto_spirv::compiler(Target::ANY).compile(kernels).unwrap().bound().into()
}

#[test]
fn each_shape_takes_the_ids_that_it_is_said_to_take() {
    for s in SHAPES {
        let n = 6000;
        let bound = ids(&(s.make)(n));
        assert!(bound >= s.each * (u64::from(n) - 30) / 100, "{}: {bound}", s.name);
    }
}

/// With `IMPASTO_REFUSE=all` every shape, which takes minutes and a few gigabytes; else some.
#[test]
fn kernels_that_need_too_many_ids_are_refused_and_nothing_is_written() {
    let some = ["many kernels"];
    let chosen = std::env::var("IMPASTO_REFUSE").unwrap_or_default();
    for s in
        SHAPES.iter().filter(|s| chosen == "all" || chosen == s.name || chosen.is_empty() && some.contains(&s.name))
    {
        let n = (LIMIT * 100 / s.each + 100) as u32;
        let kernels = (s.make)(n);
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let compiler = impasto_spirv::compiler(Target::ANY).cache_in(&cache);
        let error = compiler.compile(&kernels).map(|m| m.bound()).expect_err(s.name);
        println!("{}, {} ops: {error}", s.name, kernels.iter().map(Kernel::op_count).sum::<usize>());
        assert!(error.to_string().contains("ids, and the limit of SPIR-V is 4194303; nothing was written"), "{error}");
        match error {
            KernelError::TooManyIds { kernel, count, limit, largest, stage, .. } => {
                assert_eq!((stage, u64::from(limit)), ("emission of SPIR-V", LIMIT), "{}", s.name);
                assert!(count > LIMIT && !largest.0.is_empty() && kernels.iter().any(|k| k.name == kernel));
            }
            other => panic!("{}: {other:?}", s.name),
        }
        assert!(!cache.exists() || std::fs::read_dir(&cache).unwrap().next().is_none(), "nothing is written");
    }
}

/// Variables that loops assign and that are the same all the time take no ids.
#[test]
fn what_only_seems_to_change_in_a_loop_takes_no_ids() {
    type Assign = for<'k> fn(Var<'k, f32>, Val<'k, f32>, Val<'k, f32>);
    let ways: [(&str, Assign); 6] = [
        ("nothing", |_, _, _| ()),
        ("itself", |v, _, _| v.set(v.get())),
        ("times one", |v, _, _| v.set(v.get() * 1.0f32)),
        ("what it was before", |v, first, _| v.set(first)),
        ("back again", |v, _, a| {
            let old = v.get();
            v.set(v.get() * a);
            v.set(old);
        }),
        ("chosen among equals", |v, first, a| v.set(a.lt(first).select(v.get(), v.get()))),
    ];
    for long in [false, true] {
        let mut first = None;
        for (name, assign) in ways {
            let kernel = Builder::kernel("same", [32, 1, 1], |k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
                let (i, a) = (k.global_id(0), x.load(7));
                let vars: Vec<_> = (0..200u32).map(|j| (x.load(i + j), j)).map(|(f, j)| (f, k.var(f), j)).collect();
                let body = || vars.iter().for_each(|&(first, v, _)| assign(v, first, a));
                if long {
                    let n = k.var(0u32);
                    k.while_(
                        || n.get().lt(i),
                        |_| {
                            n.set(n.get() + 1u32);
                            body();
                            y.store(n.get(), a);
                        },
                    );
                } else {
                    k.for_(0u32, i, |_, j| {
                        body();
                        y.store(j, a);
                    });
                }
                vars.iter().for_each(|&(_, v, j)| y.store(i + j, v.get()));
            })
            .unwrap();
            let kernels = [kernel];
            let bound = ids(&kernels);
            assert_eq!(bound, *first.get_or_insert(bound), "{name}");
        }
    }
}

/// A loop that counts, and that constants end in its first turn: what follows the break is never reached.
#[test]
fn what_a_loop_never_comes_to_takes_no_ids() {
    let kernels = one("first", |k| {
        let (y, i, n) = (k.buffer_mut::<f32>("y"), k.global_id(0), k.var(0u32));
        k.loop_(|l| {
            n.set(n.get() + 1u32);
            k.if_(n.get().gt(0u32), || l.break_());
            (0..200u32).for_each(|j| y.store(i + j, 1.5f32 + j as f32));
        });
        y.store(i, 1.0f32);
    });
    let bound = ids(&kernels);
    assert!(bound < 100, "{bound}");
}
