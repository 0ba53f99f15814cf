//! Kernels on which optimisers run out of ids: many variables that live across many joins, few of which change any of them.
//! `impasto bench kernel` measures us on them.

use std::fmt;
use std::str::FromStr;

use crate::{BufferData, Builder, Kernel, KernelError, Launch, Scalar};

/// Invocations that run one of these kernels; each works on elements of its own.
const INVOCATIONS: u32 = 2;

/// One kernel of the series, as text `sparse 2048 2048 2` or `loop 1700 1700 2`.
///
/// ```
/// use impasto_kernel::blowup::Case;
/// let case: Case = "sparse 300 200 2".parse()?;
/// assert_eq!(case, Case { repeats: false, variables: 300, joins: 200, changes: 2 });
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Whether the joins are those of loops, not of ifs.
    pub repeats: bool,
    /// Variables that live from the beginning to the end.
    pub variables: u32,
    /// Ifs or loops, one after the other.
    pub joins: u32,
    /// Variables that each of them changes, in turn.
    pub changes: u32,
}

/// The series on which figures are given.
pub const SERIES: [Case; 6] = [
    Case { repeats: false, variables: 500, joins: 500, changes: 2 },
    Case { repeats: false, variables: 2048, joins: 2048, changes: 2 },
    Case { repeats: false, variables: 8000, joins: 530, changes: 43 },
    Case { repeats: true, variables: 200, joins: 200, changes: 2 },
    Case { repeats: true, variables: 1700, joins: 1700, changes: 2 },
    Case { repeats: false, variables: 20000, joins: 2000, changes: 40 },
];

impl Case {
    /// Elements of each invocation.
    fn elements(self) -> u32 {
        self.variables.max(self.joins)
    }

    /// The kernel, as the builder writes it.
    pub fn kernel(self) -> Result<Kernel, KernelError> {
        Builder::kernel(if self.repeats { "loop" } else { "sparse" }, [INVOCATIONS, 1, 1], |k| {
            let x = k.buffer_mut::<f32>("x");
            let gid = k.global_id(0);
            let trips = gid + 1u32;
            let base = gid * self.elements();
            let vars: Vec<_> = (0..self.variables).map(|i| k.var(x.load(base + i))).collect();
            let mut turn = vars.iter().cycle();
            for i in 0..self.joins {
                let factor = x.load(base + i);
                let positive = factor.gt(0.0);
                let mut body = || {
                    for var in turn.by_ref().take(self.changes as usize) {
                        var.set(var.get() * factor);
                    }
                };
                if self.repeats {
                    k.for_(0u32, trips, |_, _| body());
                } else {
                    k.if_(positive, body);
                }
            }
            for (i, var) in vars.iter().enumerate() {
                x.store(base + i as u32, var.get());
            }
        })
    }

    /// Inputs for it: factors near one, half of them negative.
    pub fn launch(self) -> Launch {
        let mut data = BufferData::zeros(Scalar::F32, (self.elements() * INVOCATIONS) as usize);
        for (i, b) in data.bits.iter_mut().enumerate() {
            let x = (1.0 + (i % 97) as f32 / 1024.0) * if i * 7 % 13 < 6 { -1.0 } else { 1.0 };
            *b = x.to_bits().into();
        }
        Launch::new([1, 1, 1], vec![data])
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.repeats { "loop" } else { "sparse" };
        write!(f, "{kind} {} {} {}", self.variables, self.joins, self.changes)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        let wrong =
            || format!("'{text}' is no such kernel; one is written as 'sparse 2048 2048 2' or 'loop 200 200 2'");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [kind, variables, joins, changes] = words[..] else { return Err(wrong()) };
        let number = |text: &str| text.parse().ok().filter(|n| (1..=1_000_000).contains(n)).ok_or_else(wrong);
        let repeats = match kind {
            "loop" => true,
            "sparse" => false,
            _ => return Err(wrong()),
        };
        Ok(Case { repeats, variables: number(variables)?, joins: number(joins)?, changes: number(changes)? })
    }
}
