//! The kernel that computes how much tape a launch needs: the primal without what it computes, reduced to the iterations of its loops. Each
//! invocation adds up what its loops would take and notes the most. Cost: linear.

use impasto_kernel::hash::Map;
use impasto_kernel::ir::{
    Access, Assembler, Atomic, BinaryOp, Kernel, MemoryId, OpId, OpKind, RegionId, Space, Ty, Value,
};

use super::normal::NormalForm;
use super::parts::BufferScalars;
use super::plan::Plan;
use super::tape;
use super::write::U32;

struct Size<'a> {
    k: &'a Kernel,
    normal: &'a NormalForm,
    parts: &'a BufferScalars,
    plan: &'a Plan,
    asm: Assembler,
    map: Vec<Value>,
    targets: Vec<RegionId>,
    /// Ops that take tape, or hold one that does.
    takes: Map<OpId, bool>,
}

/// What a region takes: its loops together, and at most what is inside of one of its ops; in slots of each tape.
#[derive(Clone, Copy)]
struct TapeUse {
    own: [Value; 2],
    inside: [Value; 2],
}

/// The kernel, into one with this header; it writes to `out`.
pub(super) fn size(normal: &NormalForm, parts: &BufferScalars, plan: &Plan, header: Kernel, out: MemoryId) -> Kernel {
    let k = &normal.kernel;
    let mut asm = Assembler::new(header);
    let zero = asm.number(0);
    let mut s = Size {
        k,
        normal,
        parts,
        plan,
        asm,
        map: vec![zero; k.value_count()],
        targets: vec![RegionId(u32::MAX); k.region_count()],
        takes: Map::default(),
    };
    s.survey(k.body());
    for (t, mut needed) in s.region(k.body()).into_iter().enumerate() {
        let at = s.asm.number(t as u32);
        if !normal.logged.is_empty() {
            let log = s.map[normal.log_total[t].index()];
            needed = tape::saturating_plus(&mut s.asm, needed, log);
        }
        s.asm.value(OpKind::Atomic(out, Atomic::Max), &[at, needed], U32);
    }
    s.asm.push(OpKind::Return, &[], &[]);
    s.asm.finish()
}

impl Size<'_> {
    fn survey(&mut self, r: RegionId) -> bool {
        let k = self.k;
        let mut any = false;
        for &op in k.region_ops(r) {
            let mut own = self.words(op) != [0; 2];
            for &inner in k.regions(op) {
                own |= self.survey(inner);
            }
            if own {
                self.takes.insert(op, true);
            }
            any |= own;
        }
        any
    }

    fn words(&self, op: OpId) -> [u32; 2] {
        self.plan.loops.get(&op).map_or([0; 2], |p| p.words)
    }

    fn args(&self, op: OpId) -> Vec<Value> {
        self.k.args(op).iter().map(|v| self.map[v.index()]).collect()
    }

    fn types(&self, values: impl Iterator<Item = Value>) -> Vec<Ty> {
        values.map(|v| self.k.ty(v)).collect()
    }

    fn bind(&mut self, old: impl Iterator<Item = Value>, new: impl Iterator<Item = Value>) {
        old.zip(new).for_each(|(a, b)| self.map[a.index()] = b);
    }

    fn writes(&self, op: OpId) -> bool {
        match self.k.kind(op) {
            OpKind::Store(m) | OpKind::Atomic(m, _) => {
                matches!(self.k.memory(m).space, Space::Buffer(Access::Read | Access::ReadWrite))
            }
            _ => false,
        }
    }

    /// The ops of a region, without its terminator. What it takes at its peak.
    fn region(&mut self, r: RegionId) -> [Value; 2] {
        let k = self.k;
        let zero = self.asm.number(0);
        let mut taken = TapeUse { own: [zero; 2], inside: [zero; 2] };
        for &op in k.region_ops(r) {
            let kind = k.kind(op);
            if kind.is_terminator() {
                break;
            }
            if self.normal.guards.contains_key(&op) {
                continue;
            }
            if self.writes(op) {
                // What an atomic gives is never needed here, or differentiation was refused.
                for v in k.results(op) {
                    self.map[v.index()] = self.asm.zero(k.ty(v));
                }
            } else if kind.is_structure() {
                self.structure(op, &mut taken);
            } else if let OpKind::Load(m) = kind
                && self.parts.has(m)
            {
                let index = self.args(op)[0];
                if let Some(v) = self.parts.load(&mut self.asm, m, index) {
                    self.map[k.result(op).index()] = v;
                }
            } else {
                let (args, kind, types) =
                    (self.args(op), self.asm.kind_of(self.k, op, &self.targets), self.types(k.results(op)));
                let new = self.asm.push(kind, &args, &types);
                self.bind(k.results(op), self.asm.kernel.results(new));
            }
        }
        [0, 1].map(|t| tape::saturating_plus(&mut self.asm, taken.own[t], taken.inside[t]))
    }

    fn structure(&mut self, op: OpId, taken: &mut TapeUse) {
        let k = self.k;
        let takes = self.takes.contains_key(&op);
        let repeats = matches!(k.kind(op), OpKind::For(_));
        let more = if takes { 2 } else { 0 };
        let mut args = self.args(op);
        if repeats && takes {
            let zero = self.asm.number(0);
            args.extend([zero; 2]);
        }
        let mut regions = Vec::new();
        for &r in k.regions(op) {
            let mut types = self.types(k.region_args(r));
            types.extend(vec![U32; if repeats { more } else { 0 }]);
            let new = self.asm.open(&types);
            self.targets[r.index()] = new;
            let given: Vec<Value> = self.asm.kernel.region_args(new).collect();
            self.bind(k.region_args(r), given.iter().copied());
            let most = given.get(k.region_args(r).len()..).unwrap_or_default().to_vec();
            if let Some(guard) = self.guard(r) {
                self.end_early(guard, new, &given);
            }
            let inner = self.region(r);
            if let Some(end) = k.terminator(r) {
                let mut values = self.args(end);
                if takes && matches!(k.kind(end), OpKind::Yield | OpKind::Continue(_)) {
                    for (t, &inner) in inner.iter().enumerate() {
                        let peak = most.get(t).map(|&m| self.asm.binary(BinaryOp::Max, m, inner));
                        values.push(peak.unwrap_or(inner));
                    }
                }
                let kind = self.asm.kind_of(self.k, end, &self.targets);
                self.asm.push(kind, &values, &[]);
            }
            regions.push(self.asm.close());
        }
        let mut types = self.types(k.results(op));
        types.extend(vec![U32; more]);
        let kind = self.asm.kind_of(self.k, op, &self.targets);
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        let results: Vec<Value> = self.asm.kernel.results(new).collect();
        self.bind(k.results(op), results.iter().copied());
        if !takes {
            return;
        }
        let inner = &results[results.len() - 2..];
        let words = self.words(op);
        if words != [0; 2] {
            let trip_count = match (self.normal.trip_count.get(&op), k.kind(op)) {
                (Some(&j), _) => results[j],
                (None, OpKind::For(step)) => tape::trip_count(&mut self.asm, args[0], args[1], step),
                _ => self.asm.number(0),
            };
            for (own, &words) in taken.own.iter_mut().zip(&words) {
                let size = tape::saturating_times(&mut self.asm, trip_count, words);
                *own = tape::saturating_plus(&mut self.asm, *own, size);
            }
        }
        for (inside, &inner) in taken.inside.iter_mut().zip(inner) {
            *inside = self.asm.binary(BinaryOp::Max, *inside, inner);
        }
    }

    fn guard(&self, r: RegionId) -> Option<OpId> {
        self.k.region_ops(r).iter().copied().find(|op| self.normal.guards.contains_key(op))
    }

    /// A loop that ends early gives what it has.
    fn end_early(&mut self, guard: OpId, region: RegionId, given: &[Value]) {
        let c = self.args(guard)[0];
        let on = self.asm.yielding(&[]);
        self.asm.open(&[]);
        self.asm.push(OpKind::Break(region), &given[1..], &[]);
        let off = self.asm.close();
        self.asm.push_structure(OpKind::If, &[c], &[], &[on, off]);
    }
}
