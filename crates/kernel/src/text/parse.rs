//! Text to kernel. What it accepts has well-formed names and nesting; types and scopes are [`verify`](crate::verify)'s.

use std::collections::HashMap;
use std::str::FromStr;

use half::{bf16, f16};

use super::lex::{Token, lex};
use crate::error::KernelError;
use crate::ir::{
    Access, Assembler, Atomic, BinaryOp, Builtin, Compare, Kernel, Matrix, MatrixLayout, MatrixUse, MemoryDecl,
    MemoryId, OpKind, RegionId, Scalar, ScalarParam, Shape, Space, Subgroup, Ty, UnaryOp, Value, VarId,
    WarpgroupProduct,
};
use crate::verify::MAX_DEPTH;

/// Types nest this deep in text; it keeps the reader's stack small.
const MAX_TYPE_DEPTH: usize = 16;

impl FromStr for Kernel {
    type Err = KernelError;

    fn from_str(text: &str) -> Result<Kernel, KernelError> {
        let tokens = lex(text).map_err(|(line, problem)| KernelError::Parse { line, problem })?;
        let mut p = Parser {
            tokens,
            at: 0,
            asm: Assembler::new(Kernel::empty("", [1; 3])),
            values: HashMap::new(),
            loops: HashMap::new(),
            vars: HashMap::new(),
            params: HashMap::new(),
            memories: HashMap::new(),
        };
        match p.kernel() {
            Ok(()) => Ok(p.asm.finish()),
            Err(problem) => Err(KernelError::Parse { line: p.tokens[p.at.saturating_sub(1)].1, problem }),
        }
    }
}

struct Parser<'a> {
    tokens: Vec<(Token<'a>, usize)>,
    at: usize,
    asm: Assembler,
    values: HashMap<u32, Value>,
    loops: HashMap<u32, RegionId>,
    vars: HashMap<&'a str, VarId>,
    params: HashMap<&'a str, u32>,
    memories: HashMap<&'a str, MemoryId>,
}

type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.at].0
    }

    fn next(&mut self) -> Token<'a> {
        let t = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        t
    }

    fn is(&mut self, c: char) -> bool {
        let yes = self.peek() == Token::Mark(c);
        if yes {
            self.next();
        }
        yes
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        if self.is(c) { Ok(()) } else { Err(format!("expected '{c}', found {:?}", self.peek())) }
    }

    fn word(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Token::Word(w) => {
                self.next();
                Ok(w)
            }
            other => Err(format!("expected a name, found {other:?}")),
        }
    }

    fn keyword(&mut self, want: &str) -> Parsed<()> {
        match self.word()? {
            w if w == want => Ok(()),
            w => Err(format!("expected '{want}', found '{w}'")),
        }
    }

    fn number<T: FromStr>(&mut self) -> Parsed<T> {
        match self.next() {
            Token::Number(n) => n.parse().map_err(|_| format!("'{n}' does not fit here")),
            other => Err(format!("expected a number, found {other:?}")),
        }
    }

    fn kernel(&mut self) -> Parsed<()> {
        self.keyword("kernel")?;
        let name = self.word()?.to_owned();
        self.expect('(')?;
        let mut workgroup = [1; 3];
        for (i, n) in workgroup.iter_mut().enumerate() {
            if i > 0 {
                self.expect(',')?;
            }
            *n = self.number()?;
        }
        self.expect(')')?;
        self.expect('{')?;
        (self.asm.kernel.name, self.asm.kernel.workgroup) = (name, workgroup);
        while let Token::Word(w @ ("scalar" | "buffer" | "shared" | "private" | "registers")) = self.peek() {
            self.next();
            self.declaration(w)?;
        }
        self.region(1)?;
        match self.peek() {
            Token::End => Ok(()),
            other => Err(format!("expected the end, found {other:?}")),
        }
    }

    fn declaration(&mut self, what: &str) -> Parsed<()> {
        let name = self.word()?;
        if self.params.contains_key(name) || self.memories.contains_key(name) {
            return Err(format!("'{name}' is declared twice"));
        }
        self.expect(':')?;
        let ty = self.ty(0)?;
        if what == "scalar" {
            let ty = ty.as_scalar().ok_or("a parameter is a scalar")?;
            self.params.insert(name, self.asm.kernel.params.len() as u32);
            self.asm.kernel.params.push(ScalarParam { name: name.to_owned(), ty });
            return Ok(());
        }
        let space = match what {
            "buffer" => match self.word()? {
                "read" => Space::Buffer(Access::Read),
                "write" => Space::Buffer(Access::ReadWrite),
                "tape" => Space::Buffer(Access::Tape),
                "scratch" => Space::Buffer(Access::Scratch),
                other => return Err(format!("a buffer is 'read', 'write', 'tape' or 'scratch', not '{other}'")),
            },
            _ => {
                self.expect('*')?;
                let n = self.number()?;
                match what {
                    "shared" => Space::Workgroup(n),
                    "registers" => Space::Registers(n),
                    _ => Space::Private(n),
                }
            }
        };
        self.memories.insert(name, MemoryId(self.asm.kernel.memories.len() as u32));
        self.asm.kernel.memories.push(MemoryDecl { name: name.to_owned(), ty, space });
        Ok(())
    }

    fn ty(&mut self, depth: usize) -> Parsed<Ty> {
        if depth > MAX_TYPE_DEPTH {
            return Err(format!("types nest deeper than {MAX_TYPE_DEPTH}"));
        }
        let shape = match self.next() {
            Token::Mark('[') => {
                let t = self.ty(depth + 1)?;
                self.expect(';')?;
                let n = self.number()?;
                self.expect(']')?;
                Shape::Array(t, n)
            }
            Token::Mark('{') => {
                let mut members = vec![self.ty(depth + 1)?];
                while self.is(',') {
                    members.push(self.ty(depth + 1)?);
                }
                self.expect('}')?;
                Shape::Struct(members)
            }
            Token::Word(w) if find(&MatrixUse::ALL, w).is_some() => {
                let role = find(&MatrixUse::ALL, w).unwrap_or(MatrixUse::A);
                self.expect('(')?;
                let scalar = self.ty(depth + 1)?.as_scalar().ok_or("the elements of a matrix are scalars")?;
                self.expect(',')?;
                let rows = self.number()?;
                self.expect(',')?;
                let columns = self.number()?;
                self.expect(')')?;
                Shape::Matrix(Matrix { role, scalar, rows, columns })
            }
            Token::Word(w) => {
                let (name, n) = w.rsplit_once('x').map_or((w, 1), |(a, b)| (a, b.parse().unwrap_or(0)));
                let s = Scalar::ALL.into_iter().find(|s| s.name() == name);
                match (s, n) {
                    (Some(s), 1) => Shape::Scalar(s),
                    (Some(s), n) => Shape::Vector(s, n),
                    (None, _) => return Err(format!("'{w}' is no type")),
                }
            }
            other => return Err(format!("expected a type, found {other:?}")),
        };
        self.asm.kernel.intern(shape).ok_or_else(|| "a vector has 2, 3 or 4 components".to_owned())
    }

    fn value(&mut self) -> Parsed<Value> {
        match self.peek() {
            Token::Value(n) => {
                let v = *self.values.get(&n).ok_or_else(|| format!("%{n} is not defined before this line"))?;
                self.next();
                Ok(v)
            }
            other => Err(format!("expected a value, found {other:?}")),
        }
    }

    fn list(&mut self) -> Parsed<Vec<Value>> {
        let mut list = Vec::new();
        while matches!(self.peek(), Token::Value(_)) {
            list.push(self.value()?);
            if !self.is(',') {
                break;
            }
        }
        Ok(list)
    }

    fn define(&mut self, name: u32, v: Value) -> Parsed<()> {
        match self.values.insert(name, v) {
            Some(_) => Err(format!("%{name} is defined twice")),
            None => Ok(()),
        }
    }

    /// Ops up to the closing brace, into the innermost open region.
    fn region(&mut self, depth: usize) -> Parsed<()> {
        if depth > MAX_DEPTH {
            return Err(format!("regions nest deeper than {MAX_DEPTH}"));
        }
        while !self.is('}') {
            if self.peek() == Token::End {
                return Err("a '}' is missing".to_owned());
            }
            self.op(depth)?;
        }
        Ok(())
    }

    fn memory(&mut self) -> Parsed<MemoryId> {
        let name = self.word()?;
        self.memories.get(name).copied().ok_or_else(|| format!("there is no buffer or array '{name}'"))
    }

    fn var(&mut self) -> Parsed<VarId> {
        let name = self.word()?;
        self.vars.get(name).copied().ok_or_else(|| format!("there is no variable '{name}'"))
    }

    fn label(&mut self) -> Parsed<u32> {
        match self.next() {
            Token::Label(n) => Ok(n),
            other => Err(format!("expected the label of a loop, found {other:?}")),
        }
    }

    fn op(&mut self, depth: usize) -> Parsed<()> {
        if self.asm.ended() {
            return Err("nothing stands after the terminator of a region".to_owned());
        }
        let mut names = Vec::new();
        while let Token::Value(n) = self.peek() {
            self.next();
            names.push(n);
            if !self.is(',') {
                break;
            }
        }
        if !names.is_empty() {
            self.expect('=')?;
        }
        let name = self.word()?;
        let mut args = Vec::new();
        let mut literal = None;
        let kind = match name {
            "const" => {
                literal = Some(self.next());
                OpKind::Const(0)
            }
            "param" => {
                let name = self.word()?;
                OpKind::Param(*self.params.get(name).ok_or_else(|| format!("there is no parameter '{name}'"))?)
            }
            "load" => {
                let m = self.memory()?;
                self.expect('[')?;
                args.push(self.value()?);
                self.expect(']')?;
                OpKind::Load(m)
            }
            "matrix_load" | "matrix_store" => {
                let m = self.memory()?;
                self.expect('[')?;
                args = self.list()?;
                self.expect(']')?;
                let word = self.word()?;
                let layout =
                    find(MatrixLayout::ALL, word).ok_or_else(|| format!("'{word}' is no layout: row or column"))?;
                if name == "matrix_store" {
                    self.expect(',')?;
                    args.extend(self.list()?);
                }
                if name == "matrix_load" { OpKind::MatrixLoad(m, layout) } else { OpKind::MatrixStore(m, layout) }
            }
            "async_copy" => {
                let mut memories = [MemoryId(0); 2];
                for m in &mut memories {
                    *m = self.memory()?;
                    self.expect('[')?;
                    args.push(self.value()?);
                    self.expect(']')?;
                    self.expect(',')?;
                }
                args.push(self.value()?);
                OpKind::AsyncCopy(memories[0], memories[1])
            }
            "pack" => {
                let half = self.scalar()?;
                args = self.list()?;
                OpKind::Pack(half)
            }
            "async_wait" => OpKind::AsyncWait(self.number()?),
            "warpgroup_wait" => OpKind::WarpgroupWait(self.number()?),
            "warpgroup_mul_add" => OpKind::WarpgroupMulAdd(self.warpgroup_product(&mut args)?),
            "len" => OpKind::Len(self.memory()?),
            "var" => {
                let name = self.word()?;
                self.expect(':')?;
                let ty = self.ty(0)?;
                let id = VarId(self.asm.kernel.vars.len() as u32);
                self.asm.kernel.vars.push(ty);
                if self.vars.insert(name, id).is_some() {
                    return Err(format!("the variable '{name}' is declared twice"));
                }
                self.expect('=')?;
                args.push(self.value()?);
                OpKind::Var(id)
            }
            "get" => OpKind::Get(self.var()?),
            "set" => {
                let v = self.var()?;
                self.expect('=')?;
                args.push(self.value()?);
                OpKind::Set(v)
            }
            "extract" | "insert" => {
                args.push(self.value()?);
                self.expect('[')?;
                let i = self.number()?;
                self.expect(']')?;
                if name == "insert" {
                    self.expect(',')?;
                    args.push(self.value()?);
                }
                if name == "insert" { OpKind::Insert(i) } else { OpKind::Extract(i) }
            }
            "if" | "switch" | "loop" | "for" => return self.structure(name, &names, depth),
            "continue" | "break" => {
                let n = self.label()?;
                let target = *self.loops.get(&n).ok_or_else(|| format!("@{n} is no loop around this"))?;
                args = self.list()?;
                if name == "break" { OpKind::Break(target) } else { OpKind::Continue(target) }
            }
            _ => match (memory_op(name), plain_op(name)) {
                (Some(of), _) => {
                    let m = self.memory()?;
                    self.expect('[')?;
                    args.push(self.value()?);
                    self.expect(']')?;
                    self.expect(',')?;
                    args.extend(self.list()?);
                    of.map_or(OpKind::Store(m), |a| OpKind::Atomic(m, a))
                }
                (None, Some(OpKind::Builtin(b, _))) => {
                    let mut axis = 0;
                    if b.has_axes() {
                        self.expect('.')?;
                        axis = match self.word()? {
                            "x" => 0,
                            "y" => 1,
                            "z" => 2,
                            other => return Err(format!("an axis is x, y or z, not '{other}'")),
                        };
                    }
                    OpKind::Builtin(b, axis)
                }
                (None, Some(kind)) if kind.is_barrier() || matches!(kind, OpKind::Return | OpKind::Unreachable) => kind,
                (None, Some(kind)) => {
                    args = self.list()?;
                    kind
                }
                (None, None) => return Err(format!("'{name}' is no op")),
            },
        };
        let types = self.result_types(names.len())?;
        let kind = match (literal, types.first()) {
            (Some(token), Some(ty)) => OpKind::Const(self.constant(token, *ty)?),
            (Some(_), None) => return Err("a constant has a result".to_owned()),
            _ => kind,
        };
        let op = self.asm.push(kind, &args, &types);
        let results = self.asm.kernel.results(op);
        names.into_iter().zip(results).try_for_each(|(n, v)| self.define(n, v))
    }

    /// The name of a scalar type.
    fn scalar(&mut self) -> Parsed<Scalar> {
        let word = self.word()?;
        Scalar::ALL.into_iter().find(|s| s.name() == word).ok_or_else(|| format!("'{word}' is no scalar"))
    }

    /// `n steps factor layout sums, a[index], b[index], add`; without an index of `a` where that is in registers.
    fn warpgroup_product(&mut self, args: &mut Vec<Value>) -> Parsed<WarpgroupProduct> {
        let (n, steps) = (self.number()?, self.number()?);
        let factor = self.scalar()?;
        let word = self.word()?;
        let layout = find(MatrixLayout::ALL, word).ok_or_else(|| format!("'{word}' is no layout: row or column"))?;
        let sums = self.memory()?;
        let mut tiles = [MemoryId(0); 2];
        for tile in &mut tiles {
            self.expect(',')?;
            *tile = self.memory()?;
            self.expect('[')?;
            args.extend(self.list()?);
            self.expect(']')?;
        }
        self.expect(',')?;
        args.push(self.value()?);
        Ok(WarpgroupProduct { sums, a: tiles[0], b: tiles[1], n, steps, factor, layout })
    }

    fn result_types(&mut self, n: usize) -> Parsed<Vec<Ty>> {
        let mut types = Vec::new();
        for i in 0..n {
            self.expect(if i == 0 { ':' } else { ',' })?;
            types.push(self.ty(0)?);
        }
        Ok(types)
    }

    fn constant(&mut self, token: Token<'_>, ty: Ty) -> Parsed<u32> {
        let wrong = || format!("{token:?} is no constant of this type");
        let ty = ty.as_scalar().ok_or("a constant is a scalar")?;
        let bits = match (token, ty) {
            (Token::Word("true"), Scalar::Bool) => 1,
            (Token::Word("false"), Scalar::Bool) => 0,
            (Token::Number(n), _) if n.starts_with("0x") => u64::from_str_radix(&n[2..], 16).map_err(|_| wrong())?,
            (Token::Number(n), Scalar::I32) => n.parse::<i32>().map_err(|_| wrong())? as u32 as u64,
            (Token::Number(n), Scalar::I64) => n.parse::<i64>().map_err(|_| wrong())? as u64,
            (Token::Number(n), Scalar::U32) => n.parse::<u32>().map_err(|_| wrong())?.into(),
            (Token::Number(n), Scalar::U64) => n.parse::<u64>().map_err(|_| wrong())?,
            (Token::Number(n), Scalar::F32 | Scalar::F16 | Scalar::Bf16) => {
                let x = n.parse::<f32>().map_err(|_| wrong())?;
                match ty {
                    Scalar::F16 => f16::from_f32(x).to_bits().into(),
                    Scalar::Bf16 => bf16::from_f32(x).to_bits().into(),
                    _ => x.to_bits().into(),
                }
            }
            _ => return Err(wrong()),
        };
        if bits & !ty.mask() != 0 {
            return Err(wrong());
        }
        Ok(self.asm.const_number(bits))
    }

    /// `(%1: f32 = %0, ..)`: names, types and first values.
    fn carried(&mut self, names: &mut Vec<u32>, types: &mut Vec<Ty>, args: &mut Vec<Value>) -> Parsed<()> {
        self.expect('(')?;
        while let Token::Value(n) = self.peek() {
            self.next();
            names.push(n);
            self.expect(':')?;
            types.push(self.ty(0)?);
            self.expect('=')?;
            args.push(self.value()?);
            if !self.is(',') {
                break;
            }
        }
        self.expect(')')
    }

    fn structure(&mut self, name: &str, names: &[u32], depth: usize) -> Parsed<()> {
        let mut args = Vec::new();
        let mut regions = Vec::new();
        let (kind, types) = match name {
            "if" => {
                args.push(self.value()?);
                let types = self.result_types(names.len())?;
                for i in 0..2 {
                    if i == 1 {
                        self.keyword("else")?;
                    }
                    self.expect('{')?;
                    self.asm.open(&[]);
                    self.region(depth + 1)?;
                    regions.push(self.asm.close());
                }
                (OpKind::If, types)
            }
            "switch" => {
                args.push(self.value()?);
                let types = self.result_types(names.len())?;
                let mut cases = Vec::new();
                self.expect('{')?;
                loop {
                    let word = self.word()?;
                    while let Token::Number(_) = self.peek() {
                        cases.push((self.number()?, regions.len() as u32));
                        if !self.is(',') {
                            break;
                        }
                    }
                    self.expect('{')?;
                    self.asm.open(&[]);
                    self.region(depth + 1)?;
                    regions.push(self.asm.close());
                    match word {
                        "case" => {}
                        "default" => break,
                        other => return Err(format!("expected 'case' or 'default', found '{other}'")),
                    }
                }
                self.expect('}')?;
                (OpKind::Switch(self.asm.case_table(cases)), types)
            }
            _ => {
                let label = self.label()?;
                let (mut inner, mut inner_types, mut step) = (Vec::new(), Vec::new(), 0);
                if name == "for" {
                    match self.next() {
                        Token::Value(n) => inner.push(n),
                        other => return Err(format!("expected the index, found {other:?}")),
                    }
                    self.expect(':')?;
                    inner_types.push(self.ty(0)?);
                    self.expect('=')?;
                    args.push(self.value()?);
                    self.keyword("to")?;
                    args.push(self.value()?);
                    self.keyword("step")?;
                    step = self.number()?;
                }
                self.carried(&mut inner, &mut inner_types, &mut args)?;
                let types = self.result_types(names.len())?;
                self.expect('{')?;
                let region = self.asm.open(&inner_types);
                let values: Vec<Value> = self.asm.kernel.region_args(region).collect();
                inner.into_iter().zip(values).try_for_each(|(n, v)| self.define(n, v))?;
                if self.loops.insert(label, region).is_some() {
                    return Err(format!("the label @{label} is used twice"));
                }
                self.region(depth + 1)?;
                regions.push(self.asm.close());
                (if name == "for" { OpKind::For(step) } else { OpKind::Loop }, types)
            }
        };
        let op = self.asm.push_structure(kind, &args, &types, &regions);
        let results = self.asm.kernel.results(op);
        names.iter().zip(results).try_for_each(|(&n, v)| self.define(n, v))
    }
}

fn find<T: Copy>(all: &[(T, &str)], name: &str) -> Option<T> {
    all.iter().find(|x| x.1 == name).map(|x| x.0)
}

/// Ops written `name memory[index], values`: a store, or an atomic.
fn memory_op(name: &str) -> Option<Option<Atomic>> {
    if name == "store" { Some(None) } else { find(Atomic::ALL, name).map(Some) }
}

/// Ops written as their name and operands.
fn plain_op(name: &str) -> Option<OpKind> {
    let fixed = match name {
        "fma" => Some(OpKind::Fma),
        "select" => Some(OpKind::Select),
        "convert" => Some(OpKind::Convert),
        "bitcast" => Some(OpKind::Bitcast),
        "custom" => Some(OpKind::Custom),
        "make" => Some(OpKind::Make),
        "barrier" => Some(OpKind::Barrier),
        "subgroup_barrier" => Some(OpKind::SubgroupBarrier),
        "async_commit" => Some(OpKind::AsyncCommit),
        "matrix_fill" => Some(OpKind::MatrixFill),
        "matrix_scale" => Some(OpKind::MatrixScale),
        "matrix_mul_add" => Some(OpKind::MatrixMulAdd),
        "yield" => Some(OpKind::Yield),
        "return" => Some(OpKind::Return),
        "unreachable" => Some(OpKind::Unreachable),
        _ => None,
    };
    fixed
        .or_else(|| find(UnaryOp::ALL, name).map(OpKind::Unary))
        .or_else(|| find(BinaryOp::ALL, name).map(OpKind::Binary))
        .or_else(|| find(Compare::ALL, name).map(OpKind::Compare))
        .or_else(|| find(Subgroup::ALL, name).map(OpKind::Subgroup))
        .or_else(|| find(Builtin::ALL, name).map(|b| OpKind::Builtin(b, 0)))
}
