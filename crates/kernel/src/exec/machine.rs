//! One workgroup in lockstep. Registers are columns: for each scalar of each value, one number for each invocation.

use super::data::ScalarOffsets;
use super::mask::Mask;
use super::pending::Pending;
use super::wide::Arithmetic;
use super::{Coverage, ForeignExecutor, Launch};
use crate::error::KernelError;
use crate::eval;
use crate::ir::{BinaryOp, Builtin, Kernel, OpId, OpKind, RegionId, Scalar, Space, Subgroup, Ty, Value};
use crate::text::op_text;

/// A loop that is running.
struct Frame {
    region: RegionId,
    op: OpId,
    next: Mask,
    out: Mask,
}

/// One workgroup of a kernel that runs.
pub struct Executor<'a> {
    pub(super) k: &'a Kernel,
    pub(super) lanes: usize,
    /// The first column of each value, and of each variable.
    pub(super) columns: Vec<u32>,
    /// Scalars of each value.
    scalars: Vec<u32>,
    vars: Vec<u32>,
    pub(super) regs: Vec<u64>,
    /// Workgroup and private arrays; buffers have none. Nothing was written where there is `None`.
    pub(super) arrays: Vec<Vec<Option<u64>>>,
    /// The number of each memory among the buffers, scalars of its elements, and where they lie in a buffer.
    pub(super) buffers: Vec<usize>,
    pub(super) widths: Vec<usize>,
    pub(super) places: Vec<ScalarOffsets>,
    frames: Vec<Frame>,
    group: [u32; 3],
    /// All invocations.
    all: Mask,
    ops: u64,
    work: u64,
    reached: Vec<bool>,
    pub(super) arithmetic: Arithmetic,
    /// Copies and products that go on.
    pub(super) pending: Pending,
    /// Ops, by their index, that the foreign executor is shown when they run; none beyond the end.
    pub(super) watched: Vec<bool>,
    /// What runs the foreign ops of an imported kernel.
    pub(super) foreign: Option<&'a mut dyn ForeignExecutor>,
}

/// The op and the invocation that stopped the run, and why.
#[derive(Clone, Debug)]
pub struct Stop(pub OpId, pub usize, pub String);

/// Scalars of a type of a verified kernel. Of a matrix every lane holds all, so that values move as others do.
pub(super) fn leaves(k: &Kernel, ty: Ty) -> u32 {
    k.scalars(ty) as u32
}

impl<'a> Executor<'a> {
    pub(super) fn new(k: &'a Kernel, wide: bool) -> Executor<'a> {
        let lanes = k.workgroup.iter().product::<u32>() as usize;
        let mut next = 0u32;
        let mut take = |ty: Ty| {
            let at = next;
            next += leaves(k, ty);
            at
        };
        let columns = (0..k.value_count()).map(|v| take(k.ty(Value(v as u32)))).collect();
        let scalars = (0..k.value_count()).map(|v| leaves(k, k.ty(Value(v as u32)))).collect();
        let vars = k.vars.iter().map(|&t| take(t)).collect();
        let mut n = 0;
        let buffers = k
            .memories
            .iter()
            .map(|m| {
                n += usize::from(matches!(m.space, Space::Buffer(_)));
                n.saturating_sub(1)
            })
            .collect();
        Executor {
            k,
            lanes,
            columns,
            scalars,
            vars,
            regs: vec![0; next as usize * lanes],
            arrays: vec![Vec::new(); k.memories.len()],
            buffers,
            widths: k.memories.iter().map(|m| leaves(k, m.ty) as usize).collect(),
            places: k.memories.iter().map(|m| ScalarOffsets::new(k, m.ty, wide)).collect(),
            frames: Vec::new(),
            group: [0; 3],
            all: Mask::first(lanes),
            ops: 0,
            work: 0,
            reached: vec![false; k.op_count()],
            arithmetic: Arithmetic { wide },
            pending: Pending::default(),
            watched: Vec::new(),
            foreign: None,
        }
    }

    pub(super) fn coverage(self) -> Coverage {
        Coverage { reached: self.reached, ops: self.ops, work: self.work }
    }

    pub(super) fn workgroup(&mut self, group: [u32; 3], launch: &mut Launch) -> Result<(), KernelError> {
        self.group = group;
        for ((array, m), &width) in self.arrays.iter_mut().zip(&self.k.memories).zip(&self.widths) {
            array.clear();
            match m.space {
                Space::Buffer(_) | Space::Pointed { .. } => {}
                Space::Workgroup(n) => array.resize(n as usize * width, None),
                Space::Private(n) => array.resize(n as usize * width * self.lanes, Some(0)),
                Space::Registers(n) => array.resize(n as usize * width * self.lanes, None),
            }
        }
        self.frames.clear();
        self.pending = Pending::new(self.lanes);
        if let Some(foreign) = &mut self.foreign {
            foreign.begin_workgroup(self.lanes).map_err(|what| KernelError::Launch {
                kernel: self.k.name.clone(),
                problem: format!("{what} cannot be run here"),
            })?;
        }
        self.region(self.k.body(), Mask::first(self.lanes), None, launch).map(drop).map_err(
            |Stop(op, lane, problem)| KernelError::Run {
                kernel: self.k.name.clone(),
                op: op_text(self.k, op),
                workgroup: group,
                invocation: lane as u32,
                problem,
            },
        )
    }

    #[inline]
    pub(super) fn at(&self, column: u32, lane: usize) -> usize {
        column as usize * self.lanes + lane
    }

    /// The first scalar of a value.
    #[inline]
    pub fn get(&self, v: Value, lane: usize) -> u64 {
        self.regs[self.at(self.columns[v.index()], lane)]
    }

    /// All scalars of a value.
    pub fn values(&self, v: Value, lane: usize) -> Vec<u64> {
        (0..self.width(v)).map(|i| self.regs[self.at(self.columns[v.index()] + i, lane)]).collect()
    }

    /// Puts all scalars of a value into `to`.
    #[inline]
    pub fn read(&self, v: Value, lane: usize, to: &mut Vec<u64>) {
        to.clear();
        to.extend((0..self.width(v)).map(|i| self.regs[self.at(self.columns[v.index()] + i, lane)]));
    }

    /// Gives a value all its scalars.
    #[inline]
    pub fn give(&mut self, v: Value, lane: usize, bits: &[u64]) {
        for (i, &x) in (0..self.width(v)).zip(bits) {
            let at = self.at(self.columns[v.index()] + i, lane);
            self.regs[at] = x;
        }
    }

    pub(super) fn set(&mut self, v: Value, lane: usize, bits: u64) {
        let at = self.at(self.columns[v.index()], lane);
        self.regs[at] = bits;
    }

    /// Copies columns to others for all active invocations.
    fn copy(&mut self, from: u32, to: u32, n: u32, mask: Mask) {
        if mask == self.all {
            let (from, end, to) = (self.at(from, 0), self.at(from + n, 0), self.at(to, 0));
            self.regs.copy_within(from..end, to);
            return;
        }
        for i in 0..n {
            let (a, b) = (self.at(from + i, 0), self.at(to + i, 0));
            mask.lanes().for_each(|lane| self.regs[b + lane] = self.regs[a + lane]);
        }
    }

    /// Computes each scalar of columns from those of up to three others, for all active invocations.
    fn map(&mut self, from: [u32; 3], to: u32, n: u32, mask: Mask, f: impl Fn([u64; 3]) -> u64) {
        let (lanes, all) = (self.lanes, mask == self.all);
        for i in 0..n {
            let [a, b, c] = from.map(|column| self.at(column + i, 0));
            let to = self.at(to + i, 0);
            let regs = &mut self.regs;
            let mut one = |lane: usize| regs[to + lane] = f([regs[a + lane], regs[b + lane], regs[c + lane]]);
            if all {
                (0..lanes).for_each(one);
            } else {
                mask.lanes().for_each(&mut one);
            }
        }
    }

    #[inline]
    fn width(&self, v: Value) -> u32 {
        self.scalars[v.index()]
    }

    /// Gives values to others at once: all are read before the first is written.
    fn transfer(&mut self, from: &[Value], to: impl Iterator<Item = Value>, mask: Mask) {
        let to: Vec<Value> = to.collect();
        let mut held = Vec::new();
        for lane in mask.lanes() {
            held.clear();
            for &v in from {
                let n = self.width(v);
                held.extend((0..n).map(|i| self.regs[self.at(self.columns[v.index()] + i, lane)]));
            }
            let mut i = 0;
            for &v in &to {
                for leaf in 0..self.width(v) {
                    let at = self.at(self.columns[v.index()] + leaf, lane);
                    self.regs[at] = held[i];
                    i += 1;
                }
            }
        }
    }

    /// Runs a region; gives back the invocations that yielded to the op around it.
    fn region(&mut self, r: RegionId, mut mask: Mask, parent: Option<OpId>, launch: &mut Launch) -> Result<Mask, Stop> {
        let k = self.k;
        for &op in k.region_ops(r) {
            if mask.is_empty() {
                return Ok(mask);
            }
            self.ops += 1;
            self.work += mask.count();
            self.reached[op.index()] = true;
            if self.ops > launch.max_ops {
                let lane = mask.lanes().next().unwrap_or(0);
                return Err(Stop(
                    op,
                    lane,
                    format!("the run took more than {} ops: a loop may not end", launch.max_ops),
                ));
            }
            let watched = self.watched.get(op.index()) == Some(&true);
            if watched && (k.kind(op).is_structure() || k.kind(op).is_terminator()) {
                self.show(op, mask);
            }
            match k.kind(op) {
                OpKind::Yield => {
                    if let Some(p) = parent {
                        self.transfer(k.args(op), k.results(p), mask);
                    }
                    return Ok(mask);
                }
                OpKind::Continue(target) => {
                    if let Some(i) = self.frames.iter().rposition(|f| f.region == target) {
                        self.frames[i].next.or(mask);
                        let skip = usize::from(matches!(k.kind(self.frames[i].op), OpKind::For(_)));
                        self.transfer(k.args(op), k.region_args(target).skip(skip), mask);
                    }
                    return Ok(Mask::default());
                }
                OpKind::Break(target) => {
                    if let Some(i) = self.frames.iter().rposition(|f| f.region == target) {
                        self.frames[i].out.or(mask);
                        self.transfer(k.args(op), k.results(self.frames[i].op), mask);
                    }
                    return Ok(Mask::default());
                }
                OpKind::Return => return Ok(Mask::default()),
                OpKind::Unreachable => {
                    return Err(Stop(op, mask.lanes().next().unwrap_or(0), "this was reached".to_owned()));
                }
                OpKind::If => {
                    let arms = self.split(op, mask, |bits| usize::from(bits == 0), 2);
                    mask = self.arms(op, &arms, launch)?;
                }
                OpKind::Switch(table) => {
                    let n = k.regions(op).len();
                    let cases = k.switch_cases(table);
                    let arm = |bits| cases.iter().find(|c| c.0 == bits).map_or(n - 1, |c| c.1 as usize);
                    let arms = self.split(op, mask, arm, n);
                    mask = self.arms(op, &arms, launch)?;
                }
                OpKind::Loop => mask = self.run_loop(op, mask, launch)?,
                OpKind::For(step) => mask = self.run_for(op, step, mask, launch)?,
                kind => {
                    self.plain(op, kind, mask, launch)?;
                    if watched {
                        self.show(op, mask);
                    }
                }
            }
        }
        Ok(Mask::default())
    }

    /// Shows the foreign executor an op that it watches.
    fn show(&mut self, op: OpId, mask: Mask) {
        let mut foreign = self.foreign.take();
        if let Some(f) = &mut foreign {
            f.observe(self, op, mask);
        }
        self.foreign = foreign;
    }

    fn split(&self, op: OpId, mask: Mask, arm: impl Fn(u64) -> usize, n: usize) -> Vec<Mask> {
        let mut arms = vec![Mask::default(); n];
        for lane in mask.lanes() {
            arms[arm(self.get(self.k.args(op)[0], lane))].set(lane);
        }
        arms
    }

    fn arms(&mut self, op: OpId, arms: &[Mask], launch: &mut Launch) -> Result<Mask, Stop> {
        let mut after = Mask::default();
        for (&r, &mask) in self.k.regions(op).iter().zip(arms) {
            after.or(self.region(r, mask, Some(op), launch)?);
        }
        Ok(after)
    }

    fn run_loop(&mut self, op: OpId, mask: Mask, launch: &mut Launch) -> Result<Mask, Stop> {
        let region = self.k.regions(op)[0];
        self.transfer(self.k.args(op), self.k.region_args(region), mask);
        self.frames.push(Frame { region, op, next: mask, out: Mask::default() });
        let depth = self.frames.len() - 1;
        while !self.frames[depth].next.is_empty() {
            let iteration = std::mem::take(&mut self.frames[depth].next);
            self.region(region, iteration, None, launch)?;
        }
        Ok(self.frames.pop().map(|f| f.out).unwrap_or_default())
    }

    fn run_for(&mut self, op: OpId, step: u32, mask: Mask, launch: &mut Launch) -> Result<Mask, Stop> {
        let k = self.k;
        let region = k.regions(op)[0];
        let args = k.args(op);
        let s = k.ty(args[0]).as_scalar().unwrap_or(Scalar::U32);
        let inner: Vec<Value> = k.region_args(region).collect();
        // The number of iterations is known at the start, so the index cannot run past the end of its type.
        let mut trips = vec![0i128; self.lanes];
        for lane in mask.lanes() {
            let (from, to) = (eval::to_int(s, self.get(args[0], lane)), eval::to_int(s, self.get(args[1], lane)));
            trips[lane] = (to - from + i128::from(step) - 1).max(0) / i128::from(step);
            let from = self.get(args[0], lane);
            self.set(inner[0], lane, from);
        }
        self.transfer(&args[2..], inner[1..].iter().copied(), mask);
        self.frames.push(Frame { region, op, next: Mask::default(), out: Mask::default() });
        let depth = self.frames.len() - 1;
        let mut here = mask;
        loop {
            let (mut iteration, mut done) = (Mask::default(), Mask::default());
            here.lanes().for_each(|l| if trips[l] > 0 { iteration.set(l) } else { done.set(l) });
            self.transfer(&inner[1..], k.results(op), done);
            self.frames[depth].out.or(done);
            if iteration.is_empty() {
                break;
            }
            self.region(region, iteration, None, launch)?;
            here = std::mem::take(&mut self.frames[depth].next);
            for lane in here.lanes() {
                trips[lane] -= 1;
                let i = self.arithmetic.binary(BinaryOp::Add, s, self.get(inner[0], lane), step.into());
                self.set(inner[0], lane, i);
            }
        }
        Ok(self.frames.pop().map(|f| f.out).unwrap_or_default())
    }

    /// The kernel.
    pub fn kernel(&self) -> &'a Kernel {
        self.k
    }

    /// Invocations of the workgroup.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Where an invocation stands.
    pub fn builtin(&self, b: Builtin, axis: usize, lane: usize, launch: &Launch) -> u32 {
        let [sx, sy, _] = self.k.workgroup;
        let i = lane as u32;
        let local = [i % sx, i / sx % sy, i / (sx * sy)];
        match b {
            Builtin::GlobalId => self.group[axis].wrapping_mul(self.k.workgroup[axis]).wrapping_add(local[axis]),
            Builtin::LocalId => local[axis],
            Builtin::WorkgroupId => self.group[axis],
            Builtin::NumWorkgroups => launch.groups[axis],
            Builtin::LocalIndex => i,
            Builtin::SubgroupSize => launch.subgroup,
            Builtin::SubgroupLane => i % launch.subgroup,
            Builtin::SubgroupId => i / launch.subgroup,
        }
    }

    /// An op without regions, for all active invocations.
    fn plain(&mut self, op: OpId, kind: OpKind, mask: Mask, launch: &mut Launch) -> Result<(), Stop> {
        let k = self.k;
        let args = k.args(op);
        match kind {
            OpKind::Barrier => {
                let all = Mask::first(self.lanes);
                let missing = all.lanes().find(|&l| !mask.has(l));
                return missing
                    .map_or(Ok(()), |l| Err(Stop(op, l, "this invocation does not reach the barrier".to_owned())));
            }
            OpKind::Subgroup(f) => return self.subgroup(op, f, mask, launch),
            OpKind::SubgroupBarrier => return self.whole_subgroups(op, mask, launch).map(drop),
            kind if kind.is_matrix() => return self.matrix(op, kind, mask, launch),
            OpKind::AsyncCommit | OpKind::AsyncWait(_) => {
                mask.lanes().for_each(|lane| self.order_copies(kind, lane, launch));
                return Ok(());
            }
            OpKind::WarpgroupMulAdd(product) => return self.warpgroup_mul_add(op, product, mask, launch),
            OpKind::WarpgroupWait(n) => return self.warpgroup_wait(op, n, mask),
            OpKind::Binary(_) | OpKind::Convert if k.matrix(k.ty(args[0])).is_some() => {
                self.whole_subgroups(op, mask, launch)?;
            }
            OpKind::Foreign(..) | OpKind::ForeignConst(_) | OpKind::Undef | OpKind::Load(_) | OpKind::Store(_)
                if self.foreign.is_some() =>
            {
                let mut foreign = self.foreign.take();
                let done = foreign.as_mut().map_or(Ok(()), |f| f.run(self, op, mask, launch));
                self.foreign = foreign;
                return done;
            }
            _ => {}
        }
        match kind {
            OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Compare(_) | OpKind::Fma | OpKind::Select => {
                self.elementwise(op, kind, mask);
                return Ok(());
            }
            OpKind::Convert | OpKind::Bitcast | OpKind::Custom | OpKind::Pack(_) => {
                self.elementwise(op, kind, mask);
                return Ok(());
            }
            OpKind::Make | OpKind::Extract(_) | OpKind::Insert(_) => {
                self.members(op, kind, mask);
                return Ok(());
            }
            OpKind::Var(v) | OpKind::Set(v) => {
                self.copy(self.columns[args[0].index()], self.vars[v.index()], self.width(args[0]), mask);
                return Ok(());
            }
            OpKind::Get(v) => {
                let result = k.result(op);
                self.copy(self.vars[v.index()], self.columns[result.index()], self.width(result), mask);
                return Ok(());
            }
            _ => {}
        }
        for lane in mask.lanes() {
            match kind {
                OpKind::Const(c) => {
                    let s = k.ty(k.result(op)).as_scalar().unwrap_or(Scalar::U64);
                    self.set(k.result(op), lane, self.arithmetic.constant(s, k.const_bits(c)));
                }
                OpKind::Param(p) => self.set(k.result(op), lane, launch.scalars[p as usize]),
                OpKind::Builtin(b, axis) => {
                    let bits = self.builtin(b, axis as usize, lane, launch).into();
                    self.set(k.result(op), lane, bits);
                }
                OpKind::Load(m) => self.load(op, m, lane, launch).map_err(|p| Stop(op, lane, p))?,
                OpKind::Store(m) => self.store(op, m, lane, launch).map_err(|p| Stop(op, lane, p))?,
                OpKind::Atomic(m, f) => self.atomic(op, m, f, lane, launch).map_err(|p| Stop(op, lane, p))?,
                OpKind::AsyncCopy(to, from) => {
                    self.async_copy(op, to, from, lane, launch).map_err(|p| Stop(op, lane, p))?;
                }
                OpKind::Len(m) => {
                    let n = self.places[m.index()].elements(&launch.buffers[self.buffers[m.index()]]);
                    self.set(k.result(op), lane, n as u64);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An op that puts a composite together or takes it apart.
    fn members(&mut self, op: OpId, kind: OpKind, mask: Mask) {
        let k = self.k;
        let (args, result) = (k.args(op), self.columns[k.result(op).index()]);
        let first = self.columns[args[0].index()];
        let (OpKind::Extract(i) | OpKind::Insert(i)) = kind else {
            let mut to = result;
            for &member in args {
                let n = self.width(member);
                self.copy(self.columns[member.index()], to, n, mask);
                to += n;
            }
            return;
        };
        let ty = k.ty(args[0]);
        let before: u32 = (0..i).filter_map(|j| k.member(ty, j)).map(|t| leaves(k, t)).sum();
        let n = k.member(ty, i).map_or(0, |t| leaves(k, t));
        if let OpKind::Insert(_) = kind {
            let whole = self.width(args[0]);
            self.copy(first, result, whole, mask);
            self.copy(self.columns[args[1].index()], result + before, n, mask);
        } else {
            self.copy(first + before, result, n, mask);
        }
    }

    /// An op that computes each scalar of its result from those of its operands.
    fn elementwise(&mut self, op: OpId, kind: OpKind, mask: Mask) {
        let k = self.k;
        let (args, to) = (k.args(op), self.columns[k.result(op).index()]);
        let n = self.width(k.result(op));
        let mut from = [self.columns[args[0].index()]; 3];
        from.iter_mut().zip(args).for_each(|(c, v)| *c = self.columns[v.index()]);
        let s = k.scalar_of(k.ty(args[0])).unwrap_or(Scalar::U64);
        let scalar = k.scalar_of(k.ty(k.result(op))).unwrap_or(Scalar::U64);
        let arithmetic = self.arithmetic;
        match kind {
            OpKind::Unary(f) => self.map(from, to, n, mask, |[x, ..]| arithmetic.unary(f, s, x)),
            // The kinds that programs have most are known to the compiler where it matters, inside of the loop.
            OpKind::Binary(BinaryOp::Add) => {
                self.map(from, to, n, mask, |[x, y, _]| arithmetic.binary(BinaryOp::Add, s, x, y))
            }
            OpKind::Binary(BinaryOp::Mul) => {
                self.map(from, to, n, mask, |[x, y, _]| arithmetic.binary(BinaryOp::Mul, s, x, y))
            }
            OpKind::Binary(f) => self.map(from, to, n, mask, |[x, y, _]| arithmetic.binary(f, s, x, y)),
            OpKind::Compare(c) => self.map(from, to, n, mask, |[x, y, _]| arithmetic.compare(c, s, x, y).into()),
            OpKind::Fma => self.map(from, to, n, mask, |[x, y, z]| arithmetic.fma(s, x, y, z)),
            OpKind::Convert => self.map(from, to, n, mask, |[x, ..]| arithmetic.convert(s, scalar, x)),
            OpKind::Bitcast => self.map(from, to, n, mask, |[x, ..]| arithmetic.bitcast(s, scalar, x)),
            OpKind::Pack(half) => {
                let bits = |x: u64| arithmetic.convert(s, half, x);
                self.map(from, to, n, mask, |[x, y, _]| bits(x) | bits(y) << 16);
            }
            OpKind::Select if self.width(args[0]) == 1 => {
                let [condition, yes, no] = from;
                for i in 0..n {
                    self.map([condition, yes + i, no + i], to + i, 1, mask, |[c, x, y]| if c != 0 { x } else { y });
                }
            }
            OpKind::Select => self.map(from, to, n, mask, |[c, x, y]| if c != 0 { x } else { y }),
            _ => self.map(from, to, n, mask, |[x, ..]| x),
        }
    }

    fn subgroup(&mut self, op: OpId, f: Subgroup, mask: Mask, launch: &Launch) -> Result<(), Stop> {
        let k = self.k;
        let (args, result) = (k.args(op), k.result(op));
        let s = k.ty(args[0]).as_scalar().unwrap_or(Scalar::U32);
        let (width, arithmetic) = (launch.subgroup as usize, self.arithmetic);
        for first in (0..self.lanes).step_by(width) {
            let active: Vec<usize> = (first..(first + width).min(self.lanes)).filter(|&l| mask.has(l)).collect();
            let values: Vec<u64> = active.iter().map(|&l| self.get(args[0], l)).collect();
            let fold = |f: BinaryOp| values.iter().copied().reduce(|a, b| arithmetic.binary(f, s, a, b)).unwrap_or(0);
            let mut before = 0;
            for (i, &lane) in active.iter().enumerate() {
                let bits = match f {
                    Subgroup::Add => fold(BinaryOp::Add),
                    Subgroup::Min => fold(BinaryOp::Min),
                    Subgroup::Max => fold(BinaryOp::Max),
                    Subgroup::ExclusiveAdd => {
                        let own = before;
                        before = self.arithmetic.binary(BinaryOp::Add, s, before, values[i]);
                        own
                    }
                    Subgroup::BroadcastFirst => values[0],
                    Subgroup::All => values.iter().all(|&b| b != 0).into(),
                    Subgroup::Any => values.iter().any(|&b| b != 0).into(),
                    Subgroup::ShuffleXor => {
                        let other = (lane - first) ^ self.get(args[1], lane) as usize;
                        match active.iter().position(|&l| l - first == other) {
                            Some(p) => values[p],
                            None => return Err(Stop(op, lane, format!("lane {other} of the subgroup is not active"))),
                        }
                    }
                };
                self.set(result, lane, bits);
            }
        }
        Ok(())
    }
}
