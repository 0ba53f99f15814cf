//! Text encoders against transformers, scaled down but of the true structure. What a user would lose: words that mean what they mean to the reference.
//!
//! `tools/encoder_fixtures.py` made the states.

use crate::against::compare;
use impasto_graph::HostTensor;
use impasto_model::{
    FAMILIES, Llm, LlmConfig, LlmLayout, LlmStates, T5, T5Config, T5Layout, TensorShapes, recognise, usage,
};
use serde_json::Value;

const VOCABULARY: usize = 100;

fn ids([batch, tokens]: [usize; 2]) -> HostTensor {
    let ids = (0..batch * tokens).map(|i| (i * 37 % VOCABULARY) as i32).collect();
    HostTensor::i32([batch, tokens], ids).expect("an id for each")
}

#[test]
fn t5() {
    let config = T5Config { vocabulary: VOCABULARY, width: 48, layers: 3, heads: 8, head: 4, inner: 96, buckets: 32 };
    let t5 = T5 { config, layout: T5Layout::Transformers };
    let build = |n| t5.graph([2, 150], false, n).expect("it builds");
    compare("t5.hidden", &build, &t5.inputs(ids([2, 150]), None).expect("inputs"));
    let build = |n| t5.graph([2, 20], true, n).expect("it builds");
    compare("t5.masked", &build, &t5.inputs(ids([2, 20]), Some(&[20, 7])).expect("inputs"));
}

/// The files of transformers, of ComfyUI and of llama.cpp, by the names that those have.
#[test]
fn files_in_every_layout() {
    let names: Value = serde_json::from_str(include_str!("fixtures/encoder_names.json")).expect("JSON");
    let layouts: [(&str, &[&str]); 4] = [
        ("t5", &["", "text_encoders.t5xxl.transformer.", "text_encoder_2.", "text_encoder_3."]),
        ("qwen3", &["model.", "text_encoders.qwen3_4b.transformer.model.", "text_encoders.llm.model."]),
        ("qwen2", &["model.", "model.language_model.", "text_encoders.qwen25_7b.transformer.model."]),
        ("mistral", &["model.", "language_model.model.", "model.language_model."]),
    ];
    for (kind, prefixes) in layouts {
        let list = names[kind].as_array().expect("a list");
        let shapes = |column: usize, prefix: &str| -> TensorShapes {
            let shape = |of: &Value| serde_json::from_value::<Vec<usize>>(of.clone()).expect("a shape");
            let name = |of: &Value| format!("{prefix}{}", of.as_str().expect("a name"));
            list.iter().map(|one| (name(&one[column]), shape(&one[2]))).collect()
        };
        let transformers = prefixes.iter().map(|prefix| (shapes(0, prefix), *prefix));
        for (shapes, prefix) in
            transformers.chain([(shapes(1, ""), ""), (shapes(1, "text_encoders.llm."), "text_encoders.llm.")])
        {
            if kind == "t5" && prefix == "text_encoders.llm." {
                continue;
            }
            let (found, incomplete) = recognise(FAMILIES, &shapes);
            assert!(found.len() == 1 && incomplete.is_empty(), "{kind} below '{prefix}': {found:?}, {incomplete:?}");
            assert_eq!(found[0].prefix, prefix);
            let (used, unused) = usage(&shapes, &found).expect("it builds");
            assert!(unused.is_empty(), "{kind} below '{prefix}' does not use {unused:?}");
            assert!(used[0].iter().all(|name| shapes.contains_key(name)), "{kind} below '{prefix}'");
            let sizes = match (found[0].network.downcast::<T5>(), found[0].network.downcast::<Llm>()) {
                (Some(t5), _) => (t5.config.layers, t5.config.inner, found[0].network.to_string()),
                (_, Some(llm)) => (llm.config.layers, llm.config.inner, found[0].network.to_string()),
                _ => panic!("{found:?}"),
            };
            assert_eq!((sizes.0, sizes.1), (2, 96));
            let says = ["T5", "Qwen3", "Qwen2.5", "Mistral"].iter().find(|name| sizes.2.starts_with(**name));
            assert_eq!(says.map(|name| name.to_lowercase().replace(".5", "")), Some(kind.into()));
        }
    }
}

fn llm(published: LlmConfig, layout: LlmLayout) -> Llm {
    let config =
        LlmConfig { vocabulary: VOCABULARY, width: 48, layers: 4, heads: [4, 2], head: 16, inner: 96, ..published };
    Llm { config, layout }
}

fn check(name: &str, llm: &Llm, size: [usize; 2], lengths: &[usize], states: &LlmStates) {
    let inputs = llm.inputs(ids(size), lengths, states).expect("inputs");
    compare(name, &|n| llm.graph(size, states, n).expect("it builds"), &inputs);
}

#[test]
fn qwen_3() {
    let qwen = llm(LlmConfig::qwen3_4b(), LlmLayout::Transformers);
    let states = LlmStates { after: vec![1, 2, 3], norm: true, masked: true };
    check("qwen3.three", &qwen, [2, 33], &[33, 12], &states);
    let states = LlmStates { after: vec![3], norm: true, masked: false };
    check("qwen3.before_last", &qwen, [1, 33], &[33], &states);
    // What is after the last state is neither planned nor loaded.
    let graph = qwen.graph([1, 33], &states, impasto_model::ElementTypes::F32).expect("it builds");
    assert!(graph.params().all(|(name, _)| !name.starts_with("layers.3.") && name != "norm.weight"));
}

#[test]
fn qwen_2_5() {
    let states = LlmStates { after: vec![4], norm: true, masked: true };
    let mut qwen = llm(LlmConfig::qwen25_vl_7b(), LlmLayout::Transformers);
    qwen.config.width = 64;
    check("qwen25.hidden", &qwen, [2, 33], &[33, 12], &states);
}

/// The rows of queries and keys lie in another order in GGUF.
#[test]
fn mistral() {
    let states = LlmStates { after: vec![1, 3], norm: true, masked: false };
    let mistral = llm(LlmConfig::mistral_small(), LlmLayout::Transformers);
    check("mistral.two", &mistral, [2, 33], &[33, 33], &states);
    let states = LlmStates { after: vec![4], norm: true, masked: false };
    let mistral = llm(LlmConfig::mistral_small(), LlmLayout::Gguf);
    check("mistral.gguf", &mistral, [2, 33], &[33, 33], &states);
}
