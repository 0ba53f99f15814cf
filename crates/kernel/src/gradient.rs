//! Custom gradients: an adjoint kernel that the user wrote instead of the one that would be made. Names say what its buffers are.

use std::sync::Arc;

use crate::error::KernelError;
use crate::ir::{Access, Kernel, MemoryDecl, MemoryId, OpKind, RegionId, Scalar, Space, Ty};
use crate::text::type_text;

/// What a buffer of a custom gradient is, by its number among the buffers of the primal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientBuffer {
    /// A buffer of the primal, as it was before the launch of the primal.
    Primal(usize),
    /// The adjoint of a buffer.
    Adjoint {
        /// The buffer.
        of: usize,
        /// Whether the kernel only reads it.
        read: bool,
    },
    /// The adjoints of the parameters.
    Params,
}

impl Kernel {
    /// The kernel with this one as its adjoint, which differentiation then gives. It is launched like the primal, so it has the same workgroup and
    /// the same parameters; its buffers are told apart by their names:
    ///
    /// - `x`, of a buffer `x` of the primal: what that held before the launch of the primal. It is only read.
    /// - `d_x`: the adjoint of `x`, an f32 for each scalar. What goes into the primal gathers (`d_x[i] += ..`, by an atomic where several
    ///   invocations add); of what comes out, the adjoint is read, and set to zero where the primal overwrites. One that is only read
    ///   (`&[f32]`) is left to the host to be cleared, which `Chain` of the crate `autodiff` does.
    /// - `d_params`: an f32 for each parameter, which gathers.
    ///
    /// `#[kernel(grad = backward)]` is the same for kernels that are written as Rust.
    ///
    /// ```
    /// use impasto_kernel::Builder;
    /// // Rounded, with the gradient of what is not.
    /// let round = Builder::kernel("round", [1, 1, 1], |k| {
    ///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
    ///     let i = k.global_id(0);
    ///     y.store(i, x.load(i).round_even());
    /// })?;
    /// let through = Builder::kernel("through", [1, 1, 1], |k| {
    ///     let (dx, dy) = (k.buffer_mut::<f32>("d_x"), k.buffer::<f32>("d_y"));
    ///     let i = k.global_id(0);
    ///     dx.store(i, dx.load(i) + dy.load(i));
    /// })?;
    /// let round = round.with_gradient(through)?;
    /// assert_eq!(round.gradient().unwrap().name, "through");
    /// # Ok::<(), impasto_kernel::KernelError>(())
    /// ```
    pub fn with_gradient(mut self, backward: Kernel) -> Result<Kernel, KernelError> {
        gradient_buffers(&self, &backward)?;
        self.gradient = Some(Arc::new(backward));
        Ok(self)
    }

    /// The custom gradient.
    pub fn gradient(&self) -> Option<&Kernel> {
        self.gradient.as_deref()
    }

    /// Forgets the custom gradient.
    pub fn clear_gradient(&mut self) {
        self.gradient = None;
    }
}

fn buffers(k: &Kernel) -> impl Iterator<Item = &MemoryDecl> {
    k.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_)))
}

/// Whether a kernel reads a buffer, by its number among all memories.
fn reads(k: &Kernel, name: &str) -> bool {
    let is = |m: MemoryId| k.memory(m).name == name;
    let mut open: Vec<RegionId> = vec![k.body()];
    while let Some(r) = open.pop() {
        for &op in k.region_ops(r) {
            open.extend_from_slice(k.regions(op));
            if let OpKind::Load(m) | OpKind::Atomic(m, _) | OpKind::MatrixLoad(m, _) = k.kind(op)
                && is(m)
            {
                return true;
            }
        }
    }
    false
}

/// What the buffers of a custom gradient are; or why it is none of this primal.
pub fn gradient_buffers(primal: &Kernel, backward: &Kernel) -> Result<Vec<GradientBuffer>, KernelError> {
    let fail = |problem: String| {
        let problem = format!("'{}' is not its gradient: {problem}", backward.name);
        Err(KernelError::Build { kernel: primal.name.clone(), problem })
    };
    if backward.workgroup != primal.workgroup {
        let (a, b) = (backward.workgroup, primal.workgroup);
        return fail(format!("its workgroup is {a:?}, and both are launched with that of the primal, {b:?}"));
    }
    if backward.params() != primal.params() {
        let list = |k: &Kernel| {
            let all: Vec<String> = k.params().iter().map(|p| format!("{}: {}", p.name, p.ty.name())).collect();
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        };
        return fail(format!(
            "its parameters are {}, and both are launched with those of the primal, {}",
            list(backward),
            list(primal)
        ));
    }
    let all: Vec<&MemoryDecl> = buffers(primal).collect();
    let find = |name: &str| all.iter().position(|m| m.name == name);
    let mut found = Vec::new();
    for m in buffers(backward) {
        let (name, read) = (&m.name, m.space == Space::Buffer(Access::Read));
        let ty = type_text(backward, m.ty);
        if let Some(of) = find(name) {
            let expected = type_text(primal, all[of].ty);
            if ty != expected {
                return fail(format!("'{name}' holds {ty}, and that of the primal {expected}"));
            }
            if !read {
                return fail(format!("it may write '{name}', which is the primal's: its results are 'd_' buffers"));
            }
            if all[of].space != Space::Buffer(Access::Read) && !reads(primal, name) {
                return fail(format!(
                    "it takes '{name}', which the primal only writes: it would see what was there before the launch of the primal, not its \
                     results. Compute them again"
                ));
            }
            found.push(GradientBuffer::Primal(of));
        } else if name == "d_params" {
            if m.ty != Ty::scalar(Scalar::F32) || read {
                return fail("'d_params' is `&mut [f32]`, one for each parameter".to_owned());
            }
            found.push(GradientBuffer::Params);
        } else if let Some(of) = name.strip_prefix("d_").and_then(find) {
            let (like, expected) = (all[of], type_text(primal, all[of].ty));
            if !primal.any_scalar(like.ty, |s| s == Scalar::F32) {
                return fail(format!("'{name}' is the adjoint of {expected}, and only buffers of f32 have one"));
            }
            if m.ty != Ty::scalar(Scalar::F32)
                && !(matches!(like.ty.lanes(), Some((Scalar::F32, _))) && m.ty == like.ty)
            {
                return fail(format!("'{name}' holds {ty}: the adjoint of {expected} is f32 for each scalar"));
            }
            found.push(GradientBuffer::Adjoint { of, read });
        } else {
            let names: Vec<String> = all.iter().map(|m| format!("'{0}' or 'd_{0}'", m.name)).collect();
            return fail(format!("'{name}' is none of its buffers, which are {}, or 'd_params'", names.join(", ")));
        }
    }
    let takes = |of: usize| all[of].space != Space::Buffer(Access::Read);
    if !found.iter().any(|p| matches!(p, GradientBuffer::Adjoint { of, .. } if takes(*of))) {
        return fail("it takes no adjoint of a buffer that the primal writes".to_owned());
    }
    if !found.iter().any(|p| matches!(p, GradientBuffer::Adjoint { read: false, .. } | GradientBuffer::Params)) {
        return fail("it gives no adjoint: one that it changes is `&mut`".to_owned());
    }
    Ok(found)
}
