//! Norms and softmax.

use impasto_graph::{Capabilities, DType, Graph, Op, Value};
use impasto_kernel::{Kernel, KernelError};

use super::kernels::{groups, groups_of_lines, image_norm, norm, row_norm};
use super::session::Env;
use super::{Binding, Run, Runs};
use crate::shapes::{Image, rows_together};

/// Statistics of lines, and of pictures.
fn parts(device: &dyn Capabilities, i: &Image) -> [u64; 2] {
    [i.batch * i.lines * i.groups, i.batch * i.groups].map(|n| (8 * n as u64).next_multiple_of(device.alignment()))
}

pub(super) fn group_norm_scratch(device: &dyn Capabilities, graph: &Graph, value: Value) -> u64 {
    parts(device, &Image::of(graph, value)).iter().sum()
}

pub(super) fn factors_scratch(device: &dyn Capabilities, graph: &Graph, value: Value) -> u64 {
    parts(device, &Image::of(graph, value))[1]
}

pub(super) fn group_norm(env: &Env, value: Value) -> Runs {
    let Op::GroupNorm { eps, activation, .. } = env.graph.node(value).op else {
        unreachable!("called for group norms")
    };
    let image = Image::of(env.graph, value);
    let [x, gamma, beta] = [0, 1, 2].map(|i| env.operand(value, i));
    let [of_lines, of_pictures] = parts(env.profile, &image);
    let (lines, pictures) = (env.scratch(0, of_lines), env.scratch(of_lines, of_pictures));
    let types = [x, gamma, beta, value].map(|v| env.ty(v).dtype);
    let bindings = vec![env.binding(x), env.binding(gamma), env.binding(beta), pictures, env.binding(value)];
    let elements = env.ty(value).elements();
    let (kernel, invocations) = match image_norm::group_norm(&image, activation, types) {
        Some(kernel) => (kernel?, elements / 4),
        None => (norm::group_norm(&image, activation, types)?, elements),
    };
    let (statistics, groups) = statistics(&image, types[0])?;
    Ok(vec![
        Run { kernel: statistics, bindings: vec![env.binding(x), lines], groups },
        combine(&image, eps, lines, pictures)?,
        Run { kernel, bindings, groups: groups_of_lines(invocations) },
    ])
}

/// What computes the statistics of lines, and its workgroups.
fn statistics(image: &Image, from: DType) -> Result<(Kernel, [u32; 3]), KernelError> {
    match image_norm::line_statistics(image, from) {
        Some((kernel, groups)) => Ok((kernel?, groups)),
        None => Ok((norm::line_statistics(image, from)?, groups((image.batch * image.lines * image.groups) as u64))),
    }
}

/// Statistics of lines to those of pictures.
fn combine(image: &Image, eps: f32, lines: Binding, pictures: Binding) -> Result<Run, KernelError> {
    let groups = groups((image.batch * image.groups) as u64);
    Ok(Run { kernel: norm::combine(image, eps)?, bindings: vec![lines, pictures], groups })
}

pub(super) fn line_statistics(env: &Env, value: Value) -> Runs {
    let image = Image::of(env.graph, value);
    let (kernel, groups) = statistics(&image, env.ty(env.operand(value, 0)).dtype)?;
    Ok(env.run(value, kernel, groups))
}

pub(super) fn factors(env: &Env, value: Value) -> Runs {
    let Op::NormFactors { eps, .. } = env.graph.node(value).op else { unreachable!("called for factors") };
    let image = Image::of(env.graph, value);
    let [lines, gamma, beta] = [0, 1, 2].map(|i| env.operand(value, i));
    let pictures = env.scratch(0, parts(env.profile, &image)[1]);
    Ok(vec![
        combine(&image, eps, env.binding(lines), pictures)?,
        Run {
            kernel: norm::norm_factors(&image, [gamma, beta].map(|v| env.ty(v).dtype))?,
            bindings: vec![pictures, env.binding(gamma), env.binding(beta), env.binding(value)],
            groups: groups_of_lines((image.batch * image.channels) as u64),
        },
    ])
}

pub(super) fn normalise(env: &Env, value: Value) -> Runs {
    let Op::Normalise { activation } = env.graph.node(value).op else { unreachable!("called for norms") };
    let image = Image::of(env.graph, value);
    let (types, elements) = ([env.operand(value, 0), value].map(|v| env.ty(v).dtype), env.ty(value).elements());
    let (kernel, invocations) = match image_norm::normalise(&image, activation, types) {
        Some(kernel) => (kernel?, elements / 4),
        None => (norm::normalise(&image, activation, types[0], types[1])?, elements),
    };
    Ok(env.run(value, kernel, groups_of_lines(invocations)))
}

pub(super) fn by_row(env: &Env, value: Value) -> Runs {
    let node = env.graph.node(value);
    let (rows, width) = (node.ty.rows(), node.ty.channels());
    let types: Vec<DType> = node.inputs.iter().map(|&v| env.ty(v).dtype).collect();
    let size = [rows, width, rows_together(env.graph, value)].map(|n| n as u32);
    let (kernel, at_once) = match row_norm::by_row(&node.op, size, &types, node.ty.dtype) {
        Some((kernel, at_once)) => (kernel?, at_once.into()),
        None => (norm::by_row(&node.op, size, &types, node.ty.dtype)?, 1),
    };
    Ok(env.run(value, kernel, groups((rows as u64).div_ceil(at_once))))
}
