//! The reference itself, where its results are known without it: a wrong reference would make every backend wrong.

use crate::common::case::{Case, tensor};
use crate::common::reference::{erf, interpret, rounded};
use crate::common::rng::Rng;
use half::{bf16, f16};
use impasto_graph::{DType, Graph};

/// The last value of a graph whose sources hold these numbers, in the order of the graph.
fn last(text: &str, sources: &[&[f64]]) -> Vec<f64> {
    let graph: Graph = text.parse().expect("the graph is sane");
    let mut case = Case::new(graph, &mut Rng::new(1));
    let values: Vec<_> = case.graph.values().filter(|&v| case.graph.node(v).op.is_source()).collect();
    for (value, numbers) in values.into_iter().zip(sources) {
        let ty = case.graph.ty(value).clone();
        case.put(value, tensor(&ty.shape, ty.dtype, numbers.iter().copied()));
    }
    interpret(&case.graph, &case.given, false).pop().expect("the graph has values")
}

#[test]
fn the_error_function_is_right() {
    // Abramowitz and Stegun, table 7.1.
    for (x, y) in [(0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (2.0, 0.995_322_265_018_952_7)] {
        assert!((erf(x) - y).abs() < 1e-15 && (erf(-x) + y).abs() < 1e-15);
    }
}

#[test]
fn rounding_is_that_of_the_half_crate() {
    let same = |got: f64, want: f64| got == want || got.is_nan() && want.is_nan();
    for bits in 0..=u16::MAX {
        let (a, b) = (f16::from_bits(bits).to_f32(), bf16::from_bits(bits).to_f32());
        for x in [a, a * 1.0004, b, b * 1.003] {
            assert!(same(rounded(x.into(), DType::F16), f16::from_f32(x).into()), "{x}");
            assert!(same(rounded(x.into(), DType::BF16), bf16::from_f32(x).into()), "{x}");
        }
    }
}

#[test]
fn a_linear_layer_adds_bias_then_activates_then_adds_the_residual() {
    let text = "%x = input \"x\" : f32[2,2]\n%w = param \"w\" f32 : f32[1,2]\n%b = input \"b\" : f32[2,1]\n\
                %r = input \"r\" : f32[2,1]\n%y = linear(%x, %w, bias=%b, residual=%r) act=relu";
    // 1 + 20 + 100 and 3 + 40 - 1000, each with its own bias.
    let y = last(text, &[&[1.0, 2.0, 3.0, 4.0], &[1.0, 10.0], &[100.0, -1000.0], &[0.5, 0.25]]);
    assert_eq!(y, [121.5, 0.25]);
}

#[test]
fn a_convolution_enlarges_then_pads_then_steps() {
    let text = "%x = input \"x\" : f32[1,1,2,1]\n%w = param \"w\" f32 : f32[1,1,1,3]\n\
                %y = conv2d(%x, %w) stride=2 pad=[0,1,0,0] upsample=2";
    // 1 2 enlarged is 1 1 2 2 in two rows, padded 0 1 1 2 2; the second row is stepped over.
    assert_eq!(last(text, &[&[1.0, 2.0], &[100.0, 10.0, 1.0]]), [11.0, 122.0]);
}

#[test]
fn causal_attention_sees_the_past_of_the_last_queries() {
    let text = "%q = input \"q\" : f32[1,2,1]\n%k = input \"k\" : f32[1,3,1]\n%v = input \"v\" : f32[1,3,1]\n\
                %y = attention(%q, %k, %v) heads=1 scale=1.0 causal=1";
    // Equal scores: the first of two queries sees two of three keys.
    assert_eq!(last(text, &[&[1.0, 1.0], &[2.0, 2.0, 2.0], &[3.0, 6.0, 12.0]]), [4.5, 7.0]);
}

#[test]
fn a_group_norm_has_groups_of_neighbouring_channels() {
    let text = "%x = input \"x\" : f32[1,2,4]\n%g = input \"g\" : f32[4]\n%b = input \"b\" : f32[4]\n\
                %y = group_norm(%x, %g, %b) groups=2 eps=0.0";
    let y = last(text, &[&[1.0, 1.0, 5.0, 9.0, 3.0, 3.0, 9.0, 5.0], &[1.0, 2.0, 1.0, 1.0], &[0.0, 0.0, 10.0, 0.0]]);
    assert_eq!(y, [-1.0, -2.0, 9.0, 1.0, 1.0, 2.0, 11.0, -1.0]);
}

#[test]
fn axes_move_as_documented() {
    let permute = "%x = input \"x\" : f32[2,3]\n%y = permute(%x) axes=[1,0]";
    assert_eq!(last(permute, &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let concat = "%x = input \"x\" : f32[2,1]\n%z = input \"z\" : f32[2,2]\n%y = concat(%z, %x) axis=1";
    assert_eq!(last(concat, &[&[1.0, 2.0], &[3.0, 4.0, 5.0, 6.0]]), [3.0, 4.0, 1.0, 5.0, 6.0, 2.0]);
    let pad = "%x = input \"x\" : f32[1,2]\n%y = pad(%x) before=[1,0] after=[0,1]";
    assert_eq!(last(pad, &[&[1.0, 2.0]]), [0.0, 0.0, 0.0, 1.0, 2.0, 0.0]);
}

#[test]
fn a_rotation_by_a_quarter_turns_the_first_of_a_pair_into_the_second() {
    let text = |pairs: &str| {
        format!(
            "%x = input \"x\" : f32[1,1,4]\n%c = input \"c\" : f32[1,2]\n%s = input \"s\" : f32[1,2]\n\
             %y = rotary(%x, %c, %s) heads=1 pairs={pairs}"
        )
    };
    let sources: [&[f64]; 3] = [&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0], &[1.0, 0.0]];
    assert_eq!(last(&text("adjacent"), &sources), [-2.0, 1.0, 3.0, 4.0]);
    assert_eq!(last(&text("halves"), &sources), [-3.0, 2.0, 1.0, 4.0]);
}

#[test]
fn a_timestep_has_its_cosines_first() {
    let text = "%t = input \"t\" : f32[1]\n%y = timestep_embedding(%t) dim=4 max_period=100.0";
    let want = [2f64.cos(), 0.2f64.cos(), 2f64.sin(), 0.2f64.sin()].map(|x| x as f32 as f64);
    assert_eq!(last(text, &[&[2.0]]), want);
}
