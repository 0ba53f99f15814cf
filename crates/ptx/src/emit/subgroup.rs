//! Functions of a subgroup, which is a warp of 32.
//!
//! Where all lanes surely come by together, the mask is a number and lanes meet in a tree. Elsewhere it is what is active, and each lane walks over the
//! active ones in order.

use impasto_kernel::ir::Value;
use impasto_kernel::{BinaryOp, Scalar, Subgroup};

use super::Emit;
use super::text::{Class, Operand, imm};

/// All lanes of a warp.
const ALL: Operand = Operand::Imm(Class::B32, u32::MAX as u64);
/// The last operand of shuffles within the whole warp, and of those that look up.
const WHOLE: Operand = Operand::Imm(Class::B32, 31);

impl Emit<'_> {
    /// Whether all 32 lanes of every warp come by here.
    fn is_whole(&self) -> bool {
        let invocations: u32 = self.k.workgroup.iter().product();
        invocations.is_multiple_of(32) && !self.divergent[self.region.index()]
    }

    pub(super) fn subgroup(&mut self, f: Subgroup, args: &[Value]) -> Operand {
        let s = self.k.ty(args[0]).as_scalar().unwrap_or(Scalar::U32);
        let x = self.scalar(args[0]);
        let x = self.t.in_reg(x);
        let whole = self.is_whole();
        let mask = if whole { ALL } else { self.t.make(Class::B32, "activemask.b32", &[]) };
        match f {
            Subgroup::All => self.t.make(Class::Pred, "vote.sync.all.pred", &[x, mask]),
            Subgroup::Any => self.t.make(Class::Pred, "vote.sync.any.pred", &[x, mask]),
            Subgroup::BroadcastFirst => {
                let first = if whole { imm(0) } else { self.lowest(mask) };
                self.shuffle("idx", x, first, mask)
            }
            Subgroup::ShuffleXor => {
                let by = self.scalar(args[1]);
                self.shuffle("bfly", x, by, mask)
            }
            Subgroup::Add | Subgroup::Min | Subgroup::Max => {
                let g = match f {
                    Subgroup::Add => BinaryOp::Add,
                    Subgroup::Min => BinaryOp::Min,
                    _ => BinaryOp::Max,
                };
                self.reduce(g, s, x, mask, whole)
            }
            Subgroup::ExclusiveAdd if whole => self.scan(s, x),
            Subgroup::ExclusiveAdd => {
                let lane = self.lane();
                self.walk(x, mask, imm(0), |e, value, sum, from| {
                    let next = e.binary(BinaryOp::Add, s, sum, value);
                    let before = e.t.make(Class::Pred, "setp.lt.u32", &[from, lane]);
                    e.select(before, next, sum)
                })
            }
        }
    }

    /// The value of another lane.
    fn shuffle(&mut self, how: &str, x: Operand, lane: Operand, mask: Operand) -> Operand {
        // Looking up, lanes are clamped to the first, not to the last.
        let clamp = if how == "up" { imm(0) } else { WHOLE };
        self.t.make(Class::B32, &format!("shfl.sync.{how}.b32"), &[x, lane, clamp, mask])
    }

    /// The number of the lowest bit that is set.
    fn lowest(&mut self, mask: Operand) -> Operand {
        let reversed = self.t.make(Class::B32, "brev.b32", &[mask]);
        self.t.make(Class::B32, "clz.b32", &[reversed])
    }

    fn reduce(&mut self, f: BinaryOp, s: Scalar, x: Operand, mask: Operand, whole: bool) -> Operand {
        if s.is_int() && self.ptx.is_ampere() {
            let op = match f {
                BinaryOp::Add => "redux.sync.add.u32".to_owned(),
                f => format!("redux.sync.{}.{}", f.name(), if s.is_signed() { "s32" } else { "u32" }),
            };
            return self.t.make(Class::B32, &op, &[x, mask]);
        }
        if whole {
            return [16, 8, 4, 2, 1].into_iter().fold(x, |x, by| {
                let other = self.shuffle("bfly", x, imm(by), mask);
                self.binary(f, s, x, other)
            });
        }
        // The first lane gives what the others are added to.
        let first = self.lowest(mask);
        let begin = self.shuffle("idx", x, first, mask);
        let rest = self.without_lowest(mask);
        self.walk_over(x, rest, mask, begin, |e, value, all, _| e.binary(f, s, all, value))
    }

    /// Sums over the lanes before: each lane adds what is 1, 2, 4, 8, 16 lanes before it, then looks to the lane before.
    fn scan(&mut self, s: Scalar, x: Operand) -> Operand {
        let lane = self.lane();
        let mut sum = x;
        for by in [1, 2, 4, 8, 16] {
            let other = self.shuffle("up", sum, imm(by), ALL);
            let more = self.binary(BinaryOp::Add, s, other, sum);
            let has = self.t.make(Class::Pred, "setp.ge.u32", &[lane, imm(by)]);
            sum = self.select(has, more, sum);
        }
        let before = self.shuffle("up", sum, imm(1), ALL);
        let first = self.t.make(Class::Pred, "setp.eq.u32", &[lane, imm(0)]);
        self.select(first, imm(0), before)
    }

    fn without_lowest(&mut self, mask: Operand) -> Operand {
        let less = self.t.make(Class::B32, "sub.u32", &[mask, imm(1)]);
        self.t.make(Class::B32, "and.b32", &[mask, less])
    }

    /// Goes over all active lanes in order: `step` makes the next state from a lane's value, the state and that lane.
    fn walk(
        &mut self,
        x: Operand,
        mask: Operand,
        begin: Operand,
        step: impl FnOnce(&mut Self, Operand, Operand, Operand) -> Operand,
    ) -> Operand {
        self.walk_over(x, mask, mask, begin, step)
    }

    /// The same over some of the active lanes, maybe none.
    fn walk_over(
        &mut self,
        x: Operand,
        lanes: Operand,
        mask: Operand,
        begin: Operand,
        step: impl FnOnce(&mut Self, Operand, Operand, Operand) -> Operand,
    ) -> Operand {
        let (left, state) = (self.t.reg(Class::B32), self.t.reg(Class::B32));
        let (head, end) = (self.t.label(), self.t.label());
        self.t.mov(left, lanes);
        self.t.mov(state, begin);
        self.t.place_head(head);
        let none = self.t.make(Class::Pred, "setp.eq.u32", &[left, imm(0)]);
        self.t.bra_if(none, true, end);
        let lane = self.lowest(left);
        let value = self.shuffle("idx", x, lane, mask);
        let next = step(self, value, state, lane);
        let rest = self.without_lowest(left);
        self.t.mov(left, rest);
        self.t.mov(state, next);
        self.t.bra(head);
        self.t.place(end);
        self.t.make(Class::B32, "mov.b32", &[state])
    }
}
