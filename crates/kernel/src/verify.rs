//! The rules of the language, checked. Cost: one walk, linear in ops and operands.

use crate::error::KernelError;
use crate::hash::Map;
use crate::ir::{
    Access, Atomic, BinaryOp, Kernel, MAX_SCALARS, Matrix, MatrixLayout, MatrixShape, MemoryId, OpId, OpKind, RegionId,
    Scalar, Shape, Space, Subgroup, Ty, UnaryOp, Value, WarpgroupProduct,
};
use crate::text::op_text;
use crate::uniform;

/// Regions may nest this deep. Passes walk them by recursion, and this keeps their stack small.
pub const MAX_DEPTH: usize = 128;
const MAX_WORKGROUP_SCALARS: u64 = 1 << 22;
const MAX_PRIVATE_SCALARS: u64 = 1 << 16;
/// Elements of an array in registers; no invocation has more of them.
const MAX_REGISTERS: u64 = 256;
/// Rows and columns of a matrix; no device has larger ones.
const MAX_SIDE: u32 = 64;

/// Checks types, scopes, terminators and the places of effects.
///
/// ```
/// let text = "kernel k(1, 1, 1) {\n  %0 = const 1 : u32\n  %1 = neg %0 : f32\n  return\n}\n";
/// let kernel: impasto_kernel::Kernel = text.parse()?;
/// let error = impasto_kernel::verify(&kernel).unwrap_err().to_string();
/// assert!(error.contains("kernel 'k': `%1 = neg %0 : f32`"), "{error}");
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn verify(kernel: &Kernel) -> Result<(), KernelError> {
    check_header(kernel).map_err(|problem| KernelError::Invalid {
        kernel: kernel.name.clone(),
        op: "kernel".to_owned(),
        problem,
    })?;
    let mut v = Verifier {
        kernel,
        broken: kernel.broken(),
        visible: vec![false; kernel.value_count()],
        constants: Default::default(),
        vars: vec![Scope::Unknown; kernel.vars.len()],
        around: Vec::new(),
        types: Vec::new(),
    };
    let checked = v.region(kernel.body());
    let checked = checked.and_then(|()| uniform::check(kernel).map_err(|(op, problem)| (Some(op), problem)));
    checked.map_err(|(op, problem)| KernelError::Invalid {
        kernel: kernel.name.clone(),
        op: op.map_or_else(|| "kernel".to_owned(), |op| op_text(kernel, op)),
        problem,
    })
}

/// Whether no variables are left: what all passes but SSA construction need.
pub(crate) fn is_ssa(kernel: &Kernel) -> bool {
    kernel.vars.is_empty()
}

fn check_header(k: &Kernel) -> Result<(), String> {
    let threads = k.workgroup.iter().try_fold(1u32, |a, &b| a.checked_mul(b)).unwrap_or(0);
    if !(1..=1024).contains(&threads) {
        return Err(format!("a workgroup has 1 to 1024 invocations, this one has {:?}", k.workgroup));
    }
    if k.foreign.is_some() {
        // Its names, types and memory are those of a module, which has rules of its own.
        return Ok(());
    }
    if k.name.is_empty() || !k.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err("a name is made of letters, digits and _".to_owned());
    }
    for i in 0..k.shape_count() {
        if let Some(m) = k.matrix(Ty::from_table(i)) {
            check_matrix(m)?;
            continue;
        }
        check_members(k, Ty::from_table(i))?;
        let n = k.scalars(Ty::from_table(i));
        if !(1..=MAX_SCALARS).contains(&n) {
            return Err(format!("a value has 1 to {MAX_SCALARS} scalars, not {n}; put larger arrays into memory"));
        }
    }
    for p in &k.params {
        if p.ty == Scalar::Bool {
            return Err(format!("the parameter '{}' is a bool, which has no layout: pass a u32", p.name));
        }
    }
    for m in &k.memories {
        if k.matrix(m.ty).is_some() {
            return Err(format!(
                "'{}' cannot hold matrices; its elements are scalars, and a matrix is loaded from them",
                m.name
            ));
        }
        let scalars = k.scalars(m.ty);
        let (n, most) = match m.space {
            Space::Buffer(_) if k.any_scalar(m.ty, |s| s == Scalar::Bool) => {
                return Err(format!("the buffer '{}' cannot hold bool, which has no layout: use u32", m.name));
            }
            Space::Buffer(_) => continue,
            Space::Workgroup(n) => (n, MAX_WORKGROUP_SCALARS),
            Space::Private(n) => (n, MAX_PRIVATE_SCALARS),
            Space::Registers(n) if matches!(m.ty.as_scalar(), Some(Scalar::F32 | Scalar::U32)) => (n, MAX_REGISTERS),
            Space::Registers(_) => return Err(format!("the register array '{}' holds f32 or u32", m.name)),
            Space::Pointed { .. } => continue,
        };
        if !(1..=most).contains(&(u64::from(n) * scalars)) {
            return Err(format!("'{}' must have 1 to {most} scalars, not {n} times {scalars}", m.name));
        }
    }
    Ok(())
}

fn check_matrix(m: Matrix) -> Result<(), String> {
    let fits = |n: u32| (1..=MAX_SIDE).contains(&n);
    let ok = fits(m.rows) && fits(m.columns) && m.scalar.is_float();
    need(ok, &format!("a matrix has 1 to {MAX_SIDE} rows and columns of f16, bf16 or f32, unlike {m}"))
}

/// A device has no place for a matrix in an array or a struct.
fn check_members(k: &Kernel, ty: Ty) -> Result<(), String> {
    let holds = match k.shape(ty) {
        Shape::Array(of, _) => k.matrix(of).is_some(),
        Shape::Struct(members) => members.iter().any(|&m| k.matrix(m).is_some()),
        _ => false,
    };
    need(!holds, "an array or a struct holds no matrices; use values, or variables, for each")
}

#[derive(Clone, Copy, PartialEq)]
enum Scope {
    Unknown,
    Open,
    Closed,
}

struct Verifier<'a> {
    kernel: &'a Kernel,
    broken: Vec<bool>,
    visible: Vec<bool>,
    /// The bits of constants.
    constants: Map<Value, u64>,
    vars: Vec<Scope>,
    /// The ops whose regions are open, with those regions, innermost last.
    around: Vec<(OpId, RegionId)>,
    /// The types of the operands of one op; kept, since ops are many.
    types: Vec<Ty>,
}

type Problem = (Option<OpId>, String);

impl Verifier<'_> {
    fn region(&mut self, r: RegionId) -> Result<(), Problem> {
        let k = self.kernel;
        let parent = self.around.last().map(|a| a.0);
        if self.around.len() > MAX_DEPTH {
            return Err((parent, format!("regions nest deeper than {MAX_DEPTH}; split the kernel")));
        }
        let ops = k.region_ops(r);
        let Some((&last, before)) = ops.split_last() else {
            return Err((parent, "a region has no terminator".to_owned()));
        };
        k.region_args(r).for_each(|v| self.visible[v.index()] = true);
        for &op in before {
            if k.kind(op).is_terminator() {
                return Err((Some(op), "a terminator stands last in its region".to_owned()));
            }
            self.op(op).map_err(|p| (p.0.or(Some(op)), p.1))?;
        }
        self.terminator(last, before.last().copied()).map_err(|p| (Some(last), p))?;
        k.region_args(r).for_each(|v| self.visible[v.index()] = false);
        for &op in before {
            k.results(op).for_each(|v| self.visible[v.index()] = false);
            if let OpKind::Var(v) = k.kind(op) {
                self.vars[v.index()] = Scope::Closed;
            }
        }
        Ok(())
    }

    fn operands(&self, op: OpId) -> Result<(), String> {
        match self.kernel.args(op).iter().find(|v| !self.visible[v.index()]) {
            Some(_) => Err("an operand is not defined here; values live to the end of their region".to_owned()),
            None => Ok(()),
        }
    }

    fn op(&mut self, op: OpId) -> Result<(), Problem> {
        let k = self.kernel;
        let own = |p: String| (None, p);
        self.operands(op).map_err(own)?;
        match k.kind(op) {
            OpKind::Var(v) => {
                if self.vars[v.index()] != Scope::Unknown {
                    return Err(own("a variable is declared once".to_owned()));
                }
                self.vars[v.index()] = Scope::Open;
            }
            OpKind::Get(v) | OpKind::Set(v) if self.vars[v.index()] != Scope::Open => {
                return Err(own("the variable is not declared here; it lives to the end of its region".to_owned()));
            }
            _ => {}
        }
        self.types.clear();
        self.types.extend(k.args(op).iter().map(|&v| k.ty(v)));
        types(k, op, &self.types).map_err(own)?;
        match k.kind(op) {
            OpKind::Const(c) => drop(self.constants.insert(k.result(op), k.const_bits(c))),
            OpKind::Load(m) | OpKind::Store(m) => self.register(m, k.args(op)[0]).map_err(own)?,
            _ => {}
        }
        for &r in k.regions(op) {
            self.around.push((op, r));
            self.region(r)?;
            self.around.pop();
        }
        k.results(op).for_each(|v| self.visible[v.index()] = true);
        Ok(())
    }

    /// An index of a register array is a constant within it.
    fn register(&self, m: MemoryId, index: Value) -> Result<(), String> {
        let Space::Registers(n) = self.kernel.memory(m).space else { return Ok(()) };
        let inside = self.constants.get(&index).is_some_and(|&i| i < u64::from(n));
        need(
            inside,
            &format!("an index of the register array '{}' is a constant below {n}", self.kernel.memory(m).name),
        )
    }

    fn terminator(&self, op: OpId, before: Option<OpId>) -> Result<(), String> {
        let k = self.kernel;
        self.operands(op)?;
        let given = |want: &mut dyn Iterator<Item = Ty>, what: &str| {
            let want: Vec<Ty> = want.collect();
            let have: Vec<Ty> = k.args(op).iter().map(|&v| k.ty(v)).collect();
            if want == have {
                return Ok(());
            }
            let show = |t: &[Ty]| t.iter().map(|&t| crate::text::type_text(k, t)).collect::<Vec<_>>().join(", ");
            Err(format!("the values must be {what}: ({}), not ({})", show(&want), show(&have)))
        };
        let target = |r: RegionId| {
            self.around
                .iter()
                .find(|a| a.1 == r && matches!(k.kind(a.0), OpKind::Loop | OpKind::For(_)))
                .map(|a| a.0)
                .ok_or_else(|| "the target is no loop around this op".to_owned())
        };
        match k.kind(op) {
            OpKind::Yield => match self.around.last() {
                Some(&(p, _)) if matches!(k.kind(p), OpKind::If | OpKind::Switch(_)) => {
                    given(&mut k.results(p).map(|v| k.ty(v)), "the results of the op around this")
                }
                _ => Err("only a region of an if or a switch yields".to_owned()),
            },
            OpKind::Continue(r) => {
                let skip = usize::from(matches!(k.kind(target(r)?), OpKind::For(_)));
                given(&mut k.region_args(r).skip(skip).map(|v| k.ty(v)), "the carried values of the loop")
            }
            OpKind::Break(r) => {
                let p = target(r)?;
                given(&mut k.results(p).map(|v| k.ty(v)), "the results of the loop")
            }
            OpKind::Return => given(&mut std::iter::empty(), "none"),
            OpKind::Unreachable => match before {
                Some(b) if !k.falls_through(b, &self.broken) => Ok(()),
                // The module says that it is not.
                _ if k.foreign.is_some() => Ok(()),
                _ => Err("this can be reached: the op before it goes on".to_owned()),
            },
            _ => Err("a region ends in yield, continue, break, return or unreachable".to_owned()),
        }
    }
}

fn need(ok: bool, problem: &str) -> Result<(), String> {
    if ok { Ok(()) } else { Err(problem.to_owned()) }
}

/// Checks the types of operands, results and region arguments of one op.
fn types(k: &Kernel, op: OpId, args: &[Ty]) -> Result<(), String> {
    let results = k.result_types(op);
    let kind = k.kind(op);
    let structure = kind.is_structure();
    if let OpKind::Foreign(..) | OpKind::ForeignConst(_) | OpKind::Undef = kind {
        return need(k.regions(op).is_empty(), "this op has no regions");
    }
    if let (OpKind::Load(_) | OpKind::Store(_), true) = (kind, k.foreign.is_some()) {
        return need(!args.is_empty(), "it takes a pointer");
    }
    use OpKind::{AsyncCopy, MatrixStore, Set, Store, Var, WarpgroupMulAdd};
    let acts = matches!(kind, Store(_) | MatrixStore(..) | Var(_) | Set(_) | AsyncCopy(..) | WarpgroupMulAdd(_));
    let produces = !acts && !kind.is_barrier() && !structure;
    if !structure {
        need(results.len() == usize::from(produces), "wrong number of results")?;
        need(k.regions(op).is_empty(), "this op has no regions")?;
    }
    let count = |n: usize| match args.len() {
        m if m == n => Ok(()),
        m => Err(format!("it takes {n} operands, not {m}")),
    };
    let u32_index = || need(args[0] == Ty::scalar(Scalar::U32), "the index must be a u32");
    match kind {
        OpKind::Const(c) => {
            count(0)?;
            let s = results[0].as_scalar().ok_or("a constant is a scalar")?;
            need(k.const_bits(c) & !s.mask() == 0, "the constant does not fit its type")
        }
        OpKind::Param(p) => {
            count(0)?;
            need(k.params.get(p as usize).is_some_and(|p| results[0] == Ty::scalar(p.ty)), "not the parameter's type")
        }
        OpKind::Builtin(_, axis) => {
            count(0)?;
            need(axis < 3 && results[0] == Ty::scalar(Scalar::U32), "it is a u32 with an axis x, y or z")
        }
        OpKind::Unary(f) => {
            count(1)?;
            need(args[0] == results[0], "operand and result must have the same type")?;
            unary_type(f, results[0])
        }
        OpKind::Binary(f) => {
            count(2)?;
            need(args[0] == results[0] && args[1] == results[0], "operands and result must have the same type")?;
            match k.matrix(results[0]) {
                Some(m) => matrix_arithmetic(f, m.scalar),
                None => binary_type(f, results[0]),
            }
        }
        OpKind::Compare(c) => {
            count(2)?;
            need(args[0] == args[1], "both operands must have the same type")?;
            let s = args[0].lanes().ok_or("only scalars and vectors can be compared")?.0;
            let equality = matches!(c, crate::ir::Compare::Eq | crate::ir::Compare::Ne);
            need(s.is_arithmetic() || (s == Scalar::Bool && equality), "this type has no such comparison")?;
            need(args[0].with_scalar(Scalar::Bool) == Some(results[0]), "the result is a bool for each component")
        }
        OpKind::Fma => {
            count(3)?;
            need(args.iter().all(|&a| a == results[0]), "operands and result must have the same type")?;
            float(results[0])
        }
        OpKind::Select => {
            count(3)?;
            need(args[1] == results[0] && args[2] == results[0], "both values and the result must have the same type")?;
            need(k.matrix(results[0]).is_none(), "a matrix cannot be selected: use an if, of the whole subgroup")?;
            let whole = args[0] == Ty::scalar(Scalar::Bool);
            need(
                whole || results[0].with_scalar(Scalar::Bool) == Some(args[0]),
                "the condition is a bool, or one for each component",
            )
        }
        OpKind::Convert => {
            count(1)?;
            if let Some((from, to)) = k.matrix(args[0]).zip(k.matrix(results[0])) {
                return need(from == Matrix { scalar: from.scalar, ..to }, "only the type of elements changes");
            }
            let ((a, n), (b, m)) = args[0].lanes().zip(results[0].lanes()).ok_or("only scalars and vectors convert")?;
            need(n == m, "the number of components stays")?;
            need(a == b || b != Scalar::Bool, "compare with zero to make a bool")?;
            let bf16 = a == b || (a == Scalar::F32 || b == Scalar::F32) || (a != Scalar::Bf16 && b != Scalar::Bf16);
            need(bf16, "bf16 converts from and to f32 only")
        }
        OpKind::Bitcast => {
            count(1)?;
            let ((a, n), (b, m)) =
                args[0].lanes().zip(results[0].lanes()).ok_or("only scalars and vectors have bits")?;
            need(n == m && a.bits() == b.bits() && a != Scalar::Bool && b != Scalar::Bool, "the sizes differ")
        }
        OpKind::Pack(half) => {
            count(2)?;
            need(args == [Ty::scalar(Scalar::F32); 2], "both operands must be f32")?;
            need(matches!(half, Scalar::F16 | Scalar::Bf16), "it packs floats of 16 bits")?;
            need(results[0] == Ty::scalar(Scalar::U32), "the result is a u32")
        }
        OpKind::Custom => {
            need(args.len() % 2 == 1, "it takes a value, and a derivative for each value that it depends on")?;
            need(args.iter().all(|&a| a == results[0]), "operands and result must have the same type")?;
            if args.len() > 1 { float(results[0]) } else { Ok(()) }
        }
        OpKind::Make => {
            let n = k.members(results[0]) as usize;
            need(n > 0, "a scalar is not made of members")?;
            count(n)?;
            let fits = |(i, &a): (usize, &Ty)| k.member(results[0], i as u32) == Some(a);
            need(args.iter().enumerate().all(fits), "the operands are not the members of the result")
        }
        OpKind::Extract(i) => {
            count(1)?;
            need(k.member(args[0], i) == Some(results[0]), "the result is not that member")
        }
        OpKind::Insert(i) => {
            count(2)?;
            need(args[0] == results[0] && k.member(args[0], i) == Some(args[1]), "the operand is not that member")
        }
        OpKind::Load(m) => {
            count(1)?;
            u32_index()?;
            need(results[0] == k.memory(m).ty, "the result is an element")
        }
        OpKind::Store(m) => {
            count(2)?;
            u32_index()?;
            need(k.memory(m).space != Space::Buffer(Access::Read), "the buffer is read only")?;
            need(args[1] == k.memory(m).ty, "the value is an element")
        }
        OpKind::Atomic(m, a) => {
            count(if a == Atomic::CompareExchange { 3 } else { 2 })?;
            u32_index()?;
            let mem = k.memory(m);
            need(
                !matches!(mem.space, Space::Buffer(Access::Read) | Space::Private(_)),
                "atomics need shared, writable memory",
            )?;
            let float = mem.ty.as_scalar() == Some(Scalar::F32) && matches!(a, Atomic::Add | Atomic::Exchange);
            need(
                float || matches!(mem.ty.as_scalar(), Some(Scalar::I32 | Scalar::U32)),
                "atomics work on i32 and u32, add and exchange also on f32",
            )?;
            need(args[1..].iter().all(|&a| a == mem.ty) && results[0] == mem.ty, "values and result are elements")
        }
        OpKind::Len(m) => {
            count(0)?;
            let buffer = matches!(k.memory(m).space, Space::Buffer(_));
            need(buffer && results[0] == Ty::scalar(Scalar::U32), "the length of a buffer, a u32")
        }
        OpKind::Barrier | OpKind::SubgroupBarrier => count(0),
        OpKind::Subgroup(f) => {
            count(if f == Subgroup::ShuffleXor { 2 } else { 1 })?;
            need(args[0] == results[0], "operand and result must have the same type")?;
            let s = args[0].as_scalar();
            match f {
                Subgroup::All | Subgroup::Any => need(s == Some(Scalar::Bool), "it is about bool"),
                _ => need(matches!(s, Some(Scalar::I32 | Scalar::U32 | Scalar::F32)), "it works on i32, u32 and f32"),
            }?;
            need(f != Subgroup::ShuffleXor || args[1] == Ty::scalar(Scalar::U32), "the mask must be a u32")
        }
        OpKind::AsyncCommit | OpKind::AsyncWait(_) | OpKind::WarpgroupWait(_) => count(0),
        OpKind::AsyncCopy(to, from) => {
            count(3)?;
            need(args[..2] == [Ty::scalar(Scalar::U32); 2], "both indices must be u32")?;
            need(args[2] == Ty::scalar(Scalar::Bool), "whether it is valid must be a bool")?;
            need(k.memory(from).space == Space::Buffer(Access::Read), "it copies from a buffer that is only read")?;
            need(matches!(k.memory(to).space, Space::Workgroup(_)), "it copies to workgroup memory")?;
            let bytes = [to, from].map(|m| k.lay_out(k.memory(m).ty).stride());
            let whole = bytes.iter().all(|&b| b > 0 && 16 % b == 0);
            need(whole, "elements must make up 16 bytes")
        }
        OpKind::WarpgroupMulAdd(p) => {
            let in_registers = matches!(k.memory(p.a).space, Space::Registers(_));
            count(if in_registers { 2 } else { 3 })?;
            warpgroup_product(k, p, in_registers)?;
            let (add, indices) = args.split_last().ok_or("it takes operands")?;
            need(indices.iter().all(|&i| i == Ty::scalar(Scalar::U32)), "an index must be a u32")?;
            need(*add == Ty::scalar(Scalar::Bool), "whether it adds must be a bool")
        }
        OpKind::MatrixLoad(m, _) => {
            count(2)?;
            matrix_place(k, m, args, results[0])
        }
        OpKind::MatrixStore(m, _) => {
            count(3)?;
            need(k.memory(m).space != Space::Buffer(Access::Read), "the buffer is read only")?;
            need(k.memory(m).ty.as_scalar().is_some(), "a matrix is stored as scalars, not as vectors")?;
            matrix_place(k, m, args, args[2])
        }
        OpKind::MatrixFill => {
            count(1)?;
            let m = k.matrix(results[0]).ok_or("the result is a matrix")?;
            need(args[0] == Ty::scalar(m.scalar), "the operand is an element of the matrix")
        }
        OpKind::MatrixScale => {
            count(2)?;
            let m = k.matrix(results[0]).ok_or("the result is a matrix")?;
            need(args[0] == results[0] && args[1] == Ty::scalar(m.scalar), "a matrix, and an element to scale by")?;
            matrix_arithmetic(BinaryOp::Mul, m.scalar)
        }
        OpKind::MatrixMulAdd => {
            count(3)?;
            let m = |i: usize| k.matrix(args[i]).ok_or("the operands are matrices");
            let shape =
                MatrixShape::of(m(0)?, m(1)?, m(2)?).ok_or("the matrices do not fit: (m, k) * (k, n) + (m, n)")?;
            need(args[2] == results[0], "the result has the type of what is added")?;
            let known = [(Scalar::F16, Scalar::F32), (Scalar::F16, Scalar::F16), (Scalar::Bf16, Scalar::F32)];
            need(known.contains(&(shape.factor, shape.result)), "f16 is added up in f32 or f16, bf16 in f32")
        }
        OpKind::Var(v) | OpKind::Set(v) => {
            count(1)?;
            need(k.vars.get(v.index()) == Some(&args[0]), "not the variable's type")
        }
        OpKind::Get(v) => {
            count(0)?;
            need(k.vars.get(v.index()) == Some(&results[0]), "not the variable's type")
        }
        OpKind::If => {
            count(1)?;
            need(args[0] == Ty::scalar(Scalar::Bool), "the condition must be a bool")?;
            need(k.regions(op).len() == 2, "an if has two regions")?;
            need(k.regions(op).iter().all(|&r| k.region_args(r).len() == 0), "the regions take no arguments")
        }
        OpKind::Switch(table) => {
            count(1)?;
            let s = args[0]
                .as_scalar()
                .filter(|s| s.is_int() && s.bits() == 32)
                .ok_or("the selector must be an i32 or u32")?;
            let arms = k.regions(op).len();
            need(arms >= 1, "a switch has a default")?;
            need(k.regions(op).iter().all(|&r| k.region_args(r).len() == 0), "the regions take no arguments")?;
            let mut values: Vec<u64> = k.switch_cases(table).iter().map(|c| c.0).collect();
            values.sort_unstable();
            need(values.windows(2).all(|w| w[0] != w[1]), "each value has one case")?;
            need(values.iter().all(|v| v & !s.mask() == 0), "a case does not fit the selector")?;
            need(k.switch_cases(table).iter().all(|c| (c.1 as usize) < arms), "a case has no region")
        }
        OpKind::Loop => {
            need(k.regions(op).len() == 1, "a loop has one region")?;
            let inner = k.region_args(k.regions(op)[0]).map(|v| k.ty(v));
            need(inner.eq(args.iter().copied()), "the arguments of the region are the carried values")
        }
        OpKind::For(step) => {
            need(k.regions(op).len() == 1, "a for has one region")?;
            need(args.len() >= 2 && args[0] == args[1], "from and to must have the same type")?;
            need(matches!(args[0].as_scalar(), Some(Scalar::I32 | Scalar::U32)), "the index must be an i32 or u32")?;
            need(step >= 1 && step <= i32::MAX as u32, "the step must be positive")?;
            let inner = k.region_args(k.regions(op)[0]).map(|v| k.ty(v));
            need(inner.eq(args[1..].iter().copied()), "the arguments of the region are index and carried values")?;
            need(*results == args[2..], "the results are the carried values")
        }
        _ => Err("a terminator stands last in its region".to_owned()),
    }
}

/// The tiles and sums of a product of a warpgroup.
fn warpgroup_product(k: &Kernel, p: WarpgroupProduct, in_registers: bool) -> Result<(), String> {
    let n = u32::from(p.n);
    need(n.is_multiple_of(8) && (8..=256).contains(&n), "a product has 8 to 256 columns, in eights")?;
    let most = if in_registers && p.layout == MatrixLayout::Row { 16 } else { 4 };
    need((1..=most).contains(&p.steps), &format!("it has 1 to {most} steps of k here"))?;
    need(matches!(p.factor, Scalar::F16 | Scalar::Bf16), "factors are f16 or bf16")?;
    let threads = k.workgroup.iter().product::<u32>();
    need(threads.is_multiple_of(WarpgroupProduct::INVOCATIONS), "a workgroup must be made of whole warpgroups")?;
    let sums = k.memory(p.sums);
    let fits = sums.space == Space::Registers(n / 2) && sums.ty == Ty::scalar(Scalar::F32);
    need(fits, &format!("'{}' must be a register array of {} f32", sums.name, n / 2))?;
    for (m, registers) in [(p.a, in_registers), (p.b, false)] {
        let tile = k.memory(m);
        let words = matches!(tile.ty.lanes(), Some((Scalar::U32, 1 | 2 | 4)));
        let shared = words && matches!(tile.space, Space::Workgroup(_));
        let own = tile.ty == Ty::scalar(Scalar::U32) && tile.space == Space::Registers(4 * u32::from(p.steps));
        need(
            if registers { own } else { shared },
            &format!("the tile '{}' must be workgroup memory of u32, or 4 registers of u32 for each step", tile.name),
        )?;
    }
    Ok(())
}

/// The place of a matrix in memory: index and stride, and elements of its own type.
fn matrix_place(k: &Kernel, m: MemoryId, args: &[Ty], matrix: Ty) -> Result<(), String> {
    let u32_ty = Ty::scalar(Scalar::U32);
    need(args[0] == u32_ty && args[1] == u32_ty, "index and stride must be u32")?;
    let scalar = k.matrix(matrix).ok_or("what is loaded or stored is a matrix")?.scalar;
    let private = matches!(k.memory(m).space, Space::Private(_) | Space::Registers(_));
    need(!private, "a private array is of one invocation, a matrix of many")?;
    let held = k.memory(m).ty.lanes().map(|(s, _)| s);
    need(held == Some(scalar), "the elements of the memory must be those of the matrix, or vectors of them")
}

fn matrix_arithmetic(f: BinaryOp, s: Scalar) -> Result<(), String> {
    need(
        matches!(f, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul),
        "matrices can be added, subtracted and multiplied",
    )?;
    need(s.is_arithmetic(), "it works on f16 and f32; convert bf16 to f32")
}

fn float(ty: Ty) -> Result<(), String> {
    need(matches!(ty.lanes(), Some((Scalar::F16 | Scalar::F32, _))), "it works on f16 and f32")
}

fn unary_type(f: UnaryOp, ty: Ty) -> Result<(), String> {
    let s = ty.lanes().ok_or("arithmetic is on scalars and vectors")?.0;
    match f {
        UnaryOp::Neg => need(s.is_arithmetic(), "it works on numbers; convert bf16 to f32"),
        UnaryOp::Not => need(s.is_int() || s == Scalar::Bool, "it works on integers and bool"),
        UnaryOp::Abs => need(s.is_signed() || (s.is_float() && s.is_arithmetic()), "it works on signed numbers"),
        UnaryOp::CountOnes | UnaryOp::ReverseBits => need(s.is_int() && s.bits() == 32, "it works on i32 and u32"),
        _ => float(ty),
    }
}

fn binary_type(f: BinaryOp, ty: Ty) -> Result<(), String> {
    let s = ty.lanes().ok_or("arithmetic is on scalars and vectors")?.0;
    match f {
        BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr => need(s.is_int(), "it works on integers"),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
            need(s.is_int() || s == Scalar::Bool, "it works on integers and bool")
        }
        BinaryOp::Pow => float(ty),
        _ => need(s.is_arithmetic(), "it works on numbers; convert bf16 to f32"),
    }
}
