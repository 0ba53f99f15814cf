//! A diffusion model in ever less memory: streamed weights, and how much of their copying is hidden.

use std::sync::Arc;
use std::time::Instant;

use impasto_backend::cpu::CpuOptions;
use impasto_backend::{HostWeights, SharedSource};
use impasto_graph::{DType, HostTensor, Plan, Storage};
use impasto_model::ElementTypes;
use serde::Serialize;

use super::{Published, RandomWeights, random_inputs, room_for_outputs};
use crate::BackendOptions;
use impasto_generate::settings::Isolate;

/// One line of results.
#[derive(Clone, Debug, Serialize)]
pub struct StreamLine {
    /// The budget, as a share of what everything at once would take.
    pub share: f64,
    /// The budget in bytes.
    pub budget: u64,
    /// The most that the device was asked for.
    pub peak: u64,
    /// Seconds of one run, the least of several; none where it does not fit.
    pub seconds: Option<f64>,
    /// Times as long as with everything on the device.
    pub times: Option<f64>,
    /// Bytes that were brought in each run.
    pub bytes: u64,
    /// Seconds in which weights were brought.
    pub copying: f64,
    /// Seconds in which nothing was computed for want of them.
    pub waiting: f64,
    /// The share of the copying that overlapped with computing.
    pub hidden: f64,
}

/// Run a diffusion model on a device in these shares of the memory that it would take; `show` gets each line as it is ready.
pub fn stream(
    name: &str,
    cpu: CpuOptions,
    published: &Published,
    size: usize,
    runs: usize,
    shares: &[f64],
    mut show: impl FnMut(&StreamLine),
) -> anyhow::Result<()> {
    // In this process: packed weights are shared between devices of different budgets, which would be different workers.
    let isolate = Isolate::Off;
    let device = |memory: Option<u64>| {
        crate::open_device(name, &BackendOptions { cpu, memory, isolate, ..BackendOptions::default() })
    };
    let first = device(None)?;
    let numbers = ElementTypes { storage: Storage::Dense(DType::F16), activations: first.profile().activations() };
    let graph = published.step(size, numbers)?;
    let whole = Plan::new(&graph, &*first.profile())?;
    let need = whole.weight_bytes() + whole.arena_bytes() + first.profile().fixed_bytes();
    // Weights are packed once, for all budgets.
    let packed = HostWeights::plain(&*first.profile(), &graph, &whole, &RandomWeights::of(&graph))?;
    drop(first);
    let mut fastest = None;
    for &share in shares {
        let budget = (need as f64 * share) as u64;
        let backend = device(Some(budget))?;
        let mut line = StreamLine {
            share,
            budget,
            peak: 0,
            seconds: None,
            times: None,
            bytes: 0,
            copying: 0.0,
            waiting: 0.0,
            hidden: 1.0,
        };
        if let Ok(plan) = Plan::streamed(&graph, &*backend.profile()) {
            let host: SharedSource = Arc::new(backend.pack_on_host(&graph, &plan, &packed)?);
            let weights = backend.pack(&graph, &plan, &*host)?.fed_by(host);
            let mut session = backend.prepare(&graph, &plan, &weights)?;
            let (inputs, mut outputs) = (random_inputs(&*session)?, room_for_outputs(&*session));
            let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            session.run(&inputs, &mut outputs)?;
            let mut times = vec![];
            for _ in 0..runs.max(1) {
                let begun = Instant::now();
                session.run(&inputs, &mut outputs)?;
                times.push(begun.elapsed().as_secs_f64());
            }
            let seconds = times.into_iter().fold(f64::INFINITY, f64::min);
            line.seconds = Some(seconds);
            line.times = Some(seconds / *fastest.get_or_insert(seconds));
            if let Some(streamed) = session.streaming() {
                (line.bytes, line.copying, line.waiting) = (streamed.bytes, streamed.copying, streamed.waiting);
                line.hidden = streamed.hidden();
            }
            line.peak = backend.meter().peak();
        }
        show(&line);
    }
    Ok(())
}

/// Time against budget as a drawing.
pub fn plot(lines: &[StreamLine], title: &str) -> String {
    let (left, top, width, height) = (60.0, 40.0, 560.0, 260.0);
    let most = lines.iter().filter_map(|line| line.times).fold(1.5, f64::max);
    let x = |share: f64| left + width * share;
    let y = |times: f64| top + height * (1.0 - times / (1.1 * most));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 660 360\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"660\" height=\"360\" fill=\"white\"/>\n<text x=\"{left}\" y=\"24\" font-size=\"14\">{title}</text>\n"
    );
    for n in 0..=10 {
        let share = f64::from(n) / 10.0;
        svg += &format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{} %</text>\n",
            x(share),
            top + height + 18.0,
            10 * n
        );
        svg += &format!(
            "<line x1=\"{0:.0}\" x2=\"{0:.0}\" y1=\"{top}\" y2=\"{1:.0}\" stroke=\"#eee\"/>\n",
            x(share),
            top + height
        );
    }
    for times in 0..=(1.1 * most) as usize {
        let at = y(times as f64);
        svg += &format!("<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{times} x</text>\n", left - 8.0, at + 4.0);
        svg += &format!(
            "<line x1=\"{left}\" x2=\"{:.0}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#ddd\"/>\n",
            left + width
        );
    }
    let ran = || lines.iter().filter_map(|line| Some((x(line.share), y(line.times?))));
    let points: Vec<String> = ran().map(|(x, y)| format!("{x:.0},{y:.0}")).collect();
    svg += &format!("<polyline points=\"{}\" fill=\"none\" stroke=\"#c33\" stroke-width=\"2\"/>\n", points.join(" "));
    ran().for_each(|(x, y)| svg += &format!("<circle cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"3\" fill=\"#c33\"/>\n"));
    for line in lines.iter().filter(|line| line.times.is_none()) {
        svg += &format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#888\">refused</text>\n",
            x(line.share),
            top + height - 8.0
        );
    }
    svg + &format!(
        "<text x=\"{left}\" y=\"{:.0}\">memory budget, as a share of what everything at once takes</text>\n</svg>\n",
        top + height + 40.0
    )
}
