//! The type of an op's result from the types of its operands, or what does not fit.

use crate::dtype::{DType, Storage};
use crate::op::{Fused, Op};
use crate::tensor::TensorType;

/// No tensor is larger than this: sums of offsets can then never overflow.
const MAX_ELEMENTS: u64 = 1 << 46;
const MAX_RANK: usize = 8;

/// The type of the result of `op`; `dtype` asks for an element type where the op lets one choose.
pub(crate) fn infer(op: &Op, inputs: &[&TensorType], dtype: Option<DType>) -> Result<TensorType, String> {
    if let Some(roles) = op.roles()
        && roles.len() != inputs.len()
    {
        return Err(format!("takes {} operands ({}), {} were given", roles.len(), roles.join(", "), inputs.len()));
    }
    check_dtypes(op, inputs)?;
    let (shape, natural) = result(op, inputs)?;
    let free = may_choose_dtype(op);
    let dtype = match dtype {
        Some(d) if d != natural && !free => return Err(format!("keeps the element type {natural}, {d} was asked for")),
        Some(d) if free && !matches!(op, Op::Cast) && !d.is_float() => {
            return Err(format!("yields floats, {d} was asked for"));
        }
        Some(d) => d,
        None => natural,
    };
    let ty = TensorType::new(shape, dtype);
    check_size(&ty)?;
    Ok(ty)
}

/// Sources state their own type; it must still be a sane one.
pub(crate) fn check_source(op: &Op, ty: &TensorType) -> Result<(), String> {
    check_size(ty)?;
    if let Op::Param { storage, .. } = op {
        match storage {
            Storage::Dense(d) if d.is_float() != ty.dtype.is_float() => {
                return Err(format!("is stored as {d} and cannot be used as {}", ty.dtype));
            }
            Storage::Dense(_) => {}
            _ if !ty.dtype.is_float() => {
                return Err(format!("is stored as {storage} and cannot be used as {}", ty.dtype));
            }
            _ => {}
        }
        if !(ty.elements()).is_multiple_of(storage.block_elements())
            || !(ty.channels() as u64).is_multiple_of(storage.block_elements()) && ty.shape.len() < 3
        {
            return Err(format!(
                "is stored as {storage}, whose rows must be multiples of {} elements",
                storage.block_elements()
            ));
        }
    }
    Ok(())
}

fn check_size(ty: &TensorType) -> Result<(), String> {
    if ty.shape.len() > MAX_RANK {
        return Err(format!("has {} dimensions, at most {MAX_RANK} are possible", ty.shape.len()));
    }
    if let Some(axis) = ty.shape.iter().position(|&d| d == 0) {
        return Err(format!("dimension {axis} of {ty} is zero; every dimension must be at least 1"));
    }
    match ty.elements() <= MAX_ELEMENTS {
        true => Ok(()),
        false => Err(format!("{ty} has more than {MAX_ELEMENTS} elements")),
    }
}

/// Which ops let the caller choose the element type of the result.
fn may_choose_dtype(op: &Op) -> bool {
    !op.is_source()
        && !matches!(
            op,
            // Statistics are exact or they are nothing.
            Op::LineStatistics { .. }
                | Op::NormFactors { .. }
                | Op::Upsample { .. }
                | Op::Pad { .. }
                | Op::Concat { .. }
                | Op::Slice { .. }
                | Op::Reshape { .. }
                | Op::Permute { .. }
                | Op::Rest
                | Op::Fetch
        )
}

fn check_dtypes(op: &Op, inputs: &[&TensorType]) -> Result<(), String> {
    match op {
        // Moves and casts take anything.
        Op::Cast
        | Op::Upsample { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Rest
        | Op::Fetch => Ok(()),
        Op::Embedding => {
            if !inputs[0].dtype.is_float() {
                return Err(format!("the table must hold floats, not {}", inputs[0].dtype));
            }
            if inputs[1].dtype != DType::I32 {
                return Err(format!("the ids must be i32, not {}", inputs[1].dtype));
            }
            Ok(())
        }
        // Statistics and what is made of them are never rounded.
        Op::NormFactors { .. } if inputs[0].dtype != DType::F32 => {
            Err(format!("stats must be f32, not {}", inputs[0].dtype))
        }
        Op::Normalise { .. } if inputs[1].dtype != DType::F32 => {
            Err(format!("factors must be f32, not {}", inputs[1].dtype))
        }
        _ => match inputs.iter().position(|t| !t.dtype.is_float()) {
            Some(i) => Err(format!("takes floats, operand {i} is {}", inputs[i].dtype)),
            None => Ok(()),
        },
    }
}

fn rank(what: &str, ty: &TensorType, rank: usize, meaning: &str) -> Result<(), String> {
    if ty.shape.len() == rank { Ok(()) } else { Err(format!("{what} must have {rank} dimensions {meaning}")) }
}

fn vector(what: &str, ty: &TensorType, n: usize) -> Result<(), String> {
    if ty.shape == [n] { Ok(()) } else { Err(format!("{what} must be a vector of {n}")) }
}

/// A number for each channel of `x`, or for each channel of each picture.
fn by_channel(what: &str, ty: &TensorType, x: &TensorType) -> Result<(), String> {
    let c = x.channels();
    match ty.shape == [c] || x.shape.len() > 1 && ty.shape == [x.shape[0], c] {
        true => Ok(()),
        false if x.shape.len() > 1 => Err(format!("{what} must be a vector of {c} or (batch {}, {c})", x.shape[0])),
        false => vector(what, ty, c),
    }
}

/// Shape and natural element type of the result.
fn result(op: &Op, inputs: &[&TensorType]) -> Result<(Vec<usize>, DType), String> {
    match op {
        Op::Input { .. } | Op::Param { .. } => Err("is a source and states its own type".into()),
        Op::Linear { fused, geglu } => {
            let (x, w) = (inputs[0], inputs[1]);
            rank("w", w, 2, "(n, k)")?;
            if x.shape.is_empty() || x.channels() != w.shape[1] {
                return Err(format!("the last dimension of x must be k = {} as in w (n, k)", w.shape[1]));
            }
            let mut shape = x.shape.clone();
            let n = match *geglu {
                false => w.shape[0],
                true if fused.activation.is_some() => {
                    return Err("geglu is the activation; there can be no other".into());
                }
                true if w.shape[0] % 2 == 1 => {
                    return Err("the n of w (n, k) must be even for geglu: a value and a gate half".into());
                }
                true => w.shape[0] / 2,
            };
            *shape.last_mut().expect("x has a last dimension") = n;
            fuse(*fused, w.shape[0], inputs, shape)
        }
        Op::MatMul { transpose_b } => matmul(inputs[0], inputs[1], *transpose_b),
        Op::Conv2d { stride, padding, upsample, fused } => {
            let (x, w) = (inputs[0], inputs[1]);
            rank("x", x, 4, "(batch, height, width, channels)")?;
            rank("w", w, 4, "(n, channels, kernel height, kernel width)")?;
            if *stride == 0 || *upsample == 0 {
                return Err("stride and upsample must be at least 1".into());
            }
            if x.shape[3] != w.shape[1] {
                return Err(format!("x has {} channels, w takes {}", x.shape[3], w.shape[1]));
            }
            let [top, left, bottom, right] = *padding;
            let side = |size: usize, before: isize, after: isize, kernel: usize| {
                let padded = size
                    .checked_mul(*upsample)
                    .and_then(|s| s.checked_add_signed(before.checked_add(after)?))
                    .ok_or("padding is too large, or takes away more than there is")?;
                match padded.checked_sub(kernel) {
                    Some(rest) => Ok(rest / stride + 1),
                    None => Err(format!("the padded image ({padded}) is smaller than the kernel ({kernel})")),
                }
            };
            let h = side(x.shape[1], top, bottom, w.shape[2])?;
            let v = side(x.shape[2], left, right, w.shape[3])?;
            fuse(*fused, w.shape[0], inputs, vec![x.shape[0], h, v, w.shape[0]])
        }
        Op::Attention { heads, kv_heads, causal, bias, .. } => {
            let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
            for (what, t, heads) in [("q", q, *heads), ("k", k, *kv_heads), ("v", v, *kv_heads)] {
                rank(what, t, 3, "(batch, tokens, heads x width)")?;
                if heads == 0 || t.shape[2] % heads != 0 {
                    return Err(format!("the width of {what} ({}) must be a multiple of {heads} heads", t.shape[2]));
                }
            }
            if heads % kv_heads != 0 {
                return Err(format!("{heads} heads cannot share the keys and values of {kv_heads}"));
            }
            if q.shape[0] != k.shape[0] || q.shape[0] != v.shape[0] {
                return Err("q, k and v must have the same batch".into());
            }
            if q.shape[2] / heads != k.shape[2] / kv_heads {
                return Err("heads of q and k must have the same width".into());
            }
            if k.shape[1] != v.shape[1] {
                return Err("k and v must have the same number of tokens".into());
            }
            if *causal && q.shape[1] > k.shape[1] {
                return Err("causal attention needs at least as many keys as queries".into());
            }
            if *bias {
                let all = [q.shape[0], *heads, q.shape[1], k.shape[1]];
                rank("bias", inputs[3], 4, "(batch or 1, heads or 1, queries or 1, keys)")?;
                let fits = |(i, (&n, all)): (usize, (&usize, usize))| n == all || (n == 1 && i < 3);
                if !inputs[3].shape.iter().zip(all).enumerate().all(fits) {
                    return Err(format!("the bias {:?} does not stretch to {all:?}", inputs[3].shape));
                }
            }
            Ok((vec![q.shape[0], q.shape[1], v.shape[2] / kv_heads * heads], q.dtype))
        }
        Op::GroupNorm { groups, .. } => {
            let x = inputs[0];
            if x.shape.len() < 2 {
                return Err("x must have at least 2 dimensions (batch, .., channels)".into());
            }
            let c = x.channels();
            if *groups == 0 || !c.is_multiple_of(*groups) {
                return Err(format!("{c} channels do not divide into {groups} groups"));
            }
            vector("gamma", inputs[1], c)?;
            vector("beta", inputs[2], c)?;
            Ok((x.shape.clone(), x.dtype))
        }
        Op::LineStatistics { groups } => {
            let x = inputs[0];
            if x.shape.len() < 3 {
                return Err("x must have at least 3 dimensions (batch, lines, .., channels)".into());
            }
            if *groups == 0 || !x.channels().is_multiple_of(*groups) {
                return Err(format!("{} channels do not divide into {groups} groups", x.channels()));
            }
            Ok((vec![x.shape[0], x.shape[1], *groups, 2], DType::F32))
        }
        Op::NormFactors { pixels, .. } => {
            let (stats, c) = (inputs[0], inputs[1].channels());
            rank("stats", stats, 4, "(batch, lines, groups, 2)")?;
            if stats.shape[3] != 2 || !c.is_multiple_of(stats.shape[2]) || *pixels == 0 {
                return Err(
                    "stats must be (batch, lines, groups, 2), groups divide the channels, and lines have pixels".into(),
                );
            }
            vector("gamma", inputs[1], c)?;
            vector("beta", inputs[2], c)?;
            Ok((vec![stats.shape[0], 3, c], DType::F32))
        }
        Op::Normalise { .. } => {
            let (x, factors) = (inputs[0], inputs[1]);
            if x.shape.len() < 2 || factors.shape != [x.shape[0], 3, x.channels()] {
                return Err("x must be (batch, .., channels) and factors (batch, 3, channels)".into());
            }
            Ok((x.shape.clone(), x.dtype))
        }
        Op::LayerNorm { .. } => {
            by_channel("gamma", inputs[1], inputs[0])?;
            if inputs[2].shape != inputs[1].shape {
                return Err(format!("beta must have the shape {:?} of gamma", inputs[1].shape));
            }
            Ok((inputs[0].shape.clone(), inputs[0].dtype))
        }
        Op::RmsNorm { .. } => {
            by_channel("gamma", inputs[1], inputs[0])?;
            Ok((inputs[0].shape.clone(), inputs[0].dtype))
        }
        Op::Softmax | Op::Unary(_) | Op::Affine { .. } | Op::Cast | Op::Rest | Op::Fetch => {
            Ok((inputs[0].shape.clone(), inputs[0].dtype))
        }
        Op::Binary(_) => Ok((broadcast(&inputs[0].shape, &inputs[1].shape)?, inputs[0].dtype)),
        Op::Geglu => {
            let mut shape = inputs[0].shape.clone();
            match shape.last_mut() {
                Some(c) if *c % 2 == 0 => *c /= 2,
                _ => return Err("the last dimension must be even: a value and a gate half".into()),
            }
            Ok((shape, inputs[0].dtype))
        }
        Op::Upsample { factor } => {
            let x = inputs[0];
            rank("x", x, 4, "(batch, height, width, channels)")?;
            if *factor == 0 {
                return Err("the factor must be at least 1".into());
            }
            let grow = |d: usize| d.checked_mul(*factor).ok_or_else(|| "the result is too large".to_string());
            Ok((vec![x.shape[0], grow(x.shape[1])?, grow(x.shape[2])?, x.shape[3]], x.dtype))
        }
        Op::Pad { before, after } => {
            let x = inputs[0];
            if before.len() != x.shape.len() || after.len() != x.shape.len() {
                return Err(format!("needs one number before and after for each of {} dimensions", x.shape.len()));
            }
            let shape = x.shape.iter().zip(before).zip(after);
            let shape: Option<Vec<usize>> = shape.map(|((&d, &b), &a)| d.checked_add(b)?.checked_add(a)).collect();
            Ok((shape.ok_or("the result is too large")?, x.dtype))
        }
        Op::Concat { axis } => concat(*axis, inputs),
        Op::Slice { axis, start, len } => {
            let x = inputs[0];
            let Some(&size) = x.shape.get(*axis) else {
                return Err(format!("x has no axis {axis}"));
            };
            if start.checked_add(*len).is_none_or(|end| end > size) {
                return Err(format!("{len} from {start} do not lie inside {size} of axis {axis}"));
            }
            let mut shape = x.shape.clone();
            shape[*axis] = *len;
            Ok((shape, x.dtype))
        }
        Op::Reshape { shape } => {
            let x = inputs[0];
            let n = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
            if n != Some(x.elements()) {
                return Err(format!("{} elements do not fill the shape {shape:?}", x.elements()));
            }
            Ok((shape.clone(), x.dtype))
        }
        Op::Permute { axes } => {
            let x = inputs[0];
            let mut seen: Vec<usize> = axes.clone();
            seen.sort_unstable();
            if seen.len() != x.shape.len() || seen.iter().enumerate().any(|(i, &a)| i != a) {
                return Err(format!("axes {axes:?} are no order of {} axes", x.shape.len()));
            }
            Ok((axes.iter().map(|&a| x.shape[a]).collect(), x.dtype))
        }
        Op::Embedding => {
            rank("table", inputs[0], 2, "(rows, width)")?;
            let mut shape = inputs[1].shape.clone();
            shape.push(inputs[0].shape[1]);
            Ok((shape, inputs[0].dtype))
        }
        Op::TimestepEmbedding { dim, .. } => {
            rank("t", inputs[0], 1, "(batch)")?;
            if *dim == 0 || dim % 2 != 0 {
                return Err(format!("the width {dim} must be even"));
            }
            Ok((vec![inputs[0].shape[0], *dim], DType::F32))
        }
        Op::Rotary { heads, .. } => {
            let x = inputs[0];
            rank("x", x, 3, "(batch, tokens, heads x width)")?;
            if *heads == 0 || heads.checked_mul(2).is_none_or(|pairs| !x.shape[2].is_multiple_of(pairs)) {
                return Err(format!("{heads} heads of even width do not fill {}", x.shape[2]));
            }
            let angles = [x.shape[1], x.shape[2] / heads / 2];
            if inputs[1].shape != angles || inputs[2].shape != angles {
                return Err(format!("cos and sin must have the shape {angles:?} (tokens, pairs)"));
            }
            Ok((x.shape.clone(), x.dtype))
        }
    }
}

/// The epilogue's operands against the `n` columns of the product and the shape of the result.
fn fuse(fused: Fused, n: usize, inputs: &[&TensorType], shape: Vec<usize>) -> Result<(Vec<usize>, DType), String> {
    let mut rest = inputs[2..].iter();
    if fused.bias {
        let bias = rest.next().expect("roles were counted");
        if bias.shape != [n] && !(shape.len() > 1 && bias.shape == [shape[0], n]) {
            return Err(format!("bias must be ({n}) or (batch {}, {n})", shape[0]));
        }
    }
    let mut dtype = inputs[0].dtype;
    if fused.residual {
        let residual = rest.next().expect("roles were counted");
        if residual.shape != shape {
            return Err(format!("residual must have the shape {shape:?} of the result"));
        }
        dtype = residual.dtype;
    }
    Ok((shape, dtype))
}

fn matmul(a: &TensorType, b: &TensorType, transpose_b: bool) -> Result<(Vec<usize>, DType), String> {
    let rank = a.shape.len();
    if rank < 2 || b.shape.len() != rank {
        return Err("a and b must have the same number of dimensions, at least 2".into());
    }
    let (batch, k) = (&a.shape[..rank - 2], a.shape[rank - 1]);
    if batch != &b.shape[..rank - 2] {
        return Err("a and b must have the same leading dimensions".into());
    }
    let (bk, n) =
        if transpose_b { (b.shape[rank - 1], b.shape[rank - 2]) } else { (b.shape[rank - 2], b.shape[rank - 1]) };
    if k != bk {
        return Err(format!("the inner dimensions differ: {k} in a, {bk} in b"));
    }
    let mut shape = batch.to_vec();
    shape.extend([a.shape[rank - 2], n]);
    Ok((shape, a.dtype))
}

fn concat(axis: usize, inputs: &[&TensorType]) -> Result<(Vec<usize>, DType), String> {
    let Some(first) = inputs.first() else {
        return Err("needs at least one operand".into());
    };
    let mut shape = first.shape.clone();
    if axis >= shape.len() {
        return Err(format!("the operands have no axis {axis}"));
    }
    for t in &inputs[1..] {
        let fits = t.shape.len() == shape.len() && (0..shape.len()).all(|i| i == axis || t.shape[i] == shape[i]);
        if !fits {
            return Err(format!("all dimensions but axis {axis} must agree"));
        }
        if t.dtype != first.dtype {
            return Err("all operands must have the same element type".into());
        }
        shape[axis] += t.shape[axis];
    }
    Ok((shape, first.dtype))
}

/// numpy's rule: align from the right, a 1 stretches.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y == 1 => Ok(x),
            (1, y) => Ok(y),
            (x, y) => Err(format!("{x} and {y} do not broadcast")),
        })
        .collect()
}
