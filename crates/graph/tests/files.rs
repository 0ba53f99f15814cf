//! File tests of the planner and of the textual form: `files/*.txt`.
//!
//! A file is a graph, and says in comments what is done with it:
//!
//! ```text
//! ; plan alignment=64 max_allocation=4096 max_binding=4096 memory=9000 scratch=linear:512 overwrite=0
//! ; check: TEXT    the text occurs in the output, after that of the line before
//! ; never: TEXT    the text does not occur
//! ```
//!
//! `; bands band_bytes=N buffer_bytes=N axis=N` cuts the graph into bands and prints that; `; bands plan` with settings of a device prints
//! the bands that fit it. `; print` prints the graph, `; plan` its plan (settings may be left out: without them the device is `Anything`),
//! `; error` the error that reading or planning ends in. A file may ask several such questions.

use impasto_graph::{
    Anything, Banded, Capabilities, Cutting, Graph, Limits, Location, May, Op, Plan, Span, Used, Value,
};
use std::fmt::Write;

/// `Anything`, with the settings of a `; plan` or `; error` line.
struct Device {
    limits: Limits,
    alignment: u64,
    scratch: Vec<(String, u64)>,
    overwrite: bool,
}

impl Device {
    fn new(settings: &str) -> Device {
        let mut device = Device { limits: Limits::UNLIMITED, alignment: 64, scratch: vec![], overwrite: true };
        for setting in settings.split_whitespace() {
            let (key, value) = setting.split_once('=').expect("settings are key=value");
            let number = || value.parse().expect("settings are numbers");
            match key {
                "alignment" => device.alignment = number(),
                "max_allocation" => device.limits.max_allocation = number(),
                "max_binding" => device.limits.max_binding = number(),
                "memory" => device.limits.memory = number(),
                "overwrite" => device.overwrite = number() != 0,
                "scratch" => {
                    let (op, bytes) = value.split_once(':').expect("scratch is op:bytes");
                    device.scratch.push((op.into(), bytes.parse().expect("scratch is op:bytes")));
                }
                _ => panic!("'{key}' is no setting"),
            }
        }
        device
    }
}

impl Capabilities for Device {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        Anything.supports(graph, value)
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        let op = graph.node(value).op.name();
        self.scratch.iter().find(|(name, _)| name == op).map_or(0, |(_, bytes)| *bytes)
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        self.overwrite && Anything.may_overwrite(graph, value, operand)
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        Anything.param_bytes(graph, param, used)
    }

    fn host_memory(&self) -> u64 {
        u64::MAX
    }
}

fn cutting(settings: &str) -> Cutting {
    let mut cutting = Cutting::default();
    for setting in settings.split_whitespace() {
        let (key, value) = setting.split_once('=').expect("settings are key=value");
        let number: u64 = value.parse().expect("settings are numbers");
        match key {
            "band_bytes" => cutting.band_bytes = number,
            "buffer_bytes" => cutting.buffer_bytes = number,
            "axis" => cutting.axis = number as usize,
            _ => panic!("'{key}' is no setting"),
        }
    }
    cutting
}

fn at(span: Span) -> String {
    format!("{}..{}", span.offset, span.offset + span.bytes)
}

/// A plan for people: sources, steps with what they overwrite, views, and the sums.
fn listing(graph: &Graph, plan: &Plan) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let place = |value: Value| match plan.place(value) {
        Location::Arena(span) => format!("at {}", at(span)),
        Location::Weight(param) => format!("parameter {param}"),
        Location::Host(span) => format!("resting at {}", at(span)),
        Location::Nowhere => "nowhere".into(),
    };
    for (name, value) in graph.inputs() {
        writeln!(out, "input {value} \"{name}\" {}", place(value))?;
    }
    for weight in plan.weights() {
        writeln!(out, "weight {} {}", weight.value, weight.bytes)?;
    }
    for (i, step) in plan.steps().iter().enumerate() {
        let node = graph.node(step.value);
        write!(out, "step {i}: {} = {} {}", step.value, node.op.name(), place(step.value))?;
        let over = node.inputs.iter().find(|&&v| plan.place(v) == plan.place(step.value));
        over.map_or(Ok(()), |v| write!(out, " over {v}"))?;
        step.scratch.map_or(Ok(()), |s| write!(out, " scratch {}", at(s)))?;
        writeln!(out)?;
    }
    for value in graph.values() {
        let node = graph.node(value);
        let executed = plan.steps().iter().any(|s| s.value == value);
        match (&node.op, plan.place(value)) {
            (Op::Input { .. } | Op::Param { .. }, _) => {}
            (op, Location::Nowhere) => writeln!(out, "unused {value} = {}", op.name())?,
            (op, _) if !executed => {
                writeln!(out, "view {value} = {} of {} {}", op.name(), node.inputs[0], place(value))?
            }
            _ => {}
        }
    }
    let blocks: Vec<String> = plan.blocks().map(at).collect();
    writeln!(out, "arena {} bound {} blocks {}", plan.arena_bytes(), plan.lower_bound(), blocks.join(" "))?;
    if plan.host_bytes() > 0 {
        writeln!(out, "host {} copied {}", plan.host_bytes(), plan.rested_bytes(graph))?;
    }
    writeln!(out, "largest binding {} weights {}", plan.largest_binding(), plan.weight_bytes())?;
    Ok(out)
}

/// What a question is answered with.
fn answer(text: &str, question: &str) -> Result<String, String> {
    let (what, settings) = question.split_once(' ').unwrap_or((question, ""));
    let graph = text.parse::<Graph>();
    match (what, graph) {
        ("print", Ok(graph)) => Ok(graph.to_string()),
        ("error", Err(e)) => Ok(e.to_string()),
        ("bands", Ok(graph)) => {
            let banded = match settings.strip_prefix("plan") {
                Some(settings) => {
                    let device = Device::new(settings);
                    let (banded, plan) = Banded::fit(&graph, &device, 1, May::default()).map_err(|e| e.to_string())?;
                    plan.verify(&banded.graph, &device)?;
                    banded
                }
                None => Banded::new(&graph, &cutting(settings)).map_err(|e| e.to_string())?,
            };
            let levels =
                banded.cuts.levels.iter().map(|l| format!("level {}: {} bands of {}\n", l.rows, l.bands(), l.height));
            Ok(levels.collect::<String>() + &banded.graph.to_string())
        }
        ("rest", Ok(graph)) => {
            let device = Device::new(settings);
            let (graph, plan) =
                Plan::fit(graph, &device, May { rest: true, ..May::default() }).map_err(|e| e.to_string())?;
            plan.verify(&graph, &device)?;
            Ok(graph.to_string() + &listing(&graph, &plan).map_err(|e| e.to_string())?)
        }
        ("plan" | "error", Ok(graph)) => {
            let device = Device::new(settings);
            match (what, Plan::new(&graph, &device)) {
                ("plan", Ok(plan)) => {
                    plan.verify(&graph, &device)?;
                    listing(&graph, &plan).map_err(|e| e.to_string())
                }
                ("error", Err(e)) => Ok(e.to_string()),
                (_, outcome) => Err(format!("'{what}' was asked for, planning says {outcome:#?}")),
            }
        }
        (_, Err(e)) => Err(e.to_string()),
        _ => Err(format!("'{what}' is no question")),
    }
}

/// Ask every question of a file; returns what does not hold.
fn problems(text: &str) -> Vec<String> {
    let mut problems = vec![];
    let (mut output, mut rest, mut checks) = (String::new(), String::new(), 0);
    for (i, line) in text.lines().enumerate() {
        let Some(comment) = line.strip_prefix("; ") else { continue };
        let mut problem = |what: String, output: &str| problems.push(format!("line {}: {what}\n{output}", i + 1));
        if let Some(check) = comment.strip_prefix("check: ") {
            checks += 1;
            match rest.find(check) {
                Some(found) => rest = rest.split_off(found + check.len()),
                None => problem(format!("'{check}' does not occur here (or earlier than it should)"), &output),
            }
        } else if let Some(never) = comment.strip_prefix("never: ") {
            checks += 1;
            if output.contains(never) {
                problem(format!("'{never}' occurs"), &output);
            }
        } else if ["bands", "plan", "rest", "error", "print"].contains(&comment.split(' ').next().unwrap_or("")) {
            match answer(text, comment) {
                Ok(text) => output = text,
                Err(e) => problem(e, ""),
            }
            rest = output.clone();
        }
    }
    if checks == 0 {
        problems.push("the file checks nothing".into());
    }
    problems
}

#[test]
fn files_say_what_the_planner_does() {
    let mut failed = String::new();
    for path in impasto_testkit::file_tests(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files"), 12) {
        let text = std::fs::read_to_string(&path).expect("the file can be read");
        for problem in problems(&text) {
            failed += &format!("{}: {problem}\n", path.display());
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
}

/// The runner itself: a check that cannot hold is noticed.
#[test]
fn checks_that_do_not_hold_are_noticed() {
    let graph = "%0 = input \"x\" : f32[4]\n%1 = neg(%0)\noutput \"y\" = %1\n";
    let holds = |questions: &str| problems(&format!("{graph}{questions}\n")).is_empty();
    assert!(holds("; print\n; check: %1 = neg(%0)\n; check: output"));
    assert!(!holds("; print\n; check: output\n; check: %1 = neg(%0)"));
    assert!(!holds("; print\n; never: neg"));
    assert!(!holds("; print"));
    assert!(!holds("; error\n; never: x"));
    assert!(!holds("; plan memory=1\n; check: arena"));
    assert!(holds("; error memory=1\n; check: the limit is 1"));
}
