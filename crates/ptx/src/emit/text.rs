//! The text of one kernel: registers, instructions, labels.
//!
//! Registers have sizes and no types: `%p` are predicates, `%h` have 16 bits, `%r` 32, `%l` 64. What the bits mean is the instruction's business, so
//! that a bitcast is no instruction. A register has one instruction that writes it, or moves only: joins of control flow are moves.

use std::collections::HashMap;
use std::fmt::Write;

use impasto_kernel::Scalar;

/// What a register can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    Pred,
    B16,
    B32,
    B64,
}

impl Class {
    pub(super) const ALL: [Class; 4] = [Class::Pred, Class::B16, Class::B32, Class::B64];

    pub(super) fn of(s: Scalar) -> Class {
        match s.bits() {
            1 => Class::Pred,
            16 => Class::B16,
            32 => Class::B32,
            _ => Class::B64,
        }
    }

    /// The letter of its registers.
    pub(super) fn letter(self) -> char {
        ['p', 'h', 'r', 'l'][self as usize]
    }

    /// Its type without a meaning.
    pub(super) fn bits(self) -> &'static str {
        ["pred", "b16", "b32", "b64"][self as usize]
    }
}

/// What an instruction takes: a register, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    Reg(Class, u32),
    Imm(Class, u64),
}

impl Operand {
    pub(super) fn class(self) -> Class {
        match self {
            Operand::Reg(class, _) | Operand::Imm(class, _) => class,
        }
    }

    /// The number, if it is one.
    pub(super) fn constant(self) -> Option<u64> {
        match self {
            Operand::Imm(_, bits) => Some(bits),
            Operand::Reg(..) => None,
        }
    }
}

/// A 32-bit number.
pub(super) fn imm(x: u32) -> Operand {
    Operand::Imm(Class::B32, x.into())
}

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

/// The body of a kernel, as it is written.
#[derive(Default)]
pub(super) struct Text {
    pub(super) body: String,
    /// The next register of each class.
    pub(super) next: [u32; 4],
    /// Branches to each label.
    uses: Vec<u32>,
    /// A branch that was not written yet: it is none, if its label comes next.
    jump: Option<Label>,
    /// Whether control cannot come to what is written next.
    dead: bool,
}

impl Text {
    /// A new register.
    pub(super) fn reg(&mut self, class: Class) -> Operand {
        let n = self.next[class as usize];
        self.next[class as usize] += 1;
        Operand::Reg(class, n)
    }

    pub(super) fn label(&mut self) -> Label {
        self.uses.push(0);
        Label(self.uses.len() as u32 - 1)
    }

    /// Whether control comes to what is written next.
    pub(super) fn is_live(&self) -> bool {
        !self.dead
    }

    fn flush(&mut self) {
        if let Some(Label(l)) = self.jump.take() {
            self.uses[l as usize] += 1;
            let _ = writeln!(self.body, "\tbra $L{l};");
        }
    }

    /// Goes on at a label.
    pub(super) fn bra(&mut self, to: Label) {
        if !self.dead {
            self.jump = Some(to);
            self.dead = true;
        }
    }

    /// Goes on at a label where a predicate is `when`.
    pub(super) fn bra_if(&mut self, p: Operand, when: bool, to: Label) {
        match p {
            Operand::Imm(_, bits) if (bits != 0) == when => self.bra(to),
            Operand::Imm(..) => {}
            p if !self.dead => {
                self.uses[to.0 as usize] += 1;
                let _ = write!(self.body, "\t@{}", if when { "" } else { "!" });
                self.operand(p, "pred");
                let _ = writeln!(self.body, " bra $L{};", to.0);
            }
            _ => {}
        }
    }

    /// Writes what was held back.
    pub(super) fn finish(&mut self) {
        self.flush();
    }

    /// Code that is only reached by branches to this label: it vanishes if there are none.
    pub(super) fn place(&mut self, label: Label) {
        if self.jump == Some(label) {
            self.jump = None;
            self.dead = false;
        }
        self.flush();
        if self.uses[label.0 as usize] > 0 {
            let _ = writeln!(self.body, "$L{}:", label.0);
            self.dead = false;
        }
    }

    /// A label that a later branch may go back to.
    pub(super) fn place_head(&mut self, label: Label) {
        self.flush();
        let _ = writeln!(self.body, "$L{}:", label.0);
    }

    /// Ends the invocation.
    pub(super) fn ret(&mut self) {
        if !self.dead {
            self.body.push_str("\tret;\n");
            self.dead = true;
        }
    }

    /// A line as it is.
    pub(super) fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.flush();
        if !self.dead {
            self.body.push('\t');
            let _ = self.body.write_fmt(line);
            self.body.push_str(";\n");
        }
    }

    /// An operand of an instruction of this type: numbers of floats are written by their bits.
    pub(super) fn operand(&mut self, o: Operand, ty: &str) {
        let body = &mut self.body;
        let _ = match o {
            Operand::Reg(class, n) => write!(body, "%{}{n}", class.letter()),
            Operand::Imm(_, bits) if ty == "f32" => write!(body, "0f{:08X}", bits as u32),
            Operand::Imm(Class::B64, bits) => write!(body, "{}", bits as i64),
            Operand::Imm(_, bits) if ty == "s32" => write!(body, "{}", bits as i32),
            Operand::Imm(_, bits) => write!(body, "{bits}"),
        };
    }

    /// An instruction with these operands, the result first.
    pub(super) fn ins(&mut self, op: &str, operands: &[Operand]) {
        self.flush();
        if self.dead {
            return;
        }
        // The last type is that of the operands that may be numbers.
        let ty = op.rsplit('.').next().unwrap_or("");
        self.body.push('\t');
        self.body.push_str(op);
        for (i, &o) in operands.iter().enumerate() {
            self.body.push_str(if i == 0 { " " } else { ", " });
            self.operand(o, ty);
        }
        self.body.push_str(";\n");
    }

    /// An instruction whose result is a new register.
    pub(super) fn make(&mut self, class: Class, op: &str, operands: &[Operand]) -> Operand {
        let d = self.reg(class);
        let mut all = Vec::with_capacity(operands.len() + 1);
        all.push(d);
        all.extend_from_slice(operands);
        self.ins(op, &all);
        d
    }

    /// A register that holds this.
    pub(super) fn in_reg(&mut self, o: Operand) -> Operand {
        match o {
            Operand::Reg(..) => o,
            Operand::Imm(class, _) => {
                let d = self.reg(class);
                self.mov(d, o);
                d
            }
        }
    }

    pub(super) fn mov(&mut self, to: Operand, from: Operand) {
        let class = to.class();
        self.ins(["mov.pred", "mov.b16", "mov.b32", "mov.b64"][class as usize], &[to, from]);
    }

    /// Moves all at once: what is overwritten and still needed is moved aside first.
    pub(super) fn mov_all(&mut self, to: &[Operand], from: &[Operand]) {
        let pairs: Vec<(Operand, Operand)> =
            to.iter().copied().zip(from.iter().copied()).filter(|(a, b)| a != b).collect();
        let order: HashMap<Operand, usize> = pairs.iter().enumerate().map(|(i, (to, _))| (*to, i)).collect();
        let aside = |i: usize, source: Operand| order.get(&source).is_some_and(|&written| written < i);
        let mut sources = Vec::with_capacity(pairs.len());
        for (i, &(_, source)) in pairs.iter().enumerate() {
            sources.push(if aside(i, source) {
                let copy = self.reg(source.class());
                self.mov(copy, source);
                copy
            } else {
                source
            });
        }
        for (&(to, _), from) in pairs.iter().zip(sources) {
            self.mov(to, from);
        }
    }
}

/// Registers or numbers in braces.
pub(super) fn braces(operands: &[Operand]) -> String {
    let mut text = Text::default();
    for (i, &o) in operands.iter().enumerate() {
        text.body.push_str(if i == 0 { "{" } else { ", " });
        text.operand(o, "");
    }
    text.body.push('}');
    text.body
}

/// One operand as text.
pub(super) fn show(o: Operand) -> String {
    let mut text = Text::default();
    text.operand(o, "");
    text.body
}
