//! What a host sees of a module: entry points, workgroups, bindings, push constants, and where the scalars of buffers lie.

use rspirv::spirv::{BuiltIn, Decoration, ExecutionMode, Op as S, StorageClass};

use super::facts::pointee;
use super::module::Source;
use super::{ImportError, at};

/// Scalars of a buffer that are listed; more are not told apart.
const MOST_SCALARS: usize = 1 << 20;

/// What a scalar in a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarFormat {
    /// An integer of so many bits.
    Int {
        /// The bits.
        bits: u32,
        /// Whether it has a sign.
        signed: bool,
    },
    /// A float of so many bits.
    Float(u32),
}

impl ScalarFormat {
    /// Bytes in a buffer.
    pub fn bytes(self) -> u32 {
        match self {
            ScalarFormat::Int { bits, .. } | ScalarFormat::Float(bits) => bits / 8,
        }
    }
}

/// The array at the end of a buffer: where it begins, the bytes from one element to the next, and the places of scalars in an element.
pub type LastArray = (u32, u32, Vec<(u32, ScalarFormat)>);

/// How scalars lie in a buffer: those of its fixed part, and those of each element of the array at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockLayout {
    /// The places of scalars, in bytes.
    pub scalars: Vec<(u32, ScalarFormat)>,
    /// The array at the end.
    pub array: Option<LastArray>,
    /// Bytes of the fixed part.
    pub size: u32,
}

/// A buffer that a module takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundBuffer {
    /// The descriptor set.
    pub set: u32,
    /// The binding in it.
    pub binding: u32,
    /// The name of the variable, or of its type.
    pub name: String,
    /// Whether it is a uniform buffer and no storage buffer.
    pub uniform: bool,
    /// How scalars lie in it.
    pub layout: BlockLayout,
    pub(crate) variable: u32,
}

/// An entry point of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleEntry {
    /// Its name.
    pub name: String,
    /// Invocations in a workgroup, specialisation constants being what the module says.
    pub workgroup: [u32; 3],
}

/// What a host sees of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleInterface {
    /// The entry points, in order.
    pub entries: Vec<ModuleEntry>,
    /// The buffers, by set and binding.
    pub buffers: Vec<BoundBuffer>,
    /// Push constants.
    pub constants: BlockLayout,
    /// The capabilities that the module says it needs, by their numbers.
    pub capabilities: Vec<u32>,
    pub(crate) constants_variable: Option<u32>,
}

/// What a host sees of a module. What it takes besides buffers and push constants is an error: nothing here could give it.
pub fn reflect(words: &[u32]) -> Result<ModuleInterface, ImportError> {
    of(&Source::read(words)?)
}

pub(crate) fn of(s: &Source) -> Result<ModuleInterface, ImportError> {
    let entries =
        s.entries.iter().map(|e| ModuleEntry { name: e.name.clone(), workgroup: workgroup(s, e.function) }).collect();
    let mut found = ModuleInterface {
        entries,
        buffers: Vec::new(),
        constants: BlockLayout::default(),
        capabilities: s.capabilities().collect(),
        constants_variable: None,
    };
    for &place in &s.preamble {
        let w = s.operands(place);
        if s.op(place) != S::Variable {
            continue;
        }
        let Some(ty) = pointee(s, w[0]) else { continue };
        let is = |c: StorageClass| w[2] == c as u32;
        if is(StorageClass::PushConstant) {
            found.constants = layout(s, ty).ok_or_else(|| at(place, "push constants have no layout".to_owned()))?;
            found.constants_variable = Some(w[1]);
        }
        let binding = (s.decoration(w[1], Decoration::DescriptorSet), s.decoration(w[1], Decoration::Binding));
        let (Some(set), Some(binding)) = binding else { continue };
        let name =
            [w[1], ty].iter().find_map(|id| s.names.get(id).filter(|n| !n.is_empty())).cloned().unwrap_or_default();
        let buffer = is(StorageClass::StorageBuffer) || is(StorageClass::Uniform);
        let Some(layout) = layout(s, ty).filter(|_| buffer) else {
            return Err(at(
                place,
                format!("'{name}', binding {binding} of set {set}, is no buffer that can be filled here"),
            ));
        };
        let uniform = is(StorageClass::Uniform) && !s.is_marked(ty, Decoration::BufferBlock);
        found.buffers.push(BoundBuffer { set, binding, name, uniform, layout, variable: w[1] });
    }
    found.buffers.sort_by_key(|b| (b.set, b.binding));
    Ok(found)
}

impl Source {
    /// The number that a decoration of an id has.
    pub(crate) fn decoration(&self, id: u32, d: Decoration) -> Option<u32> {
        let all = self.decorations.get(&id)?.iter().map(|&at| (self.op(at), self.operands(at)));
        all.filter(|(op, w)| *op == S::Decorate && w[1] == d as u32).find_map(|(_, w)| w.get(2).copied())
    }

    pub(crate) fn is_marked(&self, id: u32, d: Decoration) -> bool {
        self.decorations
            .get(&id)
            .is_some_and(|all| all.iter().any(|&at| self.op(at) == S::Decorate && self.operands(at)[1] == d as u32))
    }

    /// The number that a decoration of a member has.
    pub(crate) fn member_decoration(&self, id: u32, member: u32, d: Decoration) -> Option<u32> {
        let all = self.decorations.get(&id)?.iter().map(|&at| (self.op(at), self.operands(at)));
        let found = all.filter(|(op, w)| *op == S::MemberDecorate && w[1] == member && w[2] == d as u32);
        found.map(|(_, w)| w.get(3).copied().unwrap_or(0)).next()
    }

    /// The number that a constant is where nobody specialises it.
    pub(crate) fn default(&self, id: u32) -> Option<u32> {
        self.default_within(id, 0)
    }

    fn default_within(&self, id: u32, level: u32) -> Option<u32> {
        let (op, w) = self.made(id).filter(|_| level < 32)?;
        let of = |i: usize| self.default_within(*w.get(i)?, level + 1);
        match op {
            S::Constant | S::SpecConstant if w.len() == 3 => Some(w[2]),
            S::ConstantNull => Some(0),
            S::SpecConstantTrue | S::ConstantTrue => Some(1),
            S::SpecConstantFalse | S::ConstantFalse => Some(0),
            // Sizes of arrays are computed like this.
            S::SpecConstantOp => match S::from_u32(*w.get(2)?)? {
                S::IAdd => Some(of(3)?.wrapping_add(of(4)?)),
                S::ISub => Some(of(3)?.wrapping_sub(of(4)?)),
                S::IMul => Some(of(3)?.wrapping_mul(of(4)?)),
                S::UDiv => of(3)?.checked_div(of(4)?),
                S::UMod => of(3)?.checked_rem(of(4)?),
                S::ShiftLeftLogical => of(3)?.checked_shl(of(4)?),
                S::ShiftRightLogical => of(3)?.checked_shr(of(4)?),
                S::BitwiseAnd => Some(of(3)? & of(4)?),
                S::BitwiseOr => Some(of(3)? | of(4)?),
                S::UGreaterThan => Some(u32::from(of(3)? > of(4)?)),
                S::ULessThan => Some(u32::from(of(3)? < of(4)?)),
                S::IEqual | S::LogicalEqual => Some(u32::from(of(3)? == of(4)?)),
                S::INotEqual | S::LogicalNotEqual => Some(u32::from(of(3)? != of(4)?)),
                S::LogicalAnd => Some(of(3)? & of(4)?),
                S::LogicalOr => Some(of(3)? | of(4)?),
                S::LogicalNot => Some(u32::from(of(3)? == 0)),
                S::SDiv => Some((of(3)? as i32).checked_div(of(4)? as i32)? as u32),
                S::CompositeExtract if w.len() == 5 => match self.made(w[3])? {
                    (S::ConstantComposite | S::SpecConstantComposite, parts) => {
                        self.default_within(*parts.get(2 + w[4] as usize)?, level + 1)
                    }
                    _ => None,
                },
                S::Select => of(if of(3)? != 0 { 4 } else { 5 }),
                _ => None,
            },
            _ => None,
        }
    }
}

fn workgroup(s: &Source, function: u32) -> [u32; 3] {
    let mut size = [1; 3];
    for &at in &s.preamble {
        if let (S::ExecutionMode, &[f, mode, x, y, z]) = (s.op(at), s.operands(at))
            && f == function
            && mode == ExecutionMode::LocalSize as u32
        {
            size = [x, y, z];
        }
    }
    workgroup_ids(s, Some(function)).last().map_or(size, |ids| ids.map(|id| s.default(id).unwrap_or(1)))
}

/// The ids of the constants that workgroups are as large as, of one function or of all; the last say most.
fn workgroup_ids(s: &Source, function: Option<u32>) -> Vec<[u32; 3]> {
    let mut found = Vec::new();
    for &at in &s.preamble {
        match (s.op(at), s.operands(at)) {
            (S::ExecutionModeId, &[f, mode, x, y, z])
                if function.is_none_or(|function| f == function) && mode == ExecutionMode::LocalSizeId as u32 =>
            {
                found.push([x, y, z]);
            }
            _ => {}
        }
    }
    // A constant that says so is stronger.
    for &at in &s.preamble {
        let w = s.operands(at);
        let says = w.get(1..3) == Some(&[Decoration::BuiltIn as u32, BuiltIn::WorkgroupSize as u32]);
        if s.op(at) == S::Decorate
            && says
            && let Some((S::ConstantComposite | S::SpecConstantComposite, &[_, _, x, y, z])) = s.made(w[0])
        {
            found.push([x, y, z]);
        }
    }
    found
}

/// The ids of the constants that say how large workgroups are.
pub(crate) fn size_constants(s: &Source) -> Vec<u32> {
    workgroup_ids(s, None).into_iter().flatten().collect()
}

/// Where the members of a type lie that has a layout.
pub(crate) struct Strides {
    /// From one element, or one column, to the next.
    pub(crate) array: u32,
    /// From one component of a column to the next, in matrices that lie by rows.
    pub(crate) component: u32,
}

/// The strides of an array or a matrix, which is this member of that struct, where it is one.
pub(crate) fn strides(s: &Source, ty: u32, member: Option<(u32, u32)>) -> Strides {
    let decorated = |d| member.and_then(|(of, i)| s.member_decoration(of, i, d));
    match s.made(ty) {
        Some((S::TypeMatrix, _)) => {
            let stride = decorated(Decoration::MatrixStride).unwrap_or(16);
            match decorated(Decoration::RowMajor) {
                Some(_) => Strides { array: 4, component: stride },
                None => Strides { array: stride, component: 4 },
            }
        }
        _ => Strides { array: s.decoration(ty, Decoration::ArrayStride).unwrap_or(0), component: 4 },
    }
}

fn layout(s: &Source, ty: u32) -> Option<BlockLayout> {
    let Some((S::TypeStruct, w)) = s.made(ty) else { return None };
    let mut all = BlockLayout::default();
    for (i, &member) in (0u32..).zip(&w[1..]) {
        let offset = s.member_decoration(ty, i, Decoration::Offset)?;
        if let Some((S::TypeRuntimeArray, &[_, of])) = s.made(member) {
            let mut inner = Vec::new();
            scalars(s, of, 0, Some((ty, i)), &mut inner, 0)?;
            let stride = s.decoration(member, Decoration::ArrayStride)?;
            all.array = Some((offset, stride, inner));
            continue;
        }
        scalars(s, member, offset, Some((ty, i)), &mut all.scalars, 0)?;
    }
    all.size = all.scalars.iter().map(|(at, n)| at.saturating_add(n.bytes())).max().unwrap_or(0);
    Some(all)
}

/// The scalars of a value that lies here; `within` is the struct and the member that the matrices in it get their strides from.
fn scalars(
    s: &Source,
    ty: u32,
    at: u32,
    within: Option<(u32, u32)>,
    to: &mut Vec<(u32, ScalarFormat)>,
    level: u32,
) -> Option<()> {
    if to.len() > MOST_SCALARS || level > 32 {
        return None;
    }
    match s.made(ty)? {
        (S::TypeInt, &[_, 8 | 16 | 32 | 64, _])
        | (S::TypeFloat, &[_, 16 | 32 | 64, ..])
        | (S::TypeVector | S::TypeMatrix | S::TypeArray | S::TypeStruct, _) => {}
        _ => return None,
    }
    match s.made(ty)? {
        (S::TypeInt, &[_, bits, sign]) => to.push((at, ScalarFormat::Int { bits, signed: sign == 1 })),
        (S::TypeFloat, &[_, bits, ..]) => to.push((at, ScalarFormat::Float(bits))),
        (S::TypeVector, &[_, of, n]) => {
            let width = match s.made(of)? {
                (S::TypeInt, &[_, bits, _]) | (S::TypeFloat, &[_, bits, ..]) => bits / 8,
                _ => return None,
            };
            (0..n).try_for_each(|i| scalars(s, of, at.checked_add(i.checked_mul(width)?)?, None, to, level + 1))?;
        }
        (S::TypeMatrix, &[_, column, n]) => {
            let st = strides(s, ty, within);
            let Some((S::TypeVector, &[_, of, m])) = s.made(column) else { return None };
            for c in 0..n {
                for r in 0..m {
                    let place = c.checked_mul(st.array)?.checked_add(r.checked_mul(st.component)?)?;
                    scalars(s, of, at.checked_add(place)?, None, to, level + 1)?;
                }
            }
        }
        (S::TypeArray, &[_, of, n]) => {
            let stride = strides(s, ty, None).array;
            for i in 0..s.default(n)? {
                scalars(s, of, at.checked_add(i.checked_mul(stride)?)?, within, to, level + 1)?;
            }
        }
        (S::TypeStruct, w) => {
            for (i, &member) in (0u32..).zip(&w[1..]) {
                let offset = s.member_decoration(ty, i, Decoration::Offset)?;
                scalars(s, member, at.checked_add(offset)?, Some((ty, i)), to, level + 1)?;
            }
        }
        _ => return None,
    }
    Some(())
}

/// The places of the scalars of a value of this type in a buffer; `within` is the member of a struct that it is.
pub(crate) fn member_scalars(s: &Source, ty: u32, within: Option<(u32, u32)>) -> Option<Vec<(u32, ScalarFormat)>> {
    let mut all = Vec::new();
    scalars(s, ty, 0, within, &mut all, 0)?;
    Some(all)
}
