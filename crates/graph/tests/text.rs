//! The textual form: what a dump shows is what a test can be written in, and no text makes the parser panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use impasto_graph::{Anything, DType, Graph, GraphError, Op, Plan, Storage};
use impasto_testkit::graph::random_graph::{Kind, random_graph};
use impasto_testkit::graph::rng::{Rng, cases};

#[test]
fn a_printed_graph_reads_back_as_itself() {
    cases(2000, |i, rng| {
        let graph = random_graph(rng, 1 + i / 40, Kind::Wild);
        let text = graph.to_string();
        let again: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again, graph, "{text}");
        assert_eq!(again.to_string(), text);
    });
}

#[test]
fn every_name_and_every_number_survives() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let odd = ["", " ", "\"", "\\", "\\n", "\n", "\r", "\t", ";", "%0", "a=b", "ü∀🖌", "tail\r", "\\\"", "\u{2028}"];
    for name in odd {
        let x = graph.input(name, [3], DType::F32)?;
        let p = graph.param(name, [3], Storage::Dense(DType::BF16))?;
        let sum = graph.add(x, p)?;
        graph.output(name, sum)?;
    }
    let x = graph.input("numbers", [], DType::F32)?;
    let numbers =
        [0.0, -0.0, 1e-45, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, 0.1, 16777217.0, 1e-5];
    for shift in numbers {
        graph.affine(x, -shift, shift)?;
    }
    let again: Graph = graph.to_string().parse()?;
    assert_eq!(again, graph);
    // -0.0 == 0.0, so that the comparison above does not see the sign.
    assert_eq!(again.to_string(), graph.to_string());
    Ok(())
}

#[test]
fn names_comments_and_missing_types_are_as_the_documentation_says() -> Result<(), GraphError> {
    let text = "
        ; a comment, then an empty line

        %latent.0 = input \"x\" : f32[2,3] ; behind a line
        %b = add ( %latent.0 , %latent.0 )
        output \"y\" = %b; at the end";
    let graph: Graph = text.parse()?;
    let expected = "%0 = input \"x\" : f32[2,3]\n%1 = add(%0, %0) : f32[2,3]\noutput \"y\" = %1\n";
    assert_eq!(graph.to_string(), expected);
    Ok(())
}

/// What is on a line and has no meaning there is a mistake that the writer of a file test wants to hear of.
#[test]
fn what_the_parser_does_not_understand_it_refuses() {
    let lines = [
        "%2 = softmax(%0) axis=1",
        "%2 = softmax(%0) : f32[2,4]",
        "%2 = softmax(%0) : bf16[2,3",
        "%2 = softmax(%0) : f99[2,3]",
        "%2 = softmax(%0",
        "%2 = softmax %0",
        "%2 = softmax(%9)",
        "%0 = softmax(%0)",
        "%2 = softmax(%0) extra",
        "%2 = softmax(%0) ! extra",
        "%2 = sofmax(%0)",
        "2 = softmax(%0)",
        "output y = %0",
        "output \"y\" = %0 %0",
        "output \"y = %0",
        "%2 = input x : f32[2]",
        "%2 = input \"z\"",
        "%2 = param \"z\" : f32[2]",
        "%2 = param \"z\" q5_9 : f32[32]",
        "%2 = param \"z\" f16 : f16[32]",
        "%2 = affine(%0) scale=1.0",
        "%2 = affine(%0) scale=one shift=0.0",
        "%2 = affine(%0) scale=1.0 shift=0.0]",
        "%2 = affine(%0) scale=1.0,2.0 shift=0.0",
        "%2 = affine(%0) scale=1.0 scale=2.0 shift=0.0",
        "%2 = slice(%0) axis=-1 start=0 len=1",
        "%2 = slice(%0) axis=99999999999999999999 start=0 len=1",
        "%2 = permute(%0) axes=[1,0",
        "%2 = permute(%0) axes=[1,0]]",
        "%2 = matmul(%0, %0) transpose_b=2",
        "%2 = linear(%0, %1) act=swish",
        "%2 = rotary(%0, %0, %0) heads=1 pairs=thirds",
        "%2 = add(%0, bias=%0)",
        "%2 = linear(%0, bias=%0, %1)",
        "%2 = linear(residual=%0, %1)",
    ];
    let mut accepted = vec![];
    for line in lines {
        let text = format!("%0 = input \"x\" : f32[2,3]\n%1 = param \"w\" f32 : f32[3,3]\n{line}\n");
        match text.parse::<Graph>() {
            Ok(graph) => accepted.push(format!("{line}   as   {}", graph.to_string().lines().last().unwrap_or(""))),
            Err(GraphError::Syntax { line: at, column, .. }) => assert!(at == 3 && column >= 1, "{line}"),
            Err(_) => {}
        }
    }
    assert!(accepted.is_empty(), "these lines mean nothing and were accepted:\n{}", accepted.join("\n"));
}

/// Operands that carry their role may stand in any order, or be refused; they must not change places.
#[test]
fn a_named_operand_keeps_its_role() -> Result<(), GraphError> {
    let sources = "%x = input \"x\" : f32[3]\n%w = param \"w\" f32 : f32[3,3]\n%b = input \"b\" : f32[3]\n";
    let said: Graph = format!("{sources}%y = linear(%x, %w, bias=%b, residual=%x)\n").parse()?;
    match format!("{sources}%y = linear(%x, %w, residual=%x, bias=%b)\n").parse::<Graph>() {
        Ok(graph) => assert_eq!(graph, said),
        Err(e) => assert!(matches!(e, GraphError::Syntax { line: 4, .. }), "{e}"),
    }
    Ok(())
}

#[test]
fn a_syntax_error_points_to_its_place() {
    let text = "%0 = input \"ü\" : f32[2,3]\n%1 = softmax(%0) ; fine\n  %2 = add(%1, %7)\n";
    match text.parse::<Graph>() {
        Err(GraphError::Syntax { line: 3, column: 16, problem }) => assert!(problem.contains("%7"), "{problem}"),
        other => panic!("{other:?}"),
    }
}

/// Text with something broken in it.
fn mutated(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    for _ in 0..rng.between(1, 4) {
        if lines.is_empty() {
            break;
        }
        let at = rng.below(lines.len());
        match rng.below(8) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(rng.below(lines.len()), lines[at].clone()),
            2 => {
                let other = rng.below(lines.len());
                lines.swap(at, other);
            }
            3 => lines[at] = with_another_number(&lines[at], rng),
            _ => {
                let mut chars: Vec<char> = lines[at].chars().collect();
                let place = rng.below(chars.len() + 1);
                let new = rng.pick(&[
                    '%', '"', '\\', '[', ']', '(', ')', '=', ',', ';', ':', ' ', '0', '-', 'e', 'ä', '🖌', '\0',
                ]);
                match rng.below(3) {
                    0 => chars.insert(place, new),
                    1 if place < chars.len() => chars[place] = new,
                    _ => chars.truncate(place),
                }
                lines[at] = chars.into_iter().collect();
            }
        }
    }
    lines.join("\n")
}

/// The line with one of its numbers replaced by one that is hard to bear.
fn with_another_number(line: &str, rng: &mut Rng) -> String {
    let runs: Vec<(usize, &str)> = line.match_indices(|c: char| c.is_ascii_digit()).collect();
    let Some(&(at, digit)) = (!runs.is_empty()).then(|| &runs[rng.below(runs.len())]) else {
        return line.into();
    };
    let hard = [
        "0",
        "1",
        "2",
        "7",
        "4294967296",
        "9223372036854775808",
        "18446744073709551615",
        "70368744177664",
        "-1",
        "NaN",
    ];
    format!("{}{}{}", &line[..at], rng.pick(&hard), &line[at + digit.len()..])
}

/// A dump that was edited by hand, cut off or damaged is an error or a graph, never a crash.
#[test]
fn damaged_text_never_panics() {
    let (mut parsed, mut refused) = (0, 0);
    cases(20_000, |i, rng| {
        let text = random_graph(rng, 1 + i % 12, Kind::Wild).to_string();
        let text = mutated(&text, rng);
        let outcome = catch_unwind(AssertUnwindSafe(|| match text.parse::<Graph>() {
            Ok(graph) => {
                // What was accepted is a graph like any other.
                let again: Graph = graph.to_string().parse().expect("what is printed can be read");
                assert_eq!(again.to_string(), graph.to_string());
                let _ = Plan::new(&graph, &Anything);
                true
            }
            Err(e) => {
                assert!(!e.to_string().is_empty());
                false
            }
        }));
        match outcome {
            Ok(true) => parsed += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("this text makes it panic:\n{text}"),
        }
    });
    assert!(parsed > 1000 && refused > 1000, "{parsed} parsed, {refused} refused: the damage is one-sided");
}

#[test]
fn random_bytes_never_panic() {
    cases(5000, |_, rng| {
        let bytes: Vec<u8> = (0..rng.below(60)).map(|_| rng.bits() as u8).collect();
        let _ = String::from_utf8_lossy(&bytes).parse::<Graph>();
    });
}

/// Whoever adds an op also gives it a name that can be read back.
#[test]
fn random_graphs_hold_every_op() {
    let mut seen = std::collections::BTreeSet::new();
    cases(600, |_, rng| {
        let graph = random_graph(rng, 40, Kind::Wild);
        seen.extend(graph.nodes().iter().map(|n| match &n.op {
            Op::Unary(_) => "unary",
            Op::Binary(_) => "binary",
            Op::Linear { geglu: true, .. } => "linear with geglu",
            op => op.name(),
        }));
    });
    let every = "affine attention binary cast concat conv2d embedding geglu group_norm input layer_norm line_statistics \
                 linear linear with geglu matmul norm_factors normalise pad param permute reshape rms_norm rotary slice softmax timestep_embedding unary upsample";
    assert_eq!(seen.into_iter().collect::<Vec<_>>().join(" "), every);
}
