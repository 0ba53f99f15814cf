//! Kernel to text. Values are numbered in the order in which they are printed.

use std::fmt::{self, Write};

use half::{bf16, f16};

use crate::ir::{Access, Kernel, OpId, OpKind, RegionId, Scalar, Shape, Space, Ty, Value};

/// A type as text.
pub fn type_text(k: &Kernel, ty: Ty) -> String {
    match k.shape(ty) {
        Shape::Scalar(s) => s.name().to_owned(),
        Shape::Vector(s, n) => format!("{s}x{n}"),
        Shape::Array(t, n) => format!("[{}; {n}]", type_text(k, t)),
        Shape::Struct(members) => {
            format!("{{{}}}", members.iter().map(|&t| type_text(k, t)).collect::<Vec<_>>().join(", "))
        }
        Shape::Matrix(m) => m.to_string(),
        Shape::Foreign(id, _) => format!("type {id}"),
    }
}

/// One op without its regions, on one line.
pub fn op_text(k: &Kernel, op: OpId) -> String {
    let mut p = Printer::new(k);
    p.number(k.body());
    let mut out = String::new();
    match p.line(&mut out, op) {
        Ok(()) => out,
        Err(fmt::Error) => k.kind(op).name().to_owned(),
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.workgroup;
        writeln!(f, "kernel {}({x}, {y}, {z}) {{", self.name)?;
        for p in &self.params {
            writeln!(f, "  scalar {}: {}", p.name, p.ty)?;
        }
        for m in &self.memories {
            let ty = type_text(self, m.ty);
            match m.space {
                Space::Buffer(Access::Read) => writeln!(f, "  buffer {}: {ty} read", m.name)?,
                Space::Buffer(Access::ReadWrite) => writeln!(f, "  buffer {}: {ty} write", m.name)?,
                Space::Buffer(Access::Tape) => writeln!(f, "  buffer {}: {ty} tape", m.name)?,
                Space::Buffer(Access::Scratch) => writeln!(f, "  buffer {}: {ty} scratch", m.name)?,
                Space::Workgroup(n) => writeln!(f, "  shared {}: {ty} * {n}", m.name)?,
                Space::Private(n) => writeln!(f, "  private {}: {ty} * {n}", m.name)?,
                Space::Registers(n) => writeln!(f, "  registers {}: {ty} * {n}", m.name)?,
                Space::Pointed { .. } => {}
            }
        }
        let mut p = Printer::new(self);
        p.number(self.body());
        p.region(f, self.body(), 1)?;
        writeln!(f, "}}")
    }
}

struct Printer<'a> {
    k: &'a Kernel,
    values: Vec<u32>,
    next: u32,
    loops: Vec<u32>,
    next_loop: u32,
}

impl<'a> Printer<'a> {
    fn new(k: &'a Kernel) -> Self {
        let unknown = u32::MAX;
        Printer {
            k,
            values: vec![unknown; k.value_count()],
            next: 0,
            loops: vec![unknown; k.region_count()],
            next_loop: 0,
        }
    }

    fn name(&mut self, v: Value) {
        self.values[v.index()] = self.next;
        self.next += 1;
    }

    /// Numbers values and loops in the order of the text.
    fn number(&mut self, r: RegionId) {
        for &op in self.k.region_ops(r) {
            self.k.results(op).for_each(|v| self.name(v));
            for &inner in self.k.regions(op) {
                if matches!(self.k.kind(op), OpKind::Loop | OpKind::For(_)) {
                    self.loops[inner.index()] = self.next_loop;
                    self.next_loop += 1;
                }
                self.k.region_args(inner).for_each(|v| self.name(v));
                self.number(inner);
            }
        }
    }

    fn value(&self, out: &mut impl Write, v: Value) -> fmt::Result {
        match self.values[v.index()] {
            u32::MAX => out.write_str("%?"),
            n => write!(out, "%{n}"),
        }
    }

    fn list(&self, out: &mut impl Write, values: impl Iterator<Item = Value>) -> fmt::Result {
        for (i, v) in values.enumerate() {
            out.write_str(if i == 0 { "" } else { ", " })?;
            self.value(out, v)?;
        }
        Ok(())
    }

    fn types(&self, out: &mut impl Write, values: impl ExactSizeIterator<Item = Value>) -> fmt::Result {
        for (i, v) in values.enumerate() {
            write!(out, "{}{}", if i == 0 { " : " } else { ", " }, type_text(self.k, self.k.ty(v)))?;
        }
        Ok(())
    }

    fn carried(&self, out: &mut impl Write, inner: &[Value], init: &[Value]) -> fmt::Result {
        out.write_str(" (")?;
        for (i, (&a, &v)) in inner.iter().zip(init).enumerate() {
            out.write_str(if i == 0 { "" } else { ", " })?;
            self.value(out, a)?;
            write!(out, ": {} = ", type_text(self.k, self.k.ty(a)))?;
            self.value(out, v)?;
        }
        out.write_str(")")
    }

    fn line(&self, out: &mut impl Write, op: OpId) -> fmt::Result {
        let k = self.k;
        let args = k.args(op);
        if k.results(op).len() > 0 {
            self.list(out, k.results(op))?;
            out.write_str(" = ")?;
        }
        let kind = k.kind(op);
        match (kind, &k.foreign) {
            (OpKind::ForeignConst(n), Some(table)) => out.write_str(&table.const_text(n))?,
            _ => out.write_str(kind.name())?,
        }
        match kind {
            OpKind::Const(c) => {
                out.write_str(" ")?;
                let scalar = k.ty(k.result(op)).as_scalar().unwrap_or(Scalar::U64);
                constant(out, scalar, k.const_bits(c))?;
            }
            OpKind::Param(p) => write!(out, " {}", k.params[p as usize].name)?,
            OpKind::Foreign(n, _) => {
                let name = k.foreign.as_ref().map_or_else(|| n.to_string(), |table| table.op_text(n));
                write!(out, " {name} ")?;
                self.list(out, args.iter().copied())?;
            }
            OpKind::Builtin(b, axis) if b.has_axes() => write!(out, ".{}", ["x", "y", "z"][axis as usize % 3])?,
            OpKind::Load(m) => {
                write!(out, " {}[", k.memory(m).name)?;
                self.list(out, args.iter().copied())?;
                out.write_str("]")?;
            }
            OpKind::Store(m) | OpKind::Atomic(m, _) => {
                write!(out, " {}[", k.memory(m).name)?;
                self.list(out, args.iter().copied().take(1))?;
                out.write_str("], ")?;
                self.list(out, args.iter().copied().skip(1))?;
            }
            OpKind::MatrixLoad(m, layout) | OpKind::MatrixStore(m, layout) => {
                write!(out, " {}[", k.memory(m).name)?;
                self.list(out, args.iter().copied().take(2))?;
                write!(out, "] {}", layout.name())?;
                out.write_str(if args.len() > 2 { ", " } else { "" })?;
                self.list(out, args.iter().copied().skip(2))?;
            }
            OpKind::AsyncCopy(to, from) => {
                for (m, i) in [(to, 0), (from, 1)] {
                    write!(out, " {}[", k.memory(m).name)?;
                    self.value(out, args[i])?;
                    out.write_str("],")?;
                }
                out.write_str(" ")?;
                self.value(out, args[2])?;
            }
            OpKind::Pack(half) => {
                write!(out, " {half} ")?;
                self.list(out, args.iter().copied())?;
            }
            OpKind::AsyncWait(n) | OpKind::WarpgroupWait(n) => write!(out, " {n}")?,
            OpKind::WarpgroupMulAdd(p) => {
                write!(out, " {} {} {} {} {}, ", p.n, p.steps, p.factor, p.layout.name(), k.memory(p.sums).name)?;
                let (a, rest) = if args.len() == 3 { args.split_at(1) } else { args.split_at(0) };
                write!(out, "{}[", k.memory(p.a).name)?;
                self.list(out, a.iter().copied())?;
                write!(out, "], {}[", k.memory(p.b).name)?;
                self.list(out, rest.iter().copied().take(1))?;
                out.write_str("], ")?;
                self.list(out, rest.iter().copied().skip(1))?;
            }
            OpKind::Len(m) => write!(out, " {}", k.memory(m).name)?,
            OpKind::Var(v) => {
                write!(out, " v{}: {} = ", v.0, type_text(k, k.vars[v.index()]))?;
                self.list(out, args.iter().copied())?;
            }
            OpKind::Get(v) => write!(out, " v{}", v.0)?,
            OpKind::Set(v) => {
                write!(out, " v{} = ", v.0)?;
                self.list(out, args.iter().copied())?;
            }
            OpKind::Extract(i) | OpKind::Insert(i) => {
                out.write_str(" ")?;
                self.list(out, args.iter().copied().take(1))?;
                write!(out, "[{i}]")?;
                if args.len() > 1 {
                    out.write_str(", ")?;
                    self.list(out, args.iter().copied().skip(1))?;
                }
            }
            OpKind::Loop | OpKind::For(_) => {
                let region = k.regions(op)[0];
                write!(out, " @{}", self.loops[region.index()])?;
                let inner: Vec<Value> = k.region_args(region).collect();
                match kind {
                    OpKind::For(step) => {
                        out.write_str(" ")?;
                        self.list(out, inner.iter().copied().take(1))?;
                        write!(out, ": {} = ", type_text(k, k.ty(args[0])))?;
                        self.value(out, args[0])?;
                        out.write_str(" to ")?;
                        self.value(out, args[1])?;
                        write!(out, " step {step}")?;
                        self.carried(out, &inner[1..], &args[2..])?;
                    }
                    _ => self.carried(out, &inner, args)?,
                }
            }
            OpKind::Continue(r) | OpKind::Break(r) => {
                write!(out, " @{}", self.loops[r.index()])?;
                out.write_str(if args.is_empty() { "" } else { " " })?;
                self.list(out, args.iter().copied())?;
            }
            _ => {
                out.write_str(if args.is_empty() { "" } else { " " })?;
                self.list(out, args.iter().copied())?;
            }
        }
        self.types(out, k.results(op))
    }

    fn region(&self, out: &mut impl Write, r: RegionId, depth: usize) -> fmt::Result {
        let k = self.k;
        let indent = |out: &mut _, d: usize| -> fmt::Result { write!(out as &mut dyn Write, "{:1$}", "", 2 * d) };
        for &op in k.region_ops(r) {
            indent(out, depth)?;
            self.line(out, op)?;
            match k.kind(op) {
                OpKind::Switch(table) => {
                    out.write_str(" {\n")?;
                    for (i, &inner) in k.regions(op).iter().enumerate() {
                        indent(out, depth + 1)?;
                        let mut cases = k.switch_cases(table).iter().filter(|c| c.1 as usize == i).peekable();
                        let default = i + 1 == k.regions(op).len();
                        out.write_str(if default { "default" } else { "case" })?;
                        if cases.peek().is_some() {
                            let list: Vec<String> = cases.map(|c| c.0.to_string()).collect();
                            write!(out, " {}", list.join(", "))?;
                        }
                        out.write_str(" {\n")?;
                        self.region(out, inner, depth + 2)?;
                        indent(out, depth + 1)?;
                        out.write_str("}\n")?;
                    }
                    indent(out, depth)?;
                    out.write_str("}\n")?;
                }
                kind if kind.is_structure() => {
                    for (i, &inner) in k.regions(op).iter().enumerate() {
                        out.write_str(if i == 0 { " {\n" } else { " else {\n" })?;
                        self.region(out, inner, depth + 1)?;
                        indent(out, depth)?;
                        out.write_str("}")?;
                    }
                    out.write_str("\n")?;
                }
                _ => out.write_str("\n")?,
            }
        }
        Ok(())
    }
}

/// A constant so that reading it gives the same bits: floats that print exactly as numbers, other floats by their bits.
fn constant(out: &mut impl Write, ty: Scalar, bits: u64) -> fmt::Result {
    match ty {
        Scalar::Bool => write!(out, "{}", bits != 0),
        Scalar::I32 => write!(out, "{}", bits as u32 as i32),
        Scalar::I64 => write!(out, "{}", bits as i64),
        Scalar::U32 | Scalar::U64 => write!(out, "{bits}"),
        Scalar::F32 | Scalar::F16 | Scalar::Bf16 => {
            let x = match ty {
                Scalar::F16 => f16::from_bits(bits as u16).to_f32(),
                Scalar::Bf16 => bf16::from_bits(bits as u16).to_f32(),
                _ => f32::from_bits(bits as u32),
            };
            // A float of 16 bits is printed as the f32 it is, and rounds back to itself.
            if x.is_finite() { write!(out, "{x:?}") } else { write!(out, "{bits:#x}") }
        }
    }
}
