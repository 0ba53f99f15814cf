//! What the adjoint keeps and what it computes again, to be read.

use std::fmt;

use impasto_kernel::ir::{Kernel, OpId, OpKind};
use impasto_kernel::text::{op_text, type_text};

use super::activity::{Activity, Places};
use super::normal::NormalForm;
use super::parts::base;
use super::plan::{Plan, Restore};

/// What a loop keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapedLoop {
    /// Its number among the loops that a derivative flows through, and its bounds, as the textual form of the prepared kernel shows them.
    pub op: String,
    /// Loops around it.
    pub depth: usize,
    /// The types of the carried values that are on the tape.
    pub taped: Vec<String>,
    /// Carried values that are computed from the number of the iteration.
    pub counted: usize,
    /// Carried values that nothing needs.
    pub unneeded: usize,
    /// Bytes on the tape for each iteration and invocation.
    pub bytes: u32,
}

/// What is kept and what is computed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradReport {
    /// The kernel that is differentiated.
    pub kernel: String,
    /// The loops that a derivative flows through, in order.
    pub loops: Vec<TapedLoop>,
    /// Buffers and arrays that have adjoints.
    pub adjoints: Vec<String>,
    /// The types of what is read from memory of the workgroup, in loops and branches, and put on the tape each time.
    pub logged: Vec<String>,
}

impl GradReport {
    pub(super) fn new(normal: &NormalForm, places: &Places, activity: &Activity, plan: &Plan) -> GradReport {
        let k = &normal.kernel;
        let mut loops = Vec::new();
        for &op in &places.ops {
            let Some(p) = plan.loops.get(&op) else { continue };
            let inner = k.region_args(k.regions(op)[0]).skip(1);
            let taped = p.keep.iter().zip(inner).filter(|(keep, _)| matches!(keep, Restore::Tape { .. }));
            let around = places.around(places.home[op.index()]).filter_map(|r| places.owner[r.index()]);
            loops.push(TapedLoop {
                op: bounds(k, op, loops.len()),
                depth: around.filter(|&o| matches!(k.kind(o), OpKind::For(_) | OpKind::Loop)).count(),
                taped: taped.map(|(_, v)| type_text(k, k.ty(v))).collect(),
                counted: p.keep.iter().filter(|keep| matches!(keep, Restore::Steps(_))).count(),
                unneeded: p.keep.iter().filter(|keep| **keep == Restore::Nothing).count(),
                bytes: 4 * (p.words[0] + p.words[1]),
            });
        }
        let has = |i: &usize| activity.memory(impasto_kernel::ir::MemoryId(*i as u32));
        let names = (0..k.memories().len()).filter(has).map(|i| base(&k.memories()[i].name).to_owned());
        let mut adjoints: Vec<String> = names.collect();
        adjoints.dedup();
        let logged = places.ops.iter().filter(|op| normal.logged.contains_key(op));
        let logged = logged.map(|&op| type_text(k, k.ty(k.result(op)))).collect();
        GradReport { kernel: k.name.clone(), loops, adjoints, logged }
    }
}

/// A loop without what it carries.
fn bounds(k: &Kernel, op: OpId, number: usize) -> String {
    let text = op_text(k, op);
    let from = text.find("for @").unwrap_or(0);
    let to = text.find(" (").unwrap_or(text.len());
    let range = text.get(from..to).and_then(|t| t.split_once(": ")).map_or("", |t| t.1);
    format!("loop {number}, {range}, {} carried", k.results(op).len())
}

/// Equal ones counted: `3 f32, u32`.
fn counted(types: &[String]) -> String {
    let mut groups: Vec<(usize, &String)> = Vec::new();
    for t in types {
        match groups.iter_mut().find(|g| g.1 == t) {
            Some(g) => g.0 += 1,
            None => groups.push((1, t)),
        }
    }
    groups.iter().map(|(n, t)| if *n == 1 { (*t).clone() } else { format!("{n} {t}") }).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for GradReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel '{}': adjoints of {}", self.kernel, self.adjoints.join(", "))?;
        if self.loops.iter().all(|l| l.bytes == 0) && self.logged.is_empty() {
            writeln!(f, "no tape")?;
        }
        if !self.logged.is_empty() {
            let what = counted(&self.logged);
            writeln!(f, "on the tape, each time that it is read from memory of the workgroup: {what}")?;
        }
        for l in &self.loops {
            writeln!(f, "{:1$}{2}", "", 2 * l.depth, l.op)?;
            let what = match l.taped.len() {
                0 => "nothing on the tape".to_owned(),
                _ => format!("on the tape {}: {} bytes an iteration and invocation", counted(&l.taped), l.bytes),
            };
            let n = |n: usize, what: &str| if n == 0 { String::new() } else { format!("; {n} {what}") };
            let rest = n(l.counted, "computed from the iteration") + &n(l.unneeded, "not needed");
            writeln!(f, "{:1$}  {what}{rest}; the body is run again", "", 2 * l.depth)?;
        }
        Ok(())
    }
}
