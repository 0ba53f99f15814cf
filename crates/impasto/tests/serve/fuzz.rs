//! Requests made at random: whatever is sent, the answer is one that says what is wrong, and the server lives.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value};

use crate::serve::http::send;
use crate::serve::server::Server;

/// Fields that the APIs know, so that what is behind them is reached.
const NAMES: [&str; 40] = [
    "settings",
    "model",
    "init_image",
    "mask",
    "prompt",
    "negative-prompt",
    "negative_prompt",
    "width",
    "height",
    "seed",
    "batch-count",
    "steps",
    "cfg-scale",
    "guidance",
    "flow-shift",
    "sampling-method",
    "scheduler",
    "eta",
    "rng",
    "clip-skip",
    "strength",
    "vae-split",
    "n",
    "size",
    "response_format",
    "output_format",
    "stream",
    "partial_images",
    "images",
    "init_images",
    "sampler_name",
    "sampler_index",
    "cfg_scale",
    "batch_size",
    "n_iter",
    "denoising_strength",
    "override_settings",
    "sd_model_checkpoint",
    "inpainting_mask_invert",
    "image",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9]{1,20}",
        "-?[0-9]{1,3}\\.[0-9]{1,3}",
        prop::sample::select(vec![
            "",
            "default",
            "../../etc/passwd",
            "/etc/passwd",
            "a red house",
            "512x512",
            "0x0",
            "auto",
            "NaN",
            "inf",
            "-1"
        ])
        .prop_map(str::to_owned),
        prop::sample::select(vec![
            "data:image/png;base64,AAAA",
            "iVBORw0KGgo=",
            "http://127.0.0.1/",
            "data:,",
            "euler",
            "karras",
            "Euler a"
        ])
        .prop_map(str::to_owned),
    ]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u32..2000).prop_map(Value::from),
        text().prop_map(Value::from),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![9 => prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned), 1 => text()]
}

fn object(of: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec((name(), of), 0..8)
        .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>()))
}

fn body() -> impl Strategy<Value = Value> {
    let value = scalar().prop_recursive(3, 16, 4, |inner| {
        prop_oneof![prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array), object(inner)]
    });
    // Mostly the shape that is expected, so that checks after the first are reached.
    let asked = (object(scalar()), text(), object(value.clone())).prop_map(|(settings, prompt, mut rest)| {
        rest["prompt"] = prompt.clone().into();
        rest["settings"] = settings;
        rest["settings"]["prompt"] = prompt.into();
        rest
    });
    prop_oneof![2 => asked, 2 => object(scalar()), 1 => value]
}

/// One odd request would end the server, or show its inside.
#[test]
fn random_requests_are_answered_and_never_break_the_server() {
    // Nothing is ever queued: what is right is refused too, in the end.
    let server = Server::start(&["--max-queue", "0"]);
    let routes = [
        "/api/v1/jobs",
        "/sdapi/v1/txt2img",
        "/sdapi/v1/img2img",
        "/sdapi/v1/options",
        "/v1/images/generations",
        "/v1/images/edits",
    ];
    let mut right = 0;
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let done = runner.run(&(prop::sample::select(routes.to_vec()), body()), |(path, body)| {
        let kind = [("content-type", "application/json")];
        let answer = send(server.address, "POST", path, &kind, body.to_string().as_bytes());
        prop_assert!((200..500).contains(&answer.status), "{} of {}: {}", answer.status, path, answer.text());
        prop_assert!(serde_json::from_slice::<Value>(&answer.body).is_ok(), "{}: {}", path, answer.text());
        prop_assert!(!answer.text().contains("root:"), "{}", answer.text());
        Ok(())
    });
    done.unwrap_or_else(|error| panic!("{error}\n{}", server.log()));
    for path in ["/api/v1/jobs", "/sdapi/v1/txt2img", "/v1/images/generations"] {
        let body = serde_json::json!({"prompt": "a red house", "settings": {"prompt": "a red house"}});
        let body = if path == "/api/v1/jobs" { serde_json::json!({ "settings": body["settings"] }) } else { body };
        right += usize::from(server.post(path, &body).status == 429);
    }
    assert_eq!(right, 3, "requests that are right are refused for another reason than the queue");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
