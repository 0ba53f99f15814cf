//! Launches that follow each other, taken backwards: a simulation of many steps. Buffers have versions: a launch makes a new version of what it
//! writes, and versions are shared, so keeping a state costs what changes after it. States are kept every few launches; going backwards, the
//! launches between two of them are run again. What that takes is known in advance.

use std::collections::HashMap;
use std::sync::Arc;

use impasto_kernel::KernelError;
use impasto_kernel::exec::{BufferData, Launch, execute};
use impasto_kernel::ir::{Access, Kernel, Scalar, Space};

use super::clear::clear;
use super::{Differentiate, Grad, Purpose};

/// A kernel of a chain, with its derivatives.
#[derive(Debug)]
struct Stage {
    kernel: Kernel,
    grad: Option<Grad>,
    clear: Option<(Kernel, Vec<Purpose>)>,
    /// Which of its buffers it writes.
    writes: Vec<bool>,
}

#[derive(Debug)]
struct Step {
    stage: usize,
    launch: Launch,
    buffers: Vec<usize>,
}

/// What taking a chain backwards takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of all versions of buffers that are held at once, at most; adjoints and tapes not counted.
    pub bytes: u64,
    /// Launches of the primal, the first run included.
    pub launches: usize,
}

/// Kernels, buffers, and launches in order.
///
/// ```
/// use impasto_autodiff::Chain;
/// use impasto_kernel::{Builder, BufferData};
/// let twice = Builder::kernel("square", [1, 1, 1], |k| {
///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
///     y.store(0, x.load(0) * x.load(0));
/// })?;
/// let mut chain = Chain::new();
/// let buffers = [chain.buffer([3f32][..].into()), chain.buffer([0f32][..].into())];
/// let square = chain.kernel(&twice)?;
/// chain.launch(square, [1, 1, 1], &[], &buffers)?;
/// chain.launch(square, [1, 1, 1], &[], &[buffers[1], buffers[0]])?;
/// let (values, adjoints) = chain.differentiate(&[(buffers[0], [1f32][..].into())], 1)?;
/// assert_eq!(values[buffers[0]].to_f32(), Some(vec![81.0]));
/// assert_eq!(adjoints[buffers[0]].to_f32(), Some(vec![108.0]));
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
#[derive(Debug, Default)]
pub struct Chain {
    stages: Vec<Stage>,
    buffers: Vec<Arc<BufferData>>,
    steps: Vec<Step>,
    /// Every f32 is computed as an f64, as in [`Launch`].
    pub wide: bool,
}

type State = Vec<Arc<BufferData>>;

impl Chain {
    /// Nothing yet.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// Adds a buffer with what it holds at the start; gives its number.
    pub fn buffer(&mut self, data: BufferData) -> usize {
        self.buffers.push(Arc::new(data));
        self.buffers.len() - 1
    }

    /// Adds a kernel and differentiates it; gives its number. One through which no derivative flows only clears what it overwrites.
    pub fn kernel(&mut self, kernel: &Kernel) -> Result<usize, KernelError> {
        let grad = match kernel.grad() {
            Ok(grad) => Some(grad),
            Err(e) if super::check::says_nothing(&e) => None,
            Err(e) => return Err(e),
        };
        // The adjoint takes away itself what may be written twice.
        let taken = |n: usize| {
            let purposes = grad.iter().flat_map(|g| &g.purposes);
            purposes.into_iter().any(|r| matches!(r, Purpose::Derivative { of, read: false } if *of == n))
        };
        let clear = clear(kernel, &|n| !taken(n))?;
        let buffers = kernel.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_)));
        let writes = buffers.map(|m| m.space == Space::Buffer(Access::ReadWrite)).collect();
        self.stages.push(Stage { kernel: kernel.clone(), grad, clear, writes });
        Ok(self.stages.len() - 1)
    }

    /// Adds a launch of a kernel on these buffers.
    pub fn launch(
        &mut self,
        kernel: usize,
        groups: [u32; 3],
        scalars: &[u64],
        buffers: &[usize],
    ) -> Result<(), KernelError> {
        let fail = |kernel: &str, problem: &str| {
            Err(KernelError::Launch { kernel: kernel.to_owned(), problem: problem.to_owned() })
        };
        let Some(stage) = self.stages.get(kernel) else { return fail("", "the chain has no such kernel") };
        let name = &stage.kernel.name;
        if buffers.len() != stage.writes.len() || buffers.iter().any(|&b| b >= self.buffers.len()) {
            return fail(name, "a launch names a buffer of the chain for each buffer of the kernel");
        }
        if buffers.iter().enumerate().any(|(i, b)| buffers[..i].contains(b)) {
            return fail(name, "a buffer of the chain is given twice, and buffers of a kernel never share memory");
        }
        let mut launch = Launch::new(groups, Vec::new());
        launch.scalars = scalars.to_vec();
        launch.wide = self.wide;
        self.steps.push(Step { stage: kernel, launch, buffers: buffers.to_vec() });
        Ok(())
    }

    /// What it takes to go backwards with a state kept every so many launches.
    pub fn cost(&self, every: usize) -> Cost {
        let every = every.max(1);
        let bytes = |b: usize| self.buffers[b].bits.len() as u64 * u64::from(self.buffers[b].ty.bytes());
        let mut next = self.buffers.len();
        let mut state: Vec<usize> = (0..next).collect();
        let mut sizes: Vec<u64> = state.iter().map(|&b| bytes(b)).collect();
        let mut kept: Vec<Vec<usize>> = Vec::new();
        let mut made: Vec<std::ops::Range<usize>> = Vec::new();
        for segment in self.steps.chunks(every) {
            kept.push(state.clone());
            let first = next;
            for step in segment {
                for (&b, _) in step.buffers.iter().zip(&self.stages[step.stage].writes).filter(|x| *x.1) {
                    (state[b], next) = (next, next + 1);
                    sizes.push(bytes(b));
                }
            }
            made.push(first..next);
        }
        // While a segment is taken backwards: the states up to its start, and all that it made.
        let mut held: HashMap<usize, u64> = HashMap::new();
        let (mut sum, mut most) = (0u64, 0u64);
        for (state, made) in kept.iter().zip(made) {
            for &v in state {
                held.entry(v).or_insert_with(|| {
                    sum += sizes[v];
                    sizes[v]
                });
            }
            let inside: u64 = made.map(|v| sizes[v]).sum();
            most = most.max(sum + inside);
        }
        // The last segment is taken backwards right after its first run.
        let last = self.steps.chunks(every).last().map_or(0, <[Step]>::len);
        Cost { bytes: most, launches: 2 * self.steps.len() - last }
    }

    fn run(&self, step: &Step, state: &mut State) -> Result<(), KernelError> {
        let stage = &self.stages[step.stage];
        let mut launch = self.with_buffers(step, state);
        execute(&stage.kernel, &mut launch)?;
        for ((&b, &writes), data) in step.buffers.iter().zip(&stage.writes).zip(launch.buffers) {
            if writes {
                state[b] = Arc::new(data);
            }
        }
        Ok(())
    }

    fn with_buffers(&self, step: &Step, state: &State) -> Launch {
        Launch { buffers: step.buffers.iter().map(|&b| (*state[b]).clone()).collect(), ..step.launch.clone() }
    }

    /// Runs all launches, then takes them backwards: the buffers at the end, and the adjoints of the buffers at the start, for these adjoints of
    /// buffers at the end. A state is kept every so many launches.
    pub fn differentiate(
        &self,
        given: &[(usize, BufferData)],
        every: usize,
    ) -> Result<(Vec<BufferData>, Vec<BufferData>), KernelError> {
        let every = every.max(1);
        let mut state: State = self.buffers.clone();
        let mut kept: Vec<State> = Vec::new();
        // The last segment is kept whole as it is run: it is taken backwards first.
        let mut last: Vec<State> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            if i % every == 0 {
                kept.push(state.clone());
                last.clear();
            }
            last.push(state.clone());
            self.run(step, &mut state)?;
        }
        let values: Vec<BufferData> = state.iter().map(|d| (**d).clone()).collect();
        let mut adjoints: Vec<BufferData> =
            self.buffers.iter().map(|d| BufferData::zeros(Scalar::F32, d.bits.len())).collect();
        for (b, data) in given {
            if let Some(a) = adjoints.get_mut(*b) {
                *a = data.clone();
            }
        }
        for (segment, steps) in self.steps.chunks(every).enumerate().rev() {
            let mut states = std::mem::take(&mut last);
            if states.is_empty() {
                let mut state = kept[segment].clone();
                for step in steps {
                    states.push(state.clone());
                    self.run(step, &mut state)?;
                }
            }
            for (step, state) in steps.iter().zip(&states).rev() {
                self.back(step, state, &mut adjoints)?;
            }
            kept.truncate(segment);
        }
        Ok((values, adjoints))
    }

    fn back(&self, step: &Step, state: &State, adjoints: &mut [BufferData]) -> Result<(), KernelError> {
        let stage = &self.stages[step.stage];
        let primal = self.with_buffers(step, state);
        if let Some(grad) = &stage.grad {
            let slots = grad.slots(&primal)?;
            let given = taken(&grad.purposes, step, adjoints);
            let mut launch = grad.launch(&primal, &given, slots)?;
            execute(&grad.kernel, &mut launch)?;
            grad.check(&launch, slots)?;
            put(&grad.purposes, step, adjoints, launch.buffers);
        }
        if let Some((kernel, purposes)) = &stage.clear {
            let given = taken(purposes, step, adjoints);
            let mut launch = super::launch::assemble(kernel, purposes, &primal, &given, &[], [0; 2])?;
            execute(kernel, &mut launch)?;
            put(purposes, step, adjoints, launch.buffers);
        }
        Ok(())
    }
}

fn taken(purposes: &[Purpose], step: &Step, adjoints: &[BufferData]) -> Vec<(usize, BufferData)> {
    let of = |r: &Purpose| match *r {
        Purpose::Derivative { of, .. } => Some((of, adjoints[step.buffers[of]].clone())),
        _ => None,
    };
    purposes.iter().filter_map(of).collect()
}

fn put(purposes: &[Purpose], step: &Step, adjoints: &mut [BufferData], buffers: Vec<BufferData>) {
    for (purpose, data) in purposes.iter().zip(buffers) {
        if let Purpose::Derivative { of, read: false } = *purpose {
            adjoints[step.buffers[of]] = data;
        }
    }
}
