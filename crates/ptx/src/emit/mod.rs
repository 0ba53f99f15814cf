//! Kernels as text. Control flow becomes labels and branches, each scalar of a value a register, each element of memory an address.

mod arithmetic;
mod control;
mod convert;
mod matrix;
mod memory;
mod ops;
mod subgroup;
mod text;
mod warpgroup;

use std::fmt::Write;

use impasto_kernel::ir::{Kernel, MemoryId, OpKind, RegionId, Scalar, Space, Ty, Value};
use impasto_kernel::{
    KernelError, Members, Shape, Target, WarpgroupProduct, divergent_regions, param_size, shared_offsets,
};

use crate::check::check;
use crate::target::{PtxTarget, known_as};
use control::Frame;
use text::{Class, Operand, Text};

/// Bytes of workgroup arrays that a kernel declares itself; with more, all of them are dynamic shared memory of the launch.
pub(crate) const STATIC_SHARED: u64 = 48 * 1024;
/// Bytes of private arrays that an invocation may have.
const MOST_PRIVATE: u64 = 512 * 1024;

/// Writes the text of a module. Its kernels are valid.
pub(crate) fn emit(kernels: &[Kernel], target: &Target, ptx: PtxTarget) -> Result<String, KernelError> {
    for k in kernels {
        target.check(k, known_as)?;
        accept(k, ptx)?;
    }
    let (major, minor) = ptx.isa();
    let mut module = format!(".version {major}.{minor}\n.target {ptx}\n.address_size 64\n");
    if kernels.iter().any(|k| shared_offsets(k).1 > STATIC_SHARED) {
        let align = if kernels.iter().any(warpgroup::is_used) { WarpgroupProduct::ALIGNMENT } else { 32 };
        let _ = writeln!(module, ".extern .shared .align {align} .b8 dynamic$[];");
    }
    for k in kernels {
        Emit::new(k, ptx).write(&mut module);
    }
    match check(&module) {
        Ok(()) => Ok(module),
        Err(problem) => Err(KernelError::Words { kernel: kernels[0].name.clone(), problem }),
    }
}

/// Refuses what this format has no words for.
fn accept(k: &Kernel, ptx: PtxTarget) -> Result<(), KernelError> {
    let refuse = |problem: String| Err(KernelError::Module { kernel: k.name.clone(), problem });
    if k.foreign().is_some() {
        return refuse("it was imported from SPIR-V, and its foreign ops have no PTX; write it as a kernel".into());
    }
    if k.name.starts_with(|c: char| c.is_ascii_digit()) {
        return refuse("the name of an entry point of PTX does not begin with a digit: rename it".into());
    }
    for kind in k.kinds() {
        if let OpKind::Foreign(..) | OpKind::ForeignConst(_) | OpKind::Undef = kind {
            return refuse(format!("`{}` is an op of imported modules, and has no PTX", kind.name()));
        }
        if let OpKind::MatrixLoad(m, _) = kind
            && k.memory(m).ty.lanes().is_some_and(|(_, n)| n == 3)
        {
            let name = &k.memory(m).name;
            return refuse(format!("a matrix is loaded from '{name}', whose vectors of 3 have gaps: use 1, 2 or 4"));
        }
    }
    let too_large = |what: &str, needs: u64, limit: u64| match needs > limit {
        true => Err(KernelError::TooLarge { kernel: k.name.clone(), what: what.into(), needs, limit }),
        false => Ok(()),
    };
    too_large("bytes shared by a workgroup", shared_offsets(k).1, ptx.shared_limit().into())?;
    let private = |m: &impasto_kernel::MemoryDecl| match m.space {
        Space::Private(n) => memory::private_bytes(k, m.ty, n),
        _ => 0,
    };
    too_large("bytes of private arrays", k.memories().iter().map(private).sum(), MOST_PRIVATE)
}

/// One kernel that is being written.
struct Emit<'a> {
    k: &'a Kernel,
    ptx: PtxTarget,
    t: Text,
    /// The scalars of each value, in the order of members; of a matrix the registers of this lane.
    values: Vec<Vec<Operand>>,
    vars: Vec<Vec<Operand>>,
    /// The number of each memory among the buffers.
    bindings: Vec<u32>,
    /// Where each memory begins, if it is used.
    bases: Vec<Option<Operand>>,
    /// The registers of each register array.
    arrays: Vec<Vec<Operand>>,
    /// Regions that some lanes may run without the others.
    divergent: Vec<bool>,
    /// The region that is being written.
    region: RegionId,
    frames: Vec<Frame>,
    /// Place of this lane in the fragments of matrices: row and pair of columns.
    fragment: Option<(Operand, Operand)>,
}

impl<'a> Emit<'a> {
    fn new(k: &'a Kernel, ptx: PtxTarget) -> Emit<'a> {
        let mut buffers = 0;
        let number = |m: &impasto_kernel::MemoryDecl| {
            let own = buffers;
            buffers += u32::from(matches!(m.space, Space::Buffer(_)));
            own
        };
        Emit {
            k,
            ptx,
            t: Text::default(),
            values: vec![Vec::new(); k.value_count()],
            vars: Vec::new(),
            bindings: k.memories().iter().map(number).collect(),
            bases: vec![None; k.memories().len()],
            arrays: vec![Vec::new(); k.memories().len()],
            divergent: divergent_regions(k),
            region: k.body(),
            frames: Vec::new(),
            fragment: None,
        }
    }

    /// Adds the entry point to a module.
    fn write(mut self, module: &mut String) {
        let k = self.k;
        let used = self.used_memories();
        self.begin(&used);
        self.region(k.body());
        self.t.finish();
        let buffers = k.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_))).count();
        let mut params: Vec<String> =
            (0..buffers).map(|i| format!("\t.param .u64 .ptr .global .align 16 buffer${i}")).collect();
        if buffers > 0 {
            params.push(format!("\t.param .align 8 .b8 lengths$[{}]", 8 * buffers));
        }
        if param_size(k) > 0 {
            params.push(format!("\t.param .align 8 .b8 scalars$[{}]", param_size(k)));
        }
        let [x, y, z] = k.workgroup;
        let _ = write!(module, "\n.visible .entry {}(\n{}\n)\n.reqntid {x}, {y}, {z}\n", k.name, params.join(",\n"));
        if let Some(n) = warpgroup::resident(k) {
            let _ = writeln!(module, ".minnctapersm {n}");
        }
        module.push_str("{\n");
        for class in Class::ALL {
            let n = self.t.next[class as usize];
            if n > 0 {
                let _ = writeln!(module, "\t.reg .{} %{}<{n}>;", class.bits(), class.letter());
            }
        }
        let shared = shared_offsets(k).1;
        let uses_shared = k.memories().iter().zip(&used).any(|(m, u)| *u && matches!(m.space, Space::Workgroup(_)));
        if uses_shared && shared <= STATIC_SHARED {
            let align = if warpgroup::is_used(k) { WarpgroupProduct::ALIGNMENT } else { 32 };
            let _ = writeln!(module, "\t.shared .align {align} .b8 shared$[{shared}];");
        }
        for (i, m) in k.memories().iter().enumerate() {
            if let (Space::Private(n), true) = (m.space, used[i]) {
                let bytes = memory::private_bytes(k, m.ty, n);
                let _ = writeln!(module, "\t.local .align 32 .b8 private${i}[{bytes}];");
            }
        }
        module.push_str(&self.t.body);
        module.push_str("}\n");
    }

    /// What everything may use: addresses, variables, the lane's place in matrices.
    fn begin(&mut self, used: &[bool]) {
        let k = self.k;
        for (i, _) in used.iter().enumerate().filter(|(_, used)| **used) {
            self.base(MemoryId(i as u32));
        }
        self.vars = k.vars().iter().map(|&ty| self.new_regs(ty)).collect();
        if k.knows_matrices() {
            let lane = self.lane();
            let row = self.t.make(Class::B32, "shr.u32", &[lane, text::imm(2)]);
            let pair = self.t.make(Class::B32, "and.b32", &[lane, text::imm(3)]);
            self.fragment = Some((row, pair));
        }
    }

    /// Which memories ops of the kernel name.
    fn used_memories(&self) -> Vec<bool> {
        let k = self.k;
        let mut used = vec![false; k.memories().len()];
        let mut open = vec![k.body()];
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                open.extend_from_slice(k.regions(op));
                match k.kind(op) {
                    OpKind::AsyncCopy(to, from) => [to, from].into_iter().for_each(|m| used[m.index()] = true),
                    OpKind::WarpgroupMulAdd(p) => [p.a, p.b, p.sums].into_iter().for_each(|m| used[m.index()] = true),
                    _ => {}
                }
                if let OpKind::Load(m)
                | OpKind::Store(m)
                | OpKind::Atomic(m, _)
                | OpKind::MatrixLoad(m, _)
                | OpKind::MatrixStore(m, _) = k.kind(op)
                {
                    used[m.index()] = true;
                }
            }
        }
        used
    }

    /// The scalars of a type, in the order of members. A matrix has none.
    fn scalars(&self, ty: Ty, found: &mut Vec<Scalar>) {
        match self.k.shape(ty) {
            Shape::Scalar(s) => found.push(s),
            Shape::Vector(s, n) => found.extend((0..n).map(|_| s)),
            Shape::Array(of, n) => (0..n).for_each(|_| self.scalars(of, found)),
            Shape::Struct(members) | Shape::Foreign(_, Members::Each(members)) => {
                members.iter().for_each(|&m| self.scalars(m, found));
            }
            Shape::Matrix(_) | Shape::Foreign(..) => {}
        }
    }

    /// Registers for a value of this type.
    fn new_regs(&mut self, ty: Ty) -> Vec<Operand> {
        if let Some(m) = self.k.matrix(ty) {
            return (0..matrix::registers(m)).map(|_| self.t.reg(Class::B32)).collect();
        }
        let mut scalars = Vec::new();
        self.scalars(ty, &mut scalars);
        scalars.into_iter().map(|s| self.t.reg(Class::of(s))).collect()
    }

    /// The operands that a value is.
    fn value(&self, v: Value) -> &[Operand] {
        &self.values[v.index()]
    }

    /// The only operand of a scalar.
    fn scalar(&self, v: Value) -> Operand {
        self.values[v.index()].first().copied().unwrap_or(text::imm(0))
    }

    /// All operands of several values, one after the other.
    fn all_of(&self, values: &[Value]) -> Vec<Operand> {
        values.iter().flat_map(|&v| self.value(v)).copied().collect()
    }
}
