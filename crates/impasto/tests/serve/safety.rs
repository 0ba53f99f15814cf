//! What a server refuses.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::serve::http::send;
use crate::serve::server::Server;

/// Any web page could drive the server of whoever looks at it.
#[test]
fn other_sites_names_and_forms_are_refused_on_every_route() {
    let server = Server::start(&[]);
    let host = server.address.to_string();
    let json_kind = ("content-type", "application/json");
    let ours = format!("http://{host}");
    let routes = [
        ("GET", "/"),
        ("GET", "/api/v1/jobs"),
        ("POST", "/api/v1/jobs"),
        ("GET", "/api/v1/events"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/images/edits"),
        ("POST", "/sdapi/v1/txt2img"),
        ("POST", "/sdapi/v1/interrupt"),
        ("GET", "/sdapi/v1/progress"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ];
    for (method, path) in routes {
        let body: &[u8] = if method == "POST" { b"{}" } else { b"" };
        for bad in [
            ("host", "evil.example"),
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let answer = send(server.address, method, path, &[json_kind, bad], body);
            assert_eq!(answer.status, 403, "{method} {path} with {bad:?}: {}", answer.text());
        }
        let answer = send(server.address, "OPTIONS", path, &[("origin", "http://evil.example")], b"");
        assert!(answer.header("access-control-allow-origin").is_none() && answer.status == 403, "{path}");
    }
    assert_eq!(send(server.address, "GET", "/api/v1/jobs", &[("origin", &ours)], b"").status, 200);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let answer = send(
            server.address,
            "POST",
            "/api/v1/jobs",
            &[("content-type", kind)],
            b"{\"settings\":{\"prompt\":\"x\"}}",
        );
        assert_eq!(answer.status, 415, "{kind}: {}", answer.text());
    }
    let page = server.get("/");
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    for word in ["http://", "https://", "style=\"", "onclick"] {
        let text = page.text().replace("http://www.w3.org/", "");
        assert!(!text.contains(word), "the page has {word}");
    }
}

/// Everybody on the network could use the machine.
#[test]
fn a_server_for_other_machines_has_a_key() {
    let server = Server::start(&["--listen", "0.0.0.0:0"]);
    let key = server.said.rsplit(": ").next().map(str::trim).expect("a key is printed").to_owned();
    assert_eq!(key.len(), 32, "{}", server.said);
    for path in
        ["/api/v1/jobs", "/metrics", "/v1/models", "/sdapi/v1/options", "/api/v1/events", "/api/v1/openapi.json"]
    {
        assert_eq!(server.get(path).status, 401, "{path}");
        let wrong =
            send(server.address, "GET", path, &[("authorization", "Bearer 0123456789abcdef0123456789abcdef")], b"");
        assert_eq!(wrong.status, 401, "{path}");
    }
    assert_eq!((server.get("/").status, server.get("/health").status), (200, 200));
    let bearer = format!("Bearer {key}");
    assert_eq!(send(server.address, "GET", "/v1/models", &[("authorization", &bearer)], b"").status, 200);
    let login = server.post("/api/v1/login", &json!({ "key": key }));
    let cookie = login.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(&key), "{cookie}");
    let pair = cookie.split(';').next().expect("a pair");
    assert_eq!(send(server.address, "GET", "/api/v1/jobs", &[("cookie", pair)], b"").status, 200);
    assert_eq!(server.post("/api/v1/login", &json!({"key": "wrong"})).status, 401);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode =
            |name: &str| std::fs::metadata(server.data.join(name)).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("key"), mode("pictures")), (0o700, 0o600, 0o700));
    }
}

/// 20,000 x 20,000 pixels in a few bytes, which must not be decoded: 1.6 GB.
fn bomb() -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, 20_000, 20_000);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&vec![0; 20_000 * 2_500]).expect("rows");
    writer.finish().expect("an end");
    bytes
}

/// A small file would become all of the memory, or a few brackets all of the stack.
#[test]
fn bombs_are_refused_before_they_grow() {
    let server = Server::start(&[]);
    let before = server.peak_memory();
    let bomb = BASE64.encode(bomb());
    assert!(bomb.len() < 200_000, "it is no bomb: {} bytes", bomb.len());
    let small = BASE64.encode({
        let mut bytes = std::io::Cursor::new(vec![]);
        image::GrayImage::new(64, 64).write_to(&mut bytes, image::ImageFormat::Png).expect("encoded");
        bytes.into_inner()
    });
    for (path, body) in [
        ("/api/v1/jobs", json!({"settings": {"prompt": "x"}, "init_image": bomb})),
        ("/api/v1/plan", json!({"settings": {"prompt": "x"}, "init_image": small, "mask": bomb})),
        (
            "/v1/images/edits",
            json!({"prompt": "x", "images": [{"image_url": format!("data:image/png;base64,{bomb}")}]}),
        ),
        ("/sdapi/v1/img2img", json!({"prompt": "x", "init_images": [bomb]})),
        (
            "/sdapi/v1/img2img",
            json!({"prompt": "x", "init_images": [small], "mask": bomb, "inpainting_mask_invert": 1}),
        ),
        ("/sdapi/v1/png-info", json!({ "image": bomb })),
    ] {
        let answer = server.post(path, &body);
        assert!(
            answer.status == 422 && answer.text().contains("20000x20000 has more pixels"),
            "{path}: {}",
            answer.text()
        );
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let routes = [
        "/api/v1/jobs",
        "/api/v1/plan",
        "/api/v1/login",
        "/v1/images/generations",
        "/v1/images/edits",
        "/sdapi/v1/txt2img",
        "/sdapi/v1/options",
    ];
    for path in routes {
        for body in [deep.clone(), format!("{{\"settings\": {deep}, \"prompt\": {deep}}}"), "{\"a\":".repeat(100_000)] {
            let answer = send(server.address, "POST", path, &[("content-type", "application/json")], body.as_bytes());
            assert!((400..500).contains(&answer.status), "{path}: {} {}", answer.status, answer.text());
        }
    }
    assert!(server.peak_memory() < before + 100, "{} MiB, {before} before", server.peak_memory());
}

/// Clients of webui send what only it knows; who misspells a field of ours would wonder why nothing changes.
#[test]
fn unknown_fields_are_ignored_for_webui_and_named_in_ours() {
    let server = Server::start(&[]);
    let webui =
        json!({"prompt": "a red house", "steps": 1, "no_such": {"a": [1]}, "alwayson_scripts": {"x": {"args": []}}});
    assert_eq!(server.post("/sdapi/v1/txt2img", &webui).json(200)["images"].as_array().map(Vec::len), Some(1));
    for (body, field) in [
        (json!({"settings": {"prompt": "x"}, "no_such": 1}), "no_such"),
        (json!({"settings": {"prompt": "x", "stepz": 1}}), "stepz"),
    ] {
        let answer = server.post("/api/v1/jobs", &body);
        assert!(answer.status == 422 && answer.text().contains(field), "{}", answer.text());
    }
}

/// One request could take the machine, or read its files.
#[test]
fn requests_that_ask_too_much_are_refused_in_words() {
    let server = Server::start(&["--max-steps", "30", "--max-batch", "4", "--max-pixels", "300000"]);
    let bomb = BASE64.encode(bomb());
    let asked = |settings: Value| json!({ "settings": settings });
    let cases = [
        (asked(json!({"prompt": "x", "steps": 31})), "at most 30"),
        (asked(json!({"prompt": "x", "batch-count": 5})), "at most 4"),
        (asked(json!({"prompt": "x", "width": 1024, "height": 512})), "more pixels"),
        (asked(json!({"prompt": "x", "steps": "many"})), "steps"),
        (asked(json!({"prompt": "x", "steps": [1]})), "a text, a number"),
        (asked(json!({"steps": 3})), "say what to show"),
        (asked(json!({"prompt": "x", "output": "/tmp/x.png"})), "no such setting"),
        (asked(json!({"prompt": "x", "init-img": "/etc/passwd"})), "no such setting"),
        (asked(json!({"prompt": "x", "model": "/etc/passwd"})), "no such setting"),
        (json!({"settings": {"prompt": "x"}, "model": "../../etc/passwd"}), "no model"),
        (json!({"settings": {"prompt": "x"}, "mask": "aGVsbG8="}), "mask"),
        (json!({"settings": {"prompt": "x"}, "init_image": "http://localhost/x.png"}), "fetches nothing"),
        (json!({"settings": {"prompt": "x"}, "init_image": "!!"}), "base64"),
        (json!({"settings": {"prompt": "x"}, "init_image": bomb}), "more pixels"),
        (json!({"settings": {"prompt": "x"}, "inti_image": "x"}), "unknown field"),
        (json!([1]), "invalid type"),
    ];
    for (body, words) in cases {
        let answer = server.post("/api/v1/jobs", &body);
        assert!((400..500).contains(&answer.status), "{body}: {}", answer.status);
        let message = serde_json::from_slice::<Value>(&answer.body).expect("JSON")["error"]["message"].to_string();
        assert!(message.contains(words), "{message} does not say '{words}'");
    }
    let large =
        send(server.address, "POST", "/api/v1/jobs", &[("content-type", "application/json")], &vec![b' '; 33 << 20]);
    assert_eq!(large.status, 413, "{}", large.text());
    for path in
        ["/api/v1/jobs/..%2f..%2fetc", "/api/v1/pictures/..%2fkey/file", "/..%2f..%2fetc/passwd", "/page/../Cargo.toml"]
    {
        let answer = server.get(path);
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.status);
    }
    assert_eq!(server.metric("impasto_pictures"), 0.0);
    let left = std::fs::read_dir(server.data.join("uploads")).expect("a folder").count();
    assert_eq!(left, 0, "refused requests leave nothing");
}

/// Two servers would run the same jobs twice.
#[test]
fn two_servers_do_not_share_a_folder() {
    let server = Server::start(&[]);
    let second = std::process::Command::new(crate::serve::server::PROGRAM)
        .args(["serve", "--listen", "127.0.0.1:0", "--gpu", "disable", "--data"])
        .arg(&server.data)
        .output()
        .expect("the program runs");
    let words = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && words.contains("another server uses it"), "{words}");
}
