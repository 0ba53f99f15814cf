//! Whether the whole subgroup does each matrix op, as far as that can be read off the kernel.
//!
//! What surely differs between the lanes of a subgroup is followed: the lane itself, scans and atomics, and everything that is computed from
//! them, by way of values, variables, memory and branches. A matrix op that such a number decides about or goes into is refused. The local
//! and global ids are not followed, since a kernel may well compute the number of its subgroup from them: there it is the programmer's duty,
//! and the executor says where it was neglected. What lanes agree on again (`subgroup_add` and the like) is the same for all.
//!
//! [`divergent_regions`] asks the opposite: where is it certain that the whole subgroup comes by? It takes everything for different that is not surely
//! the same.
//!
//! The rules only ever lose facts when a pass works, so what passed once passes always. Cost: linear, plus the exits times the loops that
//! they leave, and nothing for kernels without matrices.

use crate::ir::{Access, Builtin, Kernel, MemoryId, OpId, OpKind, RegionId, Space, Subgroup, Value};

/// What can differ between lanes: values, variables, memories, and which regions run. All in one numbering.
struct Flow<'a> {
    k: &'a Kernel,
    /// From what to what a difference spreads.
    edges: Vec<(u32, u32)>,
    sources: Vec<u32>,
    ops: Vec<(OpId, RegionId)>,
    /// The loops around, with their regions.
    loops: Vec<(OpId, RegionId)>,
    /// Whether everything counts as different that is not surely the same.
    strict: bool,
}

impl<'a> Flow<'a> {
    /// Everything that the kernel's body leads to.
    fn of(k: &'a Kernel, strict: bool) -> Flow<'a> {
        let mut flow = Flow { k, edges: Vec::new(), sources: Vec::new(), ops: Vec::new(), loops: Vec::new(), strict };
        flow.walk(k.body(), None);
        flow
    }

    /// Whether lanes may differ in this, whatever else they agree on.
    fn is_source(&self, b: Builtin) -> bool {
        use Builtin::{GlobalId, LocalId, LocalIndex, SubgroupLane};
        b == SubgroupLane || self.strict && matches!(b, GlobalId | LocalId | LocalIndex)
    }

    /// Whether lanes may read different values at the same place, since others write there.
    fn may_change(&self, m: MemoryId) -> bool {
        self.strict && self.k.memory(m).space != Space::Buffer(Access::Read)
    }

    fn var(&self, v: usize) -> u32 {
        (self.k.value_count() + v) as u32
    }

    fn memory(&self, m: usize) -> u32 {
        self.var(self.k.vars.len() + m)
    }

    fn region(&self, r: RegionId) -> u32 {
        self.memory(self.k.memories().len() + r.index())
    }

    fn nodes(&self) -> usize {
        self.memory(self.k.memories().len() + self.k.region_count()) as usize
    }

    fn spread(&mut self, from: impl IntoIterator<Item = u32>, to: u32) {
        self.edges.extend(from.into_iter().map(|f| (f, to)));
    }

    fn pair(&mut self, from: &[Value], to: impl Iterator<Item = Value>) {
        self.edges.extend(from.iter().zip(to).map(|(f, t)| (f.0, t.0)));
    }

    fn walk(&mut self, r: RegionId, parent: Option<OpId>) {
        let k = self.k;
        let here = self.region(r);
        for &op in k.region_ops(r) {
            let args = k.args(op);
            let numbers = args.iter().map(|v| v.0);
            match k.kind(op) {
                OpKind::Builtin(b, _) if self.is_source(b) => self.sources.push(k.result(op).0),
                OpKind::Subgroup(Subgroup::ExclusiveAdd) => self.sources.push(k.result(op).0),
                OpKind::Load(m) if self.may_change(m) => self.sources.push(k.result(op).0),
                OpKind::Subgroup(Subgroup::ShuffleXor) => self.spread(numbers, k.result(op).0),
                OpKind::Subgroup(_) => {}
                OpKind::Atomic(m, _) => {
                    self.sources.push(k.result(op).0);
                    self.spread(numbers.chain([here]), self.memory(m.index()));
                }
                OpKind::Store(m) | OpKind::MatrixStore(m, _) => {
                    self.spread(numbers.chain([here]), self.memory(m.index()));
                }
                OpKind::Load(m) | OpKind::MatrixLoad(m, _) => {
                    self.spread(numbers.chain([self.memory(m.index())]), k.result(op).0);
                }
                OpKind::Var(v) | OpKind::Set(v) => self.spread(numbers.chain([here]), self.var(v.index())),
                OpKind::Get(v) => self.spread([self.var(v.index())], k.result(op).0),
                OpKind::Yield => {
                    if let Some(p) = parent {
                        self.pair(args, k.results(p));
                    }
                }
                OpKind::Break(target) | OpKind::Continue(target) => self.leave(op, target, here),
                // Those that are left do what comes after, and around.
                OpKind::Return => self.spread([here], self.region(k.body())),
                kind if kind.is_structure() => self.structure(op, here),
                _ => k.results(op).for_each(|v| self.spread(numbers.clone(), v.0)),
            }
            self.ops.push((op, r));
        }
    }

    fn leave(&mut self, op: OpId, target: RegionId, here: u32) {
        let k = self.k;
        let Some(&(l, _)) = self.loops.iter().find(|l| l.1 == target) else { return };
        let counts = matches!(k.kind(l), OpKind::For(_));
        if counts || matches!(k.kind(op), OpKind::Break(_)) {
            self.pair(k.args(op), k.results(l));
        }
        if let OpKind::Continue(_) = k.kind(op) {
            self.pair(k.args(op), k.region_args(target).skip(counts.into()));
        }
        // Lanes that leave a loop at different times run a different number of iterations of it, and take different values along.
        let left = self.loops.iter().rposition(|l| l.1 == target).unwrap_or(0);
        for i in left..self.loops.len() {
            self.spread([here], self.region(self.loops[i].1));
        }
    }

    fn structure(&mut self, op: OpId, here: u32) {
        let k = self.k;
        let args = k.args(op);
        let fixed = match k.kind(op) {
            OpKind::Loop => 0,
            OpKind::For(_) => 2,
            _ => 1,
        };
        for &r in k.regions(op) {
            let inner = self.region(r);
            self.spread(args[..fixed].iter().map(|v| v.0).chain([here]), inner);
            if matches!(k.kind(op), OpKind::Loop | OpKind::For(_)) {
                self.pair(&args[fixed..], k.region_args(r).skip(fixed / 2));
                if let OpKind::For(_) = k.kind(op) {
                    self.pair(&args[fixed..], k.results(op));
                }
                k.region_args(r).for_each(|v| self.spread([inner], v.0));
                self.loops.push((op, r));
            }
            self.walk(r, Some(op));
            k.results(op).for_each(|v| self.spread([inner], v.0));
        }
        if let OpKind::Loop | OpKind::For(_) = k.kind(op) {
            self.loops.pop();
        }
    }

    /// For each node, whether a source reaches it.
    fn differs(&self) -> Vec<bool> {
        let n = self.nodes();
        let mut first = vec![0u32; n + 1];
        self.edges.iter().for_each(|e| first[e.0 as usize + 1] += 1);
        (0..n).for_each(|i| first[i + 1] += first[i]);
        let mut next = first.clone();
        let mut to = vec![0u32; self.edges.len()];
        for &(a, b) in &self.edges {
            to[next[a as usize] as usize] = b;
            next[a as usize] += 1;
        }
        let mut differs = vec![false; n];
        let mut work = self.sources.clone();
        while let Some(x) = work.pop() {
            if !std::mem::replace(&mut differs[x as usize], true) {
                work.extend_from_slice(&to[first[x as usize] as usize..first[x as usize + 1] as usize]);
            }
        }
        differs
    }
}

/// Refuses a matrix op that not all lanes of a subgroup do alike.
pub(crate) fn check(k: &Kernel) -> Result<(), (OpId, String)> {
    if !k.knows_matrices() {
        return Ok(());
    }
    let flow = Flow::of(k, false);
    let differs = flow.differs();
    for &(op, r) in &flow.ops {
        let is_matrix = |v: &Value| k.matrix(k.ty(*v)).is_some();
        let plain = !k.kind(op).is_structure() && !k.kind(op).is_terminator();
        if !plain || !(k.results(op).any(|v| is_matrix(&v)) || k.args(op).iter().any(is_matrix)) {
            continue;
        }
        if differs[flow.region(r) as usize] {
            let problem = "the lane decides whether this runs, and matrices are of the whole subgroup; decide by something that all \
                           lanes agree on, such as subgroup_any";
            return Err((op, problem.to_owned()));
        }
        if k.args(op).iter().any(|v| differs[v.index()] && !is_matrix(v)) {
            let problem = "an operand depends on the lane, and must be the same in the whole subgroup; subgroup_broadcast_first makes it so";
            return Err((op, problem.to_owned()));
        }
    }
    Ok(())
}

/// For each region, whether some lanes of a subgroup may run it, or what is left of it, without the others. Where not, all lanes of the subgroup
/// that the workgroup has come by together.
///
/// ```
/// let kernel: impasto_kernel::Kernel = "kernel k(32, 1, 1) {
///   buffer y: u32 write
///   %0 = subgroup_id : u32
///   %1 = local_index : u32
///   %2 = eq %0, %0 : bool
///   if %2 {
///     store y[%0], %0
///     yield
///   } else {
///     yield
///   }
///   %3 = eq %0, %1 : bool
///   if %3 {
///     store y[%0], %0
///     yield
///   } else {
///     yield
///   }
///   return
/// }".parse()?;
/// let divergent = impasto_kernel::divergent_regions(&kernel);
/// let arm = |at: usize| kernel.regions(kernel.region_ops(kernel.body())[at])[0].index();
/// assert_eq!([divergent[kernel.body().index()], divergent[arm(3)], divergent[arm(5)]], [false, false, true]);
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn divergent_regions(kernel: &Kernel) -> Vec<bool> {
    let flow = Flow::of(kernel, true);
    let differs = flow.differs();
    (0..kernel.region_count() as u32).map(|r| differs[flow.region(RegionId(r)) as usize]).collect()
}
