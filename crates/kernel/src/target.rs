//! What a device offers, and what a kernel needs of it. One walk over a kernel finds all that it needs, with the op that asks for it
//! first; what the device lacks is an error, and the capabilities of a module are those of what was found.

use std::fmt;

use rspirv::spirv::Capability;

use crate::error::KernelError;
use crate::ir::{
    Builtin, Kernel, Matrix, MatrixShape, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Subgroup, Ty, Value,
};
use crate::text::op_text;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident $capability:ident $text:literal,)*) => {
        /// What a device may have beyond Vulkan 1.1, and kernels may need.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Feature { $($(#[$doc])* $name),* }

        impl Feature {
            /// All of them.
            pub const ALL: &'static [Feature] = &[$(Feature::$name),*];

            pub(crate) fn capability(self) -> Capability {
                match self { $(Feature::$name => Capability::$capability),* }
            }
        }

        impl fmt::Display for Feature {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Feature::$name => $text),* })
            }
        }
    };
}

features! {
    /// Values of f16 that are computed with, not only converted.
    F16 Float16 "arithmetic on 16-bit floats (shaderFloat16)",
    /// Values of 16 bits that are no floats: bf16 in workgroup memory, and its bits.
    I16 Int16 "16-bit integers (shaderInt16)",
    /// Values of i64 and u64.
    I64 Int64 "64-bit integers (shaderInt64)",
    /// Elements of 16 bits in buffers.
    Storage16 StorageBuffer16BitAccess "16-bit elements in buffers (storageBuffer16BitAccess)",
    /// Scalar parameters of 16 bits.
    Constants16 StoragePushConstant16 "16-bit numbers in push constants (storagePushConstant16)",
    /// Sizes and lanes of subgroups, which every device with Vulkan 1.1 has.
    Subgroup GroupNonUniform "subgroups",
    /// `all` and `any`.
    SubgroupVote GroupNonUniformVote "votes of a subgroup (VK_SUBGROUP_FEATURE_VOTE_BIT)",
    /// Sums, smallest and largest.
    SubgroupArithmetic GroupNonUniformArithmetic "sums over a subgroup (VK_SUBGROUP_FEATURE_ARITHMETIC_BIT)",
    /// The value of the first lane.
    SubgroupBallot GroupNonUniformBallot "broadcasts in a subgroup (VK_SUBGROUP_FEATURE_BALLOT_BIT)",
    /// Values from lane to lane.
    SubgroupShuffle GroupNonUniformShuffle "shuffles in a subgroup (VK_SUBGROUP_FEATURE_SHUFFLE_BIT)",
    /// The Vulkan memory model, under which matrices come.
    MemoryModel VulkanMemoryModel "the Vulkan memory model (vulkanMemoryModel)",
    /// Matrices of a subgroup.
    Matrix CooperativeMatrixKHR "matrices of a subgroup (VK_KHR_cooperative_matrix)",
    /// Matrices of bf16.
    MatrixBf16 BFloat16CooperativeMatrixKHR "matrices of bf16 (VK_KHR_shader_bfloat16)",
    /// f16 keeps the signs of zeros, infinities and NaN. Kernels can do without: a driver may then compute `-0` as `0`, and take an
    /// infinity or a NaN for impossible; with it, `+ - x` give the bits of the reference.
    SignedZerosF16 SignedZeroInfNanPreserve "signed zeros of f16 (shaderSignedZeroInfNanPreserveFloat16)",
    /// The same of f32.
    SignedZerosF32 SignedZeroInfNanPreserve "signed zeros of f32 (shaderSignedZeroInfNanPreserveFloat32)",
}

impl Feature {
    fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The extension of SPIR-V that it came with, if modules must name it.
    pub(crate) fn extension(self) -> Option<&'static str> {
        match self {
            Feature::MemoryModel => Some("SPV_KHR_vulkan_memory_model"),
            Feature::Matrix => Some("SPV_KHR_cooperative_matrix"),
            Feature::MatrixBf16 => Some("SPV_KHR_bfloat16"),
            // Modules ask for both in one word.
            Feature::SignedZerosF32 => Some("SPV_KHR_float_controls"),
            _ => None,
        }
    }

    /// Whether kernels do without it where it is missing.
    pub fn is_optional(self) -> bool {
        matches!(self, Feature::SignedZerosF16 | Feature::SignedZerosF32)
    }
}

/// How large a kernel may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetLimits {
    /// Invocations in a workgroup along x, y and z.
    pub workgroup: [u32; 3],
    /// Invocations in a workgroup.
    pub invocations: u32,
    /// Bytes of the arrays that a workgroup shares.
    pub shared: u32,
    /// Bytes of scalar parameters.
    pub constants: u32,
    /// Buffers.
    pub buffers: u32,
}

/// The device that a module is for.
///
/// ```
/// use impasto_kernel::{Builder, Feature, Target, compile_for};
/// let kernel = Builder::kernel("wide", [1, 1, 1], |k| {
///     let x = k.buffer_mut::<i64>("x");
///     x.store(0, x.load(0) + 1i64);
/// })?;
/// let error = compile_for(&kernel, Target::LEAST).unwrap_err().to_string();
/// assert!(error.contains("kernel 'wide': `%1 = load x[%0] : i64` needs 64-bit integers"), "{error}");
/// assert!(compile_for(&kernel, Target::LEAST.with(Feature::I64)).is_ok());
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The version of Vulkan, major and minor.
    pub vulkan: (u32, u32),
    /// How large a kernel may be.
    pub limits: TargetLimits,
    /// The products of matrices that a subgroup computes; `None` where all are taken for granted. For others there is
    /// [`lower_matrices`](crate::lower_matrices).
    pub products: Option<Vec<MatrixShape>>,
    features: u32,
}

/// Every module is for this version of Vulkan and later ones: the lowest with storage buffers and subgroups. What is younger comes by
/// extensions, which modules name.
pub(crate) const LOWEST: (u32, u32) = (1, 1);

impl Target {
    /// The least that a device with Vulkan 1.1 has.
    pub const LEAST: Target = Target {
        vulkan: LOWEST,
        limits: TargetLimits { workgroup: [128, 128, 64], invocations: 128, shared: 16384, constants: 128, buffers: 4 },
        products: Some(Vec::new()),
        features: 1 << Feature::Subgroup as u32,
    };

    /// A device that has whatever a kernel needs, and nothing that it can do without: for looking at modules and measuring them.
    pub const ANY: Target = Target {
        vulkan: (u32::MAX, 0),
        limits: TargetLimits {
            workgroup: [u32::MAX; 3],
            invocations: u32::MAX,
            shared: u32::MAX,
            constants: u32::MAX,
            buffers: u32::MAX,
        },
        products: None,
        features: (1 << Feature::SignedZerosF16 as u32) - 1,
    };

    /// Whether the device has it.
    pub fn has(&self, feature: Feature) -> bool {
        self.features & feature.bit() != 0
    }

    /// The same device, with this.
    #[must_use]
    pub fn with(&self, feature: Feature) -> Target {
        Target { features: self.features | feature.bit(), ..self.clone() }
    }

    /// The same device, with these products of matrices and no others.
    #[must_use]
    pub fn with_products(&self, products: Vec<MatrixShape>) -> Target {
        Target { products: Some(products), ..self.clone() }
    }

    /// The same device, without this.
    #[must_use]
    pub fn without(&self, feature: Feature) -> Target {
        Target { features: self.features & !feature.bit(), ..self.clone() }
    }

    /// Refuses a kernel that is too large for the device.
    fn check_limits(&self, k: &Kernel) -> Result<(), KernelError> {
        let limits = &self.limits;
        let refuse = |what: String, needs: u64, limit: u32| {
            let error = KernelError::TooLarge { kernel: k.name.clone(), what, needs, limit: limit.into() };
            if needs > u64::from(limit) { Err(error) } else { Ok(()) }
        };
        if self.vulkan < LOWEST {
            return Err(KernelError::OldVulkan { kernel: k.name.clone(), needs: LOWEST, have: self.vulkan });
        }
        for (axis, (&n, &limit)) in ["x", "y", "z"].iter().zip(k.workgroup.iter().zip(&limits.workgroup)) {
            refuse(format!("invocations in a workgroup along {axis}"), n.into(), limit)?;
        }
        refuse(
            "invocations in a workgroup".into(),
            k.workgroup.iter().map(|&n| u64::from(n)).product(),
            limits.invocations,
        )?;
        let shared = |m: &crate::ir::Memory| match m.space {
            Space::Workgroup(n) => u64::from(n) * u64::from(k.lay_out(m.ty).stride()),
            _ => 0,
        };
        refuse("bytes shared by a workgroup".into(), k.memories().iter().map(shared).sum(), limits.shared)?;
        let buffers = k.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_))).count();
        refuse("buffers".into(), buffers as u64, limits.buffers)?;
        refuse("bytes of scalar parameters".into(), crate::spirv::param_size(k).into(), limits.constants)
    }

    /// Refuses matrices that the device does not know.
    fn check_products(&self, k: &Kernel) -> Result<(), KernelError> {
        let Some(products) = self.products.as_ref().filter(|_| k.knows_matrices()) else { return Ok(()) };
        let refuse = |needs: String| {
            let offers: Vec<String> = products.iter().map(MatrixShape::to_string).collect();
            let offers = if offers.is_empty() { "none".to_owned() } else { offers.join(", ") };
            Err(KernelError::NoMatrix { kernel: k.name.clone(), needs, offers })
        };
        // A product says more than a part of it.
        let mut part = None;
        let mut open = vec![k.body()];
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                open.extend_from_slice(k.regions(op));
                let matrix = |v: Value| k.matrix(k.ty(v));
                if let (OpKind::MatrixMulAdd, &[a, b, c]) = (k.kind(op), k.args(op)) {
                    let three = matrix(a).zip(matrix(b)).zip(matrix(c));
                    let shape = three.and_then(|((a, b), c)| MatrixShape::of(a, b, c));
                    if let Some(shape) = shape.filter(|s| !products.contains(s)) {
                        return refuse(format!("products {shape}"));
                    }
                }
                let unknown = |m: &Matrix| !products.iter().any(|s| s.has(*m));
                part = part.or_else(|| k.results(op).filter_map(matrix).find(unknown));
            }
        }
        part.map_or(Ok(()), |m| refuse(format!("products with {m}")))
    }

    /// Refuses a kernel that needs what the device lacks.
    pub(crate) fn check(&self, k: &Kernel) -> Result<Vec<Feature>, KernelError> {
        self.check_limits(k)?;
        self.check_products(k)?;
        let needs = needs(k);
        match needs.iter().find(|&&(feature, _)| !self.has(feature)) {
            Some(&(feature, op)) => Err(KernelError::Lacks { kernel: k.name.clone(), op: op_text(k, op), feature }),
            None => Ok(needs.into_iter().map(|(feature, _)| feature).collect()),
        }
    }
}

impl From<&impasto_vulkan::Features> for Target {
    /// The target that an open device is.
    fn from(have: &impasto_vulkan::Features) -> Target {
        let limits = TargetLimits {
            workgroup: have.limits.workgroup,
            invocations: have.limits.invocations,
            shared: have.limits.shared,
            constants: have.limits.constants,
            buffers: have.limits.buffers,
        };
        let has = |feature: &Feature| match feature {
            Feature::F16 => have.f16,
            Feature::I16 => have.i16,
            Feature::I64 => have.i64,
            Feature::Storage16 => have.storage16,
            Feature::Constants16 => have.constants16,
            Feature::Subgroup => have.version >= LOWEST,
            Feature::SubgroupVote => have.subgroup.vote,
            Feature::SubgroupArithmetic => have.subgroup.arithmetic,
            Feature::SubgroupBallot => have.subgroup.ballot,
            Feature::SubgroupShuffle => have.subgroup.shuffle,
            Feature::MemoryModel => have.memory_model,
            Feature::Matrix => have.matrix,
            Feature::MatrixBf16 => have.bf16_matrix,
            Feature::SignedZerosF16 => have.signed_zeros16,
            Feature::SignedZerosF32 => have.signed_zeros32,
        };
        let product = |p: &impasto_vulkan::CooperativeMatrix| {
            let scalar = |name: &str| Scalar::ALL.into_iter().find(|s| s.name() == name);
            Some(MatrixShape { factor: scalar(&p.factor)?, result: scalar(&p.result)?, m: p.m, n: p.n, k: p.k })
        };
        let products = have.products.iter().filter_map(product).collect();
        let none = Target { vulkan: have.version, limits, products: Some(products), features: 0 };
        Feature::ALL.iter().filter(|f| has(f)).fold(none, |target, &f| target.with(f))
    }
}

/// What a kernel needs, each with the first op that asks for it. Cost: linear.
fn needs(k: &Kernel) -> Vec<(Feature, OpId)> {
    let mut found = Vec::new();
    let mut seen = 0u32;
    let mut converted = None;
    // Most types ask for nothing, and there are few types.
    let asks = |i: usize| {
        let ty = Ty(i as u32);
        k.matrix(ty).is_some() || k.any_scalar(ty, |s| is_long(s) || s.bits() == 16)
    };
    let asking: Vec<bool> = (0..k.type_count()).map(asks).collect();
    region_needs(k, k.body(), &asking, &mut |feature, op| {
        if seen & feature.bit() == 0 {
            seen |= feature.bit();
            found.push((feature, op));
        }
    });
    if seen & (Feature::F16.bit() | Feature::Storage16.bit() | Feature::Constants16.bit()) == 0 {
        // The type is there with memory of 16 bits, or with arithmetic on it.
        first_convert(k, k.body(), &mut converted);
        found.extend(converted.map(|op| (Feature::F16, op)));
    }
    found
}

/// The first conversion from or to f16.
fn first_convert(k: &Kernel, r: RegionId, found: &mut Option<OpId>) {
    for &op in k.region_ops(r) {
        let mut types = k.args(op).iter().copied().chain(k.results(op)).map(|v| k.ty(v));
        if found.is_none() && k.kind(op) == OpKind::Convert && types.any(|t| k.any_scalar(t, is_f16)) {
            *found = Some(op);
        }
        k.regions(op).iter().for_each(|&r| first_convert(k, r, found));
    }
}

fn region_needs(k: &Kernel, r: RegionId, asking: &[bool], need: &mut dyn FnMut(Feature, OpId)) {
    for &op in k.region_ops(r) {
        op_needs(k, op, asking, &mut |feature| need(feature, op));
        k.regions(op).iter().for_each(|&r| region_needs(k, r, asking, need));
    }
}

fn is_long(s: Scalar) -> bool {
    s.bits() == 64
}

fn is_f16(s: Scalar) -> bool {
    s == Scalar::F16
}

fn is_bf16(s: Scalar) -> bool {
    s == Scalar::Bf16
}

fn op_needs(k: &Kernel, op: OpId, asking: &[bool], need: &mut dyn FnMut(Feature)) {
    let kind = k.kind(op);
    match kind {
        OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) | OpKind::Len(m) => memory_needs(k, m, need),
        OpKind::MatrixLoad(m, _) | OpKind::MatrixStore(m, _) => {
            memory_needs(k, m, need);
            // The place in memory is one of 16 bits, which is not converted.
            if is_bf16(k.scalar_of(k.memory(m).ty).unwrap_or(Scalar::F32)) {
                need(Feature::I16);
            }
        }
        OpKind::Param(_) => {
            // All parameters are one block, so one that is read brings the others along.
            if k.params().iter().any(|p| p.ty.bits() == 16) {
                need(Feature::Constants16);
            }
            if k.params().iter().any(|p| is_long(p.ty)) {
                need(Feature::I64);
            }
        }
        OpKind::Builtin(Builtin::SubgroupSize | Builtin::SubgroupLane | Builtin::SubgroupId, _) => {
            need(Feature::Subgroup)
        }
        OpKind::Subgroup(f) => need(match f {
            Subgroup::All | Subgroup::Any => Feature::SubgroupVote,
            Subgroup::BroadcastFirst => Feature::SubgroupBallot,
            Subgroup::ShuffleXor => Feature::SubgroupShuffle,
            Subgroup::Add | Subgroup::Min | Subgroup::Max | Subgroup::ExclusiveAdd => Feature::SubgroupArithmetic,
        }),
        _ => {}
    }
    let values = k.args(op).iter().copied().chain(k.results(op));
    let mut types = values.chain(k.regions(op).iter().flat_map(|&r| k.region_args(r))).map(|v| k.ty(v));
    if !types.clone().any(|t| asking[t.number()]) {
        return;
    }
    let any = |is| types.clone().any(|t| k.any_scalar(t, is));
    if any(is_long) {
        need(Feature::I64);
    }
    for m in types.clone().filter_map(|t| k.matrix(t)) {
        need(Feature::MemoryModel);
        need(Feature::Matrix);
        if m.scalar == Scalar::Bf16 {
            need(Feature::MatrixBf16);
        }
    }
    if kind == OpKind::MatrixFill && any(is_bf16) {
        need(Feature::I16);
    }
    if kind == OpKind::Bitcast && any(is_bf16) && any(is_f16) {
        need(Feature::I16);
    }
    // Without arithmetic on f16 its values can be loaded, stored and converted from and to f32, and nothing else.
    let moved = match kind {
        OpKind::Load(_) | OpKind::Store(_) | OpKind::Param(_) => true,
        OpKind::Convert => matches!(k.ty(k.args(op)[0]).lanes(), Some((Scalar::F16 | Scalar::F32, _))),
        _ => false,
    };
    if any(is_f16) && !(moved && types.all(|t| t.lanes().is_some())) {
        need(Feature::F16);
    }
}

fn memory_needs(k: &Kernel, m: MemoryId, need: &mut dyn FnMut(Feature)) {
    let m = k.memory(m);
    let has = |is| k.any_scalar(m.ty, is);
    if has(is_long) {
        need(Feature::I64);
    }
    match m.space {
        Space::Buffer(_) if has(is_f16) || has(is_bf16) => need(Feature::Storage16),
        Space::Workgroup(_) if has(is_bf16) => need(Feature::I16),
        _ => {}
    }
    // Composites are taken apart, and other memory than buffers holds values.
    if has(is_f16) && !(m.ty.lanes().is_some() && matches!(m.space, Space::Buffer(_))) {
        need(Feature::F16);
    }
}
