//! Words that are damaged, and whether that is seen.

use impasto_kernel::passes::MULTI_LEVEL_EXITS;
use impasto_kernel::{Builder, Kernel, Target, Vector, optimise};

use super::*;

/// Two kernels with a bit of everything.
fn words() -> Vec<u32> {
    let kernel = |name: &str| -> Kernel {
        let made = Builder::kernel(name, [8, 1, 1], |k| {
            let n = k.param::<u32>("n");
            let (f, u) = (k.buffer_mut::<f32>("f"), k.buffer_mut::<u32>("u"));
            let (s, p) = (k.shared::<u32>("s", 8), k.private::<f32>("p", 5));
            let v = k.buffer_mut::<(Vector<f32, 3>, half::bf16)>("v");
            let i = k.global_id(0);
            let sum = k.var(0.0f32);
            k.for_(0u32, n, |l, j| {
                k.if_(f.load(j).gt(9.0), || l.break_());
                p.store(j % 5u32, f.load(j) / 3.0f32);
                sum.set(sum.get() + p.load((i + j) % 5u32).exp());
            });
            s.store(k.local_index(), u.load(i) / n + u.load(i).count_ones());
            k.barrier();
            u.atomic_add(0, s.load(3));
            u.store(1, i.subgroup_add() + i.subgroup_shuffle_xor(1) + i.gt(3).subgroup_all().to::<u32>());
            k.match_(n, |arms| arms.case(&[1, 4], || f.store(2, sum.get())), || f.store(3, -sum.get()));
            let x = k.vector([sum.get(), sum.get() * sum.get(), sum.get().floor()]);
            v.store(i, k.pair((x + v.load(0).first()).with(1, 2.0), sum.get().to::<half::bf16>()));
            f.store(i, sum.get().to::<i64>().to::<f32>());
        });
        MULTI_LEVEL_EXITS.run(&optimise(&made.unwrap()).unwrap()).unwrap()
    };
    crate::emit::emit(&[kernel("a"), kernel("b")], &Target::ANY, crate::ID_LIMIT).unwrap()
}

/// The instructions: place, opcode, and all words.
fn instructions(words: &[u32]) -> Vec<(usize, S, Vec<u32>)> {
    let (mut at, mut found) = (5, Vec::new());
    while at < words.len() {
        let n = (words[at] >> 16) as usize;
        found.push((at, S::from_u32(words[at] & 0xFFFF).unwrap(), words[at..at + n].to_vec()));
        at += n;
    }
    found
}

fn refused(words: &[u32], what: &str) {
    let error = check(words).expect_err(what);
    assert!(error.contains(what), "{error}: not '{what}'");
}

#[test]
fn every_id_that_is_wrong_is_seen() {
    let words = words();
    check(&words).unwrap();
    let module = rspirv::dr::load_words(&words).unwrap();
    let mut tried = 0;
    let mut at = words.len()
        - module
            .functions
            .iter()
            .flat_map(|f| f.all_inst_iter())
            .map(|i| {
                use rspirv::binary::Assemble;
                i.assemble().len()
            })
            .sum::<usize>();
    for i in module.functions.iter().flat_map(|f| f.all_inst_iter()) {
        let first = at + 1 + usize::from(i.result_type.is_some()) + usize::from(i.result_id.is_some());
        let mut places: Vec<usize> = (at + 1..first).collect();
        places.extend(i.operands.iter().enumerate().filter(|o| o.1.id_ref_any().is_some()).map(|o| first + o.0));
        for place in places {
            for wrong in [0, words[3], u32::MAX] {
                let mut damaged = words.clone();
                damaged[place] = wrong;
                assert!(check(&damaged).is_err(), "word {place} of {i:?} is {wrong}");
                tried += 1;
            }
        }
        use rspirv::binary::Assemble;
        at += i.assemble().len();
    }
    assert!(at == words.len() && tried > 1000, "{at} of {} words, {tried} damages", words.len());
}

#[test]
fn no_damage_is_a_panic_and_most_are_seen() {
    let words = words();
    let (mut tried, mut seen) = (0, 0);
    for place in 0..words.len() {
        for wrong in
            [0, 1, words[place] ^ 1, words[place].wrapping_add(1 << 16), words[place].wrapping_add(7), u32::MAX]
        {
            if wrong != words[place] {
                let mut damaged = words.clone();
                damaged[place] = wrong;
                tried += 1;
                seen += usize::from(check(&damaged).is_err());
            }
        }
        assert!(check(&words[..place]).is_err() || instructions(&words).iter().any(|i| i.0 == place), "cut at {place}");
    }
    println!("{seen} of {tried} damages are seen");
    // What is not seen is numbers: constants, decorations, names.
    assert!(seen * 10 > tried * 8, "{seen} of {tried}");
}

#[test]
fn what_is_wrong_is_said() {
    let words = words();
    let all = instructions(&words);
    let find = |op: S| all.iter().find(|i| i.1 == op).unwrap_or_else(|| panic!("there is no {op:?}")).clone();
    let with = |place: usize, word: u32| {
        let mut damaged = words.clone();
        damaged[place] = word;
        damaged
    };
    refused(&words[..3], "they do not begin as a module");
    refused(&with(3, words[3] + 1), "is below the bound and not defined");
    refused(&with(3, words[3] - 1), "is not below the bound");
    refused(&with(3, crate::ID_LIMIT + 1), "does not fit");
    refused(&words[..words.len() - 1], "the last function does not end");
    let (add, divide) = (find(S::IAdd), find(S::FDiv));
    refused(&with(add.0, add.2[0] & !0xFFFF | S::FAdd as u32), "is Int, not Float");
    refused(&with(add.0, add.2[0] & !0xFFFF | S::Dot as u32), "this compiler does not write it so");
    let end = all.iter().position(|i| i.1 == S::FunctionEnd).unwrap();
    let last = all[..end].iter().rev().find(|i| i.1 == S::Load).unwrap();
    refused(&with(add.0 + 3, last.2[2]), "is used and not defined before");
    refused(&with(add.0 + 2, find(S::Load).2[2]), "is defined twice");
    let (load, store) = (find(S::Load), find(S::Store));
    refused(&with(load.0 + 1, divide.2[1]), "the pointer is to another type");
    refused(&with(store.0 + 1, load.2[2]), "is no pointer");
    let branch = find(S::Branch);
    refused(&with(branch.0 + 1, load.2[2]), "a branch leads to no block");
    let phi = find(S::Phi);
    refused(&with(phi.0 + 1, words[find(S::TypeBool).0 + 1]), "has the type");
    let condition = find(S::BranchConditional);
    refused(&with(condition.0 + 1, load.2[2]), "the condition is no bool");
    // The second function begins after the end of the first.
    let second = all.iter().rev().find(|i| i.1 == S::IAdd).unwrap();
    refused(&with(second.0 + 3, add.2[2]), "belongs to another function");
    // Two instructions change places, so that the first uses the second.
    let chain = all.iter().position(|i| i.1 == S::AccessChain).unwrap();
    let mut swapped = words.clone();
    let (a, b) = (&all[chain], &all[chain + 1]);
    swapped[a.0..b.0 + b.2.len()].copy_from_slice(&[&b.2[..], &a.2[..]].concat());
    refused(&swapped, "is used and not defined before");
}
