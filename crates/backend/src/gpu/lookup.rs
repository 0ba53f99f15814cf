//! Rows of tables, and encodings of times and positions.

use impasto_graph::{Capabilities, DType, Op, Value};

use super::kernels::{blocks, groups_of_lines, lookup};
use super::session::Env;
use super::{Run, Runs};
use crate::stored::{has_scales, scales_offset};

/// Rows of a table by number. A table that is larger than a kernel can reach is looked up part by part.
pub(super) fn embedding(env: &Env, value: Value) -> Runs {
    let (table, ids) = (env.operand(value, 0), env.operand(value, 1));
    let [rows, width] = [0, 1].map(|i| env.ty(table).shape[i] as u32);
    let blocks = env.table_blocks(table);
    let (place, dtype) = match blocks {
        Some((place, _)) => (place, DType::F32),
        None => env.table(table),
    };
    let row_bytes = match blocks {
        Some((_, storage)) => u64::from(width) / storage.block_elements() * storage.block_bytes(),
        None => u64::from(width) * dtype.bytes(),
    };
    // Parts begin where a binding may begin.
    let alignment = env.profile.alignment();
    let step = alignment / gcd(alignment, row_bytes);
    let part_rows = (env.profile.limits().max_binding / row_bytes / step * step).max(step).min(rows.into()) as u32;
    let ty = env.ty(value);
    let mut runs = vec![];
    for start in (0..rows).step_by(part_rows.max(1) as usize) {
        let end = rows.min(start + part_rows);
        let (count, groups) = (env.ty(ids).elements() as u32, groups_of_lines(ty.elements()));
        // A kernel reads whole words of blocks; what follows the last of them belongs to the parameter.
        let whole = if blocks.is_some() { 4 } else { 1 };
        let bytes = (u64::from(end - start) * row_bytes).next_multiple_of(whole);
        let part = place.within(u64::from(start) * row_bytes, bytes);
        let mut bindings = vec![part, env.binding(ids), env.binding(value)];
        let kernel = match blocks {
            None => lookup::embedding(count, width, rows, start..end, [dtype, ty.dtype])?,
            Some((_, storage)) => {
                if has_scales(storage) {
                    let at = scales_offset(env.ty(table), storage) as u64;
                    bindings.insert(1, place.within(at, 4 * u64::from(rows)));
                }
                blocks::embedding(storage, [count, width, rows], start..end, has_scales(storage), ty.dtype)?
            }
        };
        runs.push(Run { kernel, bindings, groups });
    }
    Ok(runs)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) fn timestep(env: &Env, value: Value) -> Runs {
    let Op::TimestepEmbedding { dim, max_period } = env.graph.node(value).op else { unreachable!("called for times") };
    let (from, ty) = (env.ty(env.operand(value, 0)).dtype, env.ty(value));
    let batch = ty.shape[0];
    let kernel = lookup::timestep(batch as u32, dim as u32, max_period, [from, ty.dtype])?;
    Ok(env.run(value, kernel, groups_of_lines((batch * dim / 2) as u64)))
}

pub(super) fn rotary(env: &Env, value: Value) -> Runs {
    let Op::Rotary { heads, pairs } = env.graph.node(value).op else { unreachable!("called for rotations") };
    let shape = &env.ty(value).shape;
    let sizes = [shape[0], shape[1], heads, shape[2] / heads].map(|n| n as u32);
    let [x, cos, sin] = [0, 1, 2].map(|i| env.ty(env.operand(value, i)).dtype);
    let (types, elements) = ([x, cos, sin, env.ty(value).dtype], env.ty(value).elements());
    let (kernel, invocations) = match lookup::rotary_by_8(sizes, pairs, types) {
        Some(kernel) => (kernel?, elements / 8),
        None => (lookup::rotary(sizes, pairs, types)?, elements / 2),
    };
    Ok(env.run(value, kernel, groups_of_lines(invocations)))
}
