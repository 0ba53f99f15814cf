//! What is read from memory of the workgroup, in a loop or a branch, and is needed to go backwards, cannot be read again. It is written down when the primal is run forward for the first time: the log. Here the place in the log
//! of each such read becomes a value of the kernel, so that it is had again like any other: it is counted from the start, by a constant
//! for straight code and branches, and carried by loops. Cost: linear.

use impasto_kernel::hash::Map;
use impasto_kernel::ir::{Assembler, Atomic, Kernel, OpId, OpKind, RegionId, Space, Value};

use super::activity::Places;
use super::normal::NormalForm;
use super::plan::{Plan, words};
use super::write::{CopyMap, U32};

/// The next free word of the log: a value, and a constant.
#[derive(Clone, Copy)]
struct LogPosition {
    base: Value,
    more: u32,
}

struct Log<'a> {
    from: CopyMap<'a>,
    asm: Assembler,
    reads: Vec<bool>,
    /// For each op with reads inside: of floats, of integers; and whether a loop among them repeats such.
    inside: Map<OpId, [(bool, bool); 2]>,
    /// The logs that each loop carries the place of.
    carried: Map<RegionId, Vec<usize>>,
    next: [LogPosition; 2],
    new: NormalForm,
}

/// The reads that must be written down.
fn reads(k: &Kernel, places: &Places, plan: &Plan) -> Vec<bool> {
    let mut all = vec![false; k.op_count()];
    for &op in &places.ops {
        let changes = match k.kind(op) {
            OpKind::Load(m) | OpKind::Atomic(m, Atomic::Exchange) => {
                matches!(k.memory(m).space, Space::Workgroup(_))
            }
            _ => false,
        };
        let around = || places.around(places.home[op.index()]).filter_map(|r| places.owner[r.index()]);
        let counted = || around().all(|o| k.kind(o) != OpKind::Loop);
        all[op.index()] =
            changes && places.home[op.index()] != k.body() && plan.needed[k.result(op).index()] && counted();
    }
    all
}

/// The kernel with the places of what must be written down; nothing, if nothing must be.
pub(super) fn log(normal: &NormalForm, places: &Places, plan: &Plan) -> Option<NormalForm> {
    let k = &normal.kernel;
    let reads = reads(k, places, plan);
    let mut inside: Map<OpId, [(bool, bool); 2]> = Map::default();
    let mut words_of = [0u32; 2];
    for &op in places.ops.iter().filter(|op| reads[op.index()]) {
        let (log, n) = words(k.ty(k.result(op)));
        words_of[log] = words_of[log].saturating_add(n);
        let mut repeated = false;
        for owner in places.around(places.home[op.index()]).filter_map(|r| places.owner[r.index()]) {
            repeated |= matches!(k.kind(owner), OpKind::For(_));
            let of = &mut inside.entry(owner).or_default()[log];
            *of = (true, of.1 | repeated);
        }
    }
    if words_of == [0; 2] {
        return None;
    }
    let mut asm = Assembler::new(k.header());
    let zero = asm.number(0);
    let mut l = Log {
        from: CopyMap::new(k, zero),
        asm,
        reads,
        inside,
        carried: Map::default(),
        next: [LogPosition { base: zero, more: 0 }; 2],
        new: NormalForm { logged: Map::default(), log_words: words_of, ..NormalForm::empty() },
    };
    l.new.trip_count.reserve(normal.trip_count.len());
    l.region(normal, k.body(), &[]);
    Some(NormalForm { kernel: l.asm.finish(), ..l.new })
}

impl Log<'_> {
    fn now(&mut self, log: usize) -> Value {
        let LogPosition { base, more } = self.next[log];
        if more == 0 {
            return base;
        }
        let more = self.asm.number(more);
        self.asm.plus(base, more)
    }

    /// The ops of a region; `yields` are the logs whose place it gives.
    fn region(&mut self, normal: &NormalForm, r: RegionId, yields: &[usize]) {
        let k = self.from.old;
        for &op in k.region_ops(r) {
            self.asm.stands_for(k, op);
            let kind = k.kind(op);
            if kind.is_structure() {
                self.structure(normal, op);
                continue;
            }
            let mut args = self.from.args(op);
            let logs = match kind {
                OpKind::Yield => yields.to_vec(),
                OpKind::Continue(t) | OpKind::Break(t) => self.carried.get(&t).cloned().unwrap_or_default(),
                OpKind::Return => {
                    self.new.log_total = [self.now(0), self.now(1)];
                    Vec::new()
                }
                _ => Vec::new(),
            };
            args.extend(logs.into_iter().map(|log| self.now(log)).collect::<Vec<_>>());
            let (kind, types) = (self.asm.kind_of(k, op, &self.from.targets), self.from.types(k.results(op)));
            let place = self.reads[op.index()].then(|| {
                let (log, n) = words(k.ty(k.result(op)));
                let at = self.now(log);
                self.next[log].more += n;
                at
            });
            let new = self.asm.push(kind, &args, &types);
            self.from.bind(k.results(op), self.asm.kernel.results(new));
            if let Some(at) = place {
                self.new.logged.insert(new, at);
            }
        }
    }

    fn structure(&mut self, normal: &NormalForm, op: OpId) {
        let k = self.from.old;
        let repeats = matches!(k.kind(op), OpKind::For(_));
        let inside = self.inside.get(&op).copied().unwrap_or_default();
        // A branch takes as much as its larger way, whichever is taken, unless there are loops in it.
        let given: Vec<usize> = (0..2).filter(|&t| inside[t].0 && (repeats || inside[t].1)).collect();
        let before = self.next;
        let mut most = before;
        let mut args = self.from.args(op);
        if repeats {
            args.extend(given.iter().map(|&t| self.now(t)).collect::<Vec<_>>());
        }
        let mut regions = Vec::new();
        for &r in k.regions(op) {
            self.next = before;
            let mut types = self.from.types(k.region_args(r));
            types.extend(given.iter().filter(|_| repeats).map(|_| U32));
            let new = self.asm.open(&types);
            self.from.targets[r.index()] = new;
            let values: Vec<Value> = self.asm.kernel.region_args(new).collect();
            self.from.bind(k.region_args(r), values.iter().copied());
            if repeats {
                for (&t, &base) in given.iter().zip(&values[k.region_args(r).len()..]) {
                    self.next[t] = LogPosition { base, more: 0 };
                }
                self.carried.insert(r, given.clone());
            }
            self.region(normal, r, if repeats { &[] } else { &given });
            for (most, next) in most.iter_mut().zip(self.next) {
                most.more = most.more.max(next.more);
            }
            regions.push(self.asm.close());
        }
        let mut types = self.from.types(k.results(op));
        types.extend(given.iter().map(|_| U32));
        let kind = self.asm.kind_of(k, op, &self.from.targets);
        self.asm.stands_for(k, op);
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        let results: Vec<Value> = self.asm.kernel.results(new).collect();
        self.from.bind(k.results(op), results.iter().copied());
        self.next = if repeats { before } else { most };
        for (&t, &base) in given.iter().zip(&results[k.results(op).len()..]) {
            self.next[t] = LogPosition { base, more: 0 };
        }
        if let Some(&j) = normal.trip_count.get(&op) {
            self.new.trip_count.insert(new, j);
        }
        if let Some(&j) = normal.guards.get(&op) {
            self.new.guards.insert(new, j);
        }
    }
}
