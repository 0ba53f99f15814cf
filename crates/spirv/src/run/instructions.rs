//! Instructions of modules that the op table does not have, as far as they are known here.

use rspirv::spirv::{GlslStd450Op as G, GroupOperation, Op as S};

use impasto_kernel::exec::{Executor, Launch, Mask, Stop};
use impasto_kernel::ir::{Members, OpId, Shape, Value};

use super::memory::{ModuleMemory, number};
use super::numbers::{self, bits, compute, float};
use crate::import::foreign::{Foreign, Word};
use crate::import::{ScalarFormat, pointee};

pub(super) struct Instructions<'a, 'o, 'm> {
    pub(super) outside: &'a mut ModuleMemory<'o>,
    pub(super) m: &'a mut Executor<'m>,
    pub(super) op: OpId,
    pub(super) code: S,
    pub(super) words: &'a [Word],
}

/// The scalars of a value. Where a module breaks the rules and there are too few, the others are zero.
#[derive(Clone, Debug, PartialEq)]
struct Lanes(Vec<u64>);

impl std::ops::Index<usize> for Lanes {
    type Output = u64;
    fn index(&self, i: usize) -> &u64 {
        self.0.get(i).unwrap_or(&0)
    }
}

impl std::ops::Deref for Lanes {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl Instructions<'_, '_, '_> {
    fn args(&self) -> Vec<Value> {
        self.m.kernel().args(self.op).to_vec()
    }

    /// The id in the module of the type of a value.
    fn type_id(&self, v: Value) -> u32 {
        let k = self.m.kernel();
        Foreign::of(k).and_then(|f| f.type_id(k.ty(v))).unwrap_or(0)
    }

    fn number(&self, v: Value) -> ScalarFormat {
        number(self.outside.s, self.type_id(v))
    }

    /// The scalars of the operands; there are always four.
    fn operands(&self, args: &[Value], lane: usize) -> Vec<Lanes> {
        let mut all: Vec<Lanes> = args.iter().map(|&a| Lanes(self.m.values(a, lane))).collect();
        all.resize(all.len().max(4), Lanes(vec![0]));
        all
    }

    fn literal(&self, i: usize) -> u32 {
        let literals = self.words.iter().filter_map(|w| if let Word::Literal(n) = w { Some(*n) } else { None });
        literals.into_iter().nth(i).unwrap_or(0)
    }

    pub(super) fn run(mut self, mask: Mask, launch: &Launch) -> Result<(), Stop> {
        let op = self.op;
        match self.code {
            S::ControlBarrier => {
                let all = Mask::first(self.m.lanes());
                let missing = all.lanes().find(|&l| !mask.has(l));
                return missing
                    .map_or(Ok(()), |l| Err(Stop(op, l, "this invocation does not reach the barrier".to_owned())));
            }
            S::MemoryBarrier => return Ok(()),
            S::AccessChain | S::InBoundsAccessChain if !self.m.kernel().args(op).is_empty() => {
                return self.outside.chain(self.m, op, mask);
            }
            S::Load if !self.m.kernel().args(op).is_empty() => return self.outside.load(self.m, op, mask, launch),
            S::Store if self.m.kernel().args(op).len() > 1 => return self.outside.store(self.m, op, mask),
            code if (S::GroupNonUniformElect as u32..=S::GroupNonUniformQuadSwap as u32).contains(&(code as u32)) => {
                return self.subgroup(mask, launch);
            }
            _ => {}
        }
        if self.scalars(mask) {
            return Ok(());
        }
        for lane in mask.lanes() {
            let value = self.lane(lane, launch).map_err(|p| Stop(op, lane, p))?;
            if let Some(value) = value {
                self.m.give(self.m.kernel().result(op), lane, &value);
            }
        }
        Ok(())
    }

    /// A scalar that is computed of scalars: whether the op is one.
    fn scalars(&mut self, mask: Mask) -> bool {
        let k = self.m.kernel();
        let args = k.args(self.op);
        if !(1..=4).contains(&args.len()) || k.results(self.op).len() != 1 {
            return false;
        }
        let result = k.result(self.op);
        let (from, to) = (self.number(args[0]), self.number(result));
        if args
            .iter()
            .chain([&result])
            .any(|&v| !matches!(k.shape(k.ty(v)), Shape::Scalar(_) | Shape::Foreign(_, Members::None)))
        {
            return false;
        }
        let function = (self.code == S::ExtInst).then(|| self.literal(0));
        for lane in mask.lanes() {
            let mut parts = [0; 4];
            parts.iter_mut().zip(args).for_each(|(to, &v)| *to = self.m.get(v, lane));
            let value = match function {
                Some(function) => numbers::extended(function, from, to, &parts),
                None => compute(self.code, from, to, &parts),
            };
            let Some(value) = value else { return false };
            self.m.give(result, lane, &[value]);
        }
        true
    }

    fn lane(&mut self, lane: usize, launch: &Launch) -> Result<Option<Vec<u64>>, String> {
        let args = self.args();
        let k = self.m.kernel();
        if args.is_empty() && self.code != S::ExtInst {
            return Err(format!("Op{:?} is not computed here", self.code));
        }
        let nowhere = || "a pointer that leads nowhere".to_owned();
        match self.code {
            S::ArrayLength => {
                let Shape::Foreign(ty, _) = k.shape(k.ty(args[0])) else { return Err(nowhere()) };
                let to = pointee(self.outside.s, ty).ok_or_else(nowhere)?;
                let n = self.outside.length(self.m.get(args[0], lane), to, self.literal(0)).ok_or_else(nowhere)?;
                Ok(Some(vec![n & 0xFFFF_FFFF]))
            }
            code if is_atomic(code) => self.atomic(&args, lane, launch),
            S::ExtInst if self.literal(0) == G::Modf as u32 && args.len() == 2 => {
                let (x, pointer) = (self.m.values(args[0], lane), self.m.get(args[1], lane));
                let n = self.number(args[0]);
                let t = self.outside.target(k, args[1]).ok_or_else(nowhere)?;
                let what = self.outside.access(t);
                let whole: Vec<u64> = x.iter().map(|&x| bits(n, float(n, x).trunc())).collect();
                self.outside.write(pointer, &what, lane, &whole)?;
                Ok(Some(x.iter().map(|&x| bits(n, float(n, x) - float(n, x).trunc())).collect()))
            }
            _ => self.pure(&args, lane).map(Some),
        }
    }

    fn atomic(&mut self, args: &[Value], lane: usize, launch: &Launch) -> Result<Option<Vec<u64>>, String> {
        let t = self.outside.target(self.m.kernel(), args[0]).ok_or("a pointer that leads nowhere")?;
        let pointer = self.m.get(args[0], lane);
        let (what, mut old) = (self.outside.access(t), Vec::new());
        self.outside.read(self.m, pointer, &what, lane, launch, &mut old)?;
        let old = old.first().copied().unwrap_or(0);
        let n = number(self.outside.s, t.ty);
        let x = |i: usize| args.get(i).map_or(0, |&v| self.m.get(v, lane));
        let signed = |b: u64| numbers::signed(n, b);
        let new = match self.code {
            S::AtomicLoad => return Ok(Some(vec![old])),
            S::AtomicStore | S::AtomicExchange => x(3),
            S::AtomicIIncrement => old.wrapping_add(1),
            S::AtomicIDecrement => old.wrapping_sub(1),
            S::AtomicIAdd => old.wrapping_add(x(3)),
            S::AtomicISub => old.wrapping_sub(x(3)),
            S::AtomicUMin => old.min(x(3)),
            S::AtomicUMax => old.max(x(3)),
            S::AtomicSMin => {
                if signed(x(3)) < signed(old) {
                    x(3)
                } else {
                    old
                }
            }
            S::AtomicSMax => {
                if signed(x(3)) > signed(old) {
                    x(3)
                } else {
                    old
                }
            }
            S::AtomicAnd => old & x(3),
            S::AtomicOr => old | x(3),
            S::AtomicXor => old ^ x(3),
            S::AtomicFAddEXT => bits(n, float(n, old) + float(n, x(3))),
            S::AtomicCompareExchange => {
                if old == x(5) {
                    x(4)
                } else {
                    old
                }
            }
            code => return Err(format!("Op{code:?} is not computed here")),
        };
        self.outside.write(pointer, &what, lane, &[new & numbers::mask(n)])?;
        Ok((self.code != S::AtomicStore).then(|| vec![old]))
    }

    /// An instruction that only computes.
    fn pure(&mut self, args: &[Value], lane: usize) -> Result<Vec<u64>, String> {
        let result = self.m.kernel().result(self.op);
        let v = self.operands(args, lane);
        let to = self.number(result);
        let from = args.first().map_or(to, |&a| self.number(a));
        let n = self.m.values(result, lane).len();
        let sum = |a: &[u64], b: &[u64]| {
            let products = a.iter().zip(b).map(|(&x, &y)| bits(to, float(to, x) * float(to, y)));
            products.reduce(|x, y| bits(to, float(to, x) + float(to, y))).unwrap_or(0)
        };
        let scaled = |a: &[u64], x: u64| a.iter().map(|&y| bits(to, float(to, y) * float(to, x))).collect::<Vec<u64>>();
        Ok(match self.code {
            S::ExtInst => return self.extended(&v, from, to, n),
            S::VectorExtractDynamic => vec![v[0].get(v[1][0] as usize).copied().unwrap_or(0)],
            S::VectorInsertDynamic => {
                let mut all = v[0].to_vec();
                if let Some(to) = all.get_mut(v[2][0] as usize) {
                    *to = v[1][0];
                }
                all
            }
            S::CopyLogical | S::CopyObject => v[0].to_vec(),
            S::Bitcast => {
                let (a, b) = (from.bytes() as usize, to.bytes() as usize);
                let bytes: Vec<u8> = v[0].iter().flat_map(|x| x.to_le_bytes()[..a].to_vec()).collect();
                bytes.chunks(b.max(1)).map(|c| c.iter().rev().fold(0, |x, &y| x << 8 | u64::from(y))).collect()
            }
            S::CompositeConstruct => v[..args.len()].iter().flat_map(|x| x.iter().copied()).collect(),
            S::Select => {
                (0..n).map(|i| if v[0][i.min(v[0].len().max(1) - 1)] & 1 == 1 { v[1][i] } else { v[2][i] }).collect()
            }
            S::Dot => vec![sum(&v[0], &v[1])],
            S::VectorTimesScalar | S::MatrixTimesScalar => scaled(&v[0], v[1][0]),
            S::MatrixTimesVector => {
                (0..n).map(|r| sum(&(0..v[1].len()).map(|c| v[0][c * n + r]).collect::<Vec<_>>(), &v[1])).collect()
            }
            S::VectorTimesMatrix => v[1].chunks(v[0].len().max(1)).map(|column| sum(&v[0], column)).collect(),
            S::MatrixTimesMatrix => {
                let (rows, k) = self.sides(result, args[0]);
                let mut all = Vec::new();
                for column in v[1].chunks(k.max(1)) {
                    for r in 0..rows {
                        all.push(sum(&(0..k).map(|c| v[0][c * rows + r]).collect::<Vec<_>>(), column));
                    }
                }
                all
            }
            S::OuterProduct => v[1].iter().flat_map(|&y| scaled(&v[0], y)).collect(),
            S::Transpose => {
                let (rows, columns) = self.sides(args[0], args[0]);
                (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))).map(|(r, c)| v[0][c * rows + r]).collect()
            }
            S::Any => vec![u64::from(v[0].iter().any(|x| x & 1 == 1))],
            S::All => vec![u64::from(v[0].iter().all(|x| x & 1 == 1))],
            S::IAddCarry => {
                let h = v[0].len();
                let sums = (0..h).map(|i| v[0][i].wrapping_add(v[1][i]) & numbers::mask(from));
                let carries = (0..h).map(|i| u64::from(v[0][i].wrapping_add(v[1][i]) & numbers::mask(from) < v[0][i]));
                sums.chain(carries).collect()
            }
            S::ISubBorrow => {
                let h = v[0].len();
                let rests = (0..h).map(|i| v[0][i].wrapping_sub(v[1][i]) & numbers::mask(from));
                rests.chain((0..h).map(|i| u64::from(v[0][i] < v[1][i]))).collect()
            }
            S::UMulExtended | S::SMulExtended if from.bytes() == 4 => {
                let product = |i: usize| match self.code {
                    S::UMulExtended => v[0][i].wrapping_mul(v[1][i]),
                    _ => (numbers::signed(from, v[0][i]).wrapping_mul(numbers::signed(from, v[1][i]))) as u64,
                };
                let h = v[0].len();
                (0..h).map(|i| product(i) & 0xFFFF_FFFF).chain((0..h).map(|i| product(i) >> 32)).collect()
            }
            code => {
                let mut all = Vec::new();
                for i in 0..n {
                    let parts: Vec<u64> = v.iter().map(|x| x[i.min(x.len().max(1) - 1)]).collect();
                    all.push(
                        compute(code, from, to, &parts).ok_or_else(|| format!("Op{code:?} is not computed here"))?,
                    );
                }
                all
            }
        })
    }

    /// Rows of one matrix, and columns of another.
    fn sides(&self, rows_of: Value, columns_of: Value) -> (usize, usize) {
        let s = self.outside.s;
        let shape = |v: Value| match s.made(self.type_id(v)) {
            Some((S::TypeMatrix, &[_, column, n])) => match s.made(column) {
                Some((_, &[_, _, m])) => (m as usize, n as usize),
                _ => (1, 1),
            },
            _ => (1, 1),
        };
        (shape(rows_of).0, shape(columns_of).1)
    }

    fn extended(&self, v: &[Lanes], from: ScalarFormat, to: ScalarFormat, n: usize) -> Result<Vec<u64>, String> {
        let function = self.literal(0);
        let unknown = || format!("the function {function} of an instruction set is not computed here");
        let f = |x: u64| float(from, x);
        let r = |x: f64| float(to, bits(to, x));
        let dot = |a: &[u64], b: &[u64]| {
            a.iter().zip(b).map(|(&x, &y)| r(f(x) * f(y))).reduce(|x, y| r(x + y)).unwrap_or(0.0)
        };
        let words = ScalarFormat::Float(32);
        let pack = |count: u32, scale: f64, low: f64, v: &[u64]| -> u64 {
            let each = 32 / count;
            let one = |x: u64| (f(x).clamp(low, 1.0) * scale).round_ties_even() as i64 as u64 & ((1u64 << each) - 1);
            v.iter().rev().fold(0, |a, &x| a << each | one(x))
        };
        Ok(match G::from_u32(function).ok_or_else(unknown)? {
            G::Length => vec![bits(to, dot(&v[0], &v[0]).sqrt())],
            G::Distance => {
                let d: Vec<u64> = v[0].iter().zip(v[1].iter()).map(|(&x, &y)| bits(from, f(x) - f(y))).collect();
                vec![bits(to, dot(&d, &d).sqrt())]
            }
            G::Normalize => {
                let length = r(dot(&v[0], &v[0]).sqrt());
                v[0].iter().map(|&x| bits(to, f(x) / length)).collect()
            }
            G::Cross => {
                let (a, b) = (&v[0], &v[1]);
                let part = |i: usize, j: usize| bits(to, r(f(a[i]) * f(b[j])) - r(f(a[j]) * f(b[i])));
                vec![part(1, 2), part(2, 0), part(0, 1)]
            }
            G::Reflect => {
                let d = dot(&v[1], &v[0]);
                v[0].iter().zip(v[1].iter()).map(|(&i, &n)| bits(to, f(i) - r(2.0 * d) * f(n))).collect()
            }
            G::ModfStruct => {
                let whole = |x: u64| f(x).trunc();
                v[0].iter()
                    .map(|&x| bits(from, f(x) - whole(x)))
                    .chain(v[0].iter().map(|&x| bits(from, whole(x))))
                    .collect()
            }
            G::PackUnorm4x8 => vec![pack(4, 255.0, 0.0, &v[0])],
            G::PackSnorm4x8 => vec![pack(4, 127.0, -1.0, &v[0])],
            G::PackUnorm2x16 => vec![pack(2, 65535.0, 0.0, &v[0])],
            G::PackSnorm2x16 => vec![pack(2, 32767.0, -1.0, &v[0])],
            G::PackHalf2x16 => {
                vec![bits(ScalarFormat::Float(16), f(v[0][0])) | bits(ScalarFormat::Float(16), f(v[0][1])) << 16]
            }
            G::UnpackHalf2x16 => {
                [0, 16].map(|s| bits(words, float(ScalarFormat::Float(16), v[0][0] >> s & 0xFFFF))).to_vec()
            }
            G::UnpackUnorm4x8 => [0, 8, 16, 24].map(|s| bits(words, (v[0][0] >> s & 255) as f64 / 255.0)).to_vec(),
            G::UnpackUnorm2x16 => [0, 16].map(|s| bits(words, (v[0][0] >> s & 65535) as f64 / 65535.0)).to_vec(),
            G::Determinant | G::MatrixInverse | G::Frexp | G::Modf | G::FrexpStruct => return Err(unknown()),
            _ => {
                let mut all = Vec::new();
                for i in 0..n {
                    let parts: Vec<u64> = v.iter().map(|x| x[i.min(x.len().max(1) - 1)]).collect();
                    all.push(numbers::extended(function, from, to, &parts).ok_or_else(unknown)?);
                }
                all
            }
        })
    }

    /// What the active invocations of each subgroup compute together.
    fn subgroup(&mut self, mask: Mask, launch: &Launch) -> Result<(), Stop> {
        let (op, width, lanes) = (self.op, launch.subgroup as usize, self.m.lanes());
        let args = self.args();
        let result = self.m.kernel().result(op);
        // The scope is the first operand.
        let value = args.get(1).copied();
        let n = value.map_or(ScalarFormat::Int { bits: 32, signed: false }, |v| self.number(v));
        for first in (0..lanes).step_by(width) {
            let active: Vec<usize> = (first..(first + width).min(lanes)).filter(|&l| mask.has(l)).collect();
            let values: Vec<Lanes> =
                active.iter().map(|&l| Lanes(value.map_or(Vec::new(), |v| self.m.values(v, l)))).collect();
            let ballot = |f: &dyn Fn(usize) -> bool| -> Vec<u64> {
                let mut all = vec![0u64; 4];
                active
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| f(*i))
                    .for_each(|(_, l)| all[(l - first) / 32] |= 1 << ((l - first) % 32));
                all
            };
            for (i, &lane) in active.iter().enumerate() {
                let own = lane - first;
                let other =
                    |to: usize| active.iter().position(|l| l - first == to).map_or(&values[i], |p| &values[p]).to_vec();
                let second = args.get(2).map_or(0, |&v| self.m.get(v, lane)) as usize;
                let count =
                    |upto: usize| (0..upto.min(128)).filter(|b| values[i][b / 32] >> (b % 32) & 1 == 1).count() as u64;
                let given = match self.code {
                    S::GroupNonUniformElect => vec![u64::from(i == 0)],
                    S::GroupNonUniformAll => vec![u64::from(values.iter().all(|v| v[0] & 1 == 1))],
                    S::GroupNonUniformAny => vec![u64::from(values.iter().any(|v| v[0] & 1 == 1))],
                    S::GroupNonUniformAllEqual => vec![u64::from(values.iter().all(|v| v == &values[0]))],
                    S::GroupNonUniformBroadcastFirst => values[0].to_vec(),
                    S::GroupNonUniformBroadcast | S::GroupNonUniformShuffle => other(second),
                    S::GroupNonUniformShuffleXor => other(own ^ second),
                    S::GroupNonUniformShuffleUp => other(own.wrapping_sub(second)),
                    S::GroupNonUniformShuffleDown => other(own + second),
                    S::GroupNonUniformBallot => ballot(&|j| values[j][0] & 1 == 1),
                    S::GroupNonUniformInverseBallot => vec![values[i][own / 32] >> (own % 32) & 1],
                    S::GroupNonUniformBallotBitExtract => vec![values[i][second / 32 % 4] >> (second % 32) & 1],
                    S::GroupNonUniformBallotBitCount => vec![match GroupOperation::from_u32(self.literal(0)) {
                        Some(GroupOperation::InclusiveScan) => count(own + 1),
                        Some(GroupOperation::ExclusiveScan) => count(own),
                        _ => count(width),
                    }],
                    code => {
                        let (op, start) = arithmetic(code, n)
                            .ok_or_else(|| Stop(self.op, lane, format!("Op{code:?} is not computed here")))?;
                        let upto = match GroupOperation::from_u32(self.literal(0)) {
                            Some(GroupOperation::InclusiveScan) => i + 1,
                            Some(GroupOperation::ExclusiveScan) => i,
                            _ => values.len(),
                        };
                        (0..values[i].len())
                            .map(|c| values[..upto].iter().map(|v| v[c]).fold(start, |a, b| op(n, a, b)))
                            .collect()
                    }
                };
                self.m.give(result, lane, &given);
            }
        }
        Ok(())
    }
}

pub(super) fn is_atomic(code: S) -> bool {
    (S::AtomicLoad as u32..=S::AtomicXor as u32).contains(&(code as u32)) || code == S::AtomicFAddEXT
}

/// The function that a subgroup folds with, and what it begins with.
type Folding = (fn(ScalarFormat, u64, u64) -> u64, u64);

fn arithmetic(code: S, n: ScalarFormat) -> Option<Folding> {
    let int = |op: S| -> fn(ScalarFormat, u64, u64) -> u64 {
        match op {
            S::IMul => |n, a, b| a.wrapping_mul(b) & numbers::mask(n),
            S::BitwiseAnd => |_, a, b| a & b,
            S::BitwiseOr => |_, a, b| a | b,
            S::BitwiseXor => |_, a, b| a ^ b,
            _ => |n, a, b| a.wrapping_add(b) & numbers::mask(n),
        }
    };
    let top = 1u64 << (8 * n.bytes() - 1);
    Some(match code {
        S::GroupNonUniformIAdd => (int(S::IAdd), 0),
        S::GroupNonUniformIMul => (int(S::IMul), 1),
        S::GroupNonUniformBitwiseAnd | S::GroupNonUniformLogicalAnd => (int(S::BitwiseAnd), numbers::mask(n)),
        S::GroupNonUniformBitwiseOr | S::GroupNonUniformLogicalOr => (int(S::BitwiseOr), 0),
        S::GroupNonUniformBitwiseXor | S::GroupNonUniformLogicalXor => (int(S::BitwiseXor), 0),
        S::GroupNonUniformUMin => (|_, a, b| a.min(b), numbers::mask(n)),
        S::GroupNonUniformUMax => (|_, a, b| a.max(b), 0),
        S::GroupNonUniformSMin => {
            (|n, a, b| if numbers::signed(n, b) < numbers::signed(n, a) { b } else { a }, top - 1)
        }
        S::GroupNonUniformSMax => (|n, a, b| if numbers::signed(n, b) > numbers::signed(n, a) { b } else { a }, top),
        S::GroupNonUniformFAdd => (|n, a, b| bits(n, float(n, a) + float(n, b)), 0),
        S::GroupNonUniformFMul => (|n, a, b| bits(n, float(n, a) * float(n, b)), bits(n, 1.0)),
        S::GroupNonUniformFMin => (|n, a, b| bits(n, float(n, a).min(float(n, b))), bits(n, f64::INFINITY)),
        S::GroupNonUniformFMax => (|n, a, b| bits(n, float(n, a).max(float(n, b))), bits(n, f64::NEG_INFINITY)),
        _ => return None,
    })
}
