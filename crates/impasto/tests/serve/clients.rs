//! Requests as programs that nobody here wrote send them: Open WebUI, SillyTavern (as recorded from their sources), and OpenAI's clients.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::serve::http::{connect, send};
use crate::serve::server::Server;

fn decoded(text: &Value) -> image::RgbImage {
    let bytes = BASE64.decode(text.as_str().expect("base64")).expect("base64");
    image::load_from_memory(&bytes).expect("a picture").into_rgb8()
}

fn png(picture: &image::DynamicImage) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(vec![]);
    picture.write_to(&mut bytes, image::ImageFormat::Png).expect("encoded");
    bytes.into_inner()
}

/// A picture that the model inside knows how to encode: one of its own.
fn start(server: &Server) -> image::RgbImage {
    let made = server.post("/sdapi/v1/txt2img", &json!({"prompt": "a red house by the sea", "steps": 8, "seed": 2}));
    decoded(&made.json(200)["images"][0])
}

/// How far pixels are apart on average, in columns from `from` on that are away from the mask's edge at 128.
fn apart(a: &image::RgbImage, b: &image::RgbImage, from: u32) -> f64 {
    let columns = from + 20..from + 108;
    let at =
        |x: u32, y: u32| (0..3).map(|c| f64::from(a.get_pixel(x, y)[c].abs_diff(b.get_pixel(x, y)[c]))).sum::<f64>();
    columns.clone().map(|x| (0..256).map(|y| at(x, y)).sum::<f64>()).sum::<f64>() / (3.0 * 256.0 * columns.len() as f64)
}

/// Open WebUI would say that the server cannot be reached, or show nothing.
#[test]
fn open_webui_connects_and_makes_a_picture() {
    let server = Server::start(&[]);
    // Without a key it sends an empty Basic header.
    let headers = [("content-type", "application/json"), ("authorization", "Basic Og==")];
    let get = |path: &str| send(server.address, "GET", path, &headers, b"");
    let mut options = get("/sdapi/v1/options").json(200);
    let models = get("/sdapi/v1/sd-models").json(200);
    assert_eq!((&models[0]["title"], &models[0]["model_name"]), (&json!("default"), &json!("default")));
    // It posts all options back, with the model that it wants.
    options["sd_model_checkpoint"] = models[0]["title"].clone();
    assert_eq!(send(server.address, "POST", "/sdapi/v1/options", &headers, options.to_string().as_bytes()).status, 200);
    let body = json!({"prompt": "a red house", "batch_size": 2, "width": 256, "height": 256, "steps": 2, "negative_prompt": "sky"});
    let made = send(server.address, "POST", "/sdapi/v1/txt2img", &headers, body.to_string().as_bytes()).json(200);
    assert_eq!(made["images"].as_array().map(Vec::len), Some(2));
    assert_eq!(decoded(&made["images"][1]).dimensions(), (256, 256));
    let info: Value = serde_json::from_str(made["info"].as_str().expect("a text")).expect("JSON");
    assert_eq!(info["all_seeds"].as_array().map(Vec::len), Some(2));
    let missing = server.post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "no such"}));
    assert!(missing.status == 404 && missing.text().contains("no such"), "{}", missing.text());
}

/// SillyTavern would wait for ever, or fail where it sets a model and stops.
#[test]
fn silly_tavern_sets_a_model_watches_progress_and_stops() {
    let server = Server::start(&[]);
    for path in ["samplers", "schedulers", "upscalers", "latent-upscale-modes", "sd-vae", "sd-models", "options"] {
        assert_eq!(server.get(&format!("/sdapi/v1/{path}")).status, 200, "{path}");
    }
    assert_eq!(server.post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "default"})).status, 200);
    let idle = server.get("/sdapi/v1/progress").json(200);
    assert_eq!((&idle["progress"], &idle["state"]["job_count"]), (&json!(0.0), &json!(0)));
    let body = json!({
        "prompt": "a red house", "negative_prompt": "", "sampler_name": "DPM++ 2M Karras", "scheduler": "Karras", "steps": 150, "cfg_scale": 7,
        "width": 512, "height": 512, "restore_faces": false, "enable_hr": false, "hr_upscaler": "Latent", "denoising_strength": 0.7,
        "seed": -1, "override_settings": {"CLIP_stop_at_last_layers": 1}, "override_settings_restore_afterwards": true,
        "clip_skip": 1, "save_images": true, "send_images": true, "do_not_save_grid": false, "do_not_save_samples": false,
    });
    let address = server.address;
    let waiting = std::thread::spawn(move || {
        send(address, "POST", "/sdapi/v1/txt2img", &[("content-type", "application/json")], body.to_string().as_bytes())
    });
    let begun = std::time::Instant::now();
    loop {
        let progress = server.get("/sdapi/v1/progress").json(200);
        let share = progress["progress"].as_f64().expect("a number");
        if share > 0.02 && progress["current_image"].is_string() {
            assert!(share < 1.0 && progress["state"]["sampling_steps"] == 150, "{}", progress["state"]);
            assert!(decoded(&progress["current_image"]).width() > 0);
            break;
        }
        assert!(begun.elapsed().as_secs() < 60, "no progress");
    }
    // Neither a body nor a content type.
    assert_eq!(send(server.address, "POST", "/sdapi/v1/interrupt", &[], b"").status, 200);
    assert_eq!(waiting.join().expect("answered").json(200)["images"], json!([]));
    let unknown = server.post("/sdapi/v1/txt2img", &json!({"prompt": "x", "sampler_name": "Magic"}));
    assert!(unknown.status == 404 && unknown.text().contains("Euler a"), "{}", unknown.text());
}

/// webui's clients would change what the mask protects.
#[test]
fn pictures_are_changed_where_the_mask_is_and_say_how_they_were_made() {
    let server = Server::start(&[]);
    let (original, half) =
        (start(&server), image::GrayImage::from_fn(256, 256, |x, _| image::Luma([if x < 128 { 255 } else { 0 }])));
    let (init, mask) = (BASE64.encode(png(&original.clone().into())), BASE64.encode(png(&half.into())));
    let mut body = json!({"prompt": "a blue house by the sea", "steps": 8, "seed": 1, "init_images": [format!("data:image/png;base64,{init}")],
                          "mask": mask, "denoising_strength": 1.0, "inpainting_mask_invert": 0});
    let made = server.post("/sdapi/v1/img2img", &body).json(200);
    let picture = decoded(&made["images"][0]);
    let (inside, outside) = (apart(&picture, &original, 0), apart(&picture, &original, 128));
    assert!(outside * 3.0 < inside, "inside {inside}, outside {outside}");
    body["inpainting_mask_invert"] = json!(1);
    let inverted = decoded(&server.post("/sdapi/v1/img2img", &body).json(200)["images"][0]);
    let (outside, inside) = (apart(&inverted, &original, 0), apart(&inverted, &original, 128));
    assert!(outside * 3.0 < inside, "inverted: inside {inside}, outside {outside}");

    let info = server.post("/sdapi/v1/png-info", &json!({"image": made["images"][0]})).json(200);
    let text = info["info"].as_str().expect("a text");
    assert!(text.contains("a blue house") && text.contains("Seed: 1,"), "{text}");
    assert_eq!(server.post("/sdapi/v1/img2img", &json!({"prompt": "x"})).status, 404);
}

fn form(fields: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut body = vec![];
    for (name, file, bytes) in fields {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\"\r\ncontent-type: image/png"));
        body.extend(format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n").as_bytes());
        body.extend(*bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--edge--\r\n");
    body
}

/// Programs for OpenAI's API would not run here.
#[test]
fn openai_requests_generate_edit_and_stream() {
    let server = Server::start(&[]);
    let models = server.get("/v1/models").json(200);
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("default")));
    let body = json!({"model": "gpt-image-1", "prompt": "a red house", "n": 2, "size": "128x256", "response_format": "b64_json", "steps": 2,
                      "quality": "high", "user": "x", "output_format": "jpeg"});
    let made = server.post("/v1/images/generations", &body).json(200);
    assert_eq!((made["data"].as_array().map(Vec::len), &made["output_format"]), (Some(2), &json!("jpeg")));
    assert_eq!(decoded(&made["data"][0]["b64_json"]).dimensions(), (128, 256));

    let streamed = server.post(
        "/v1/images/generations",
        &json!({"prompt": "a red house", "steps": 12, "stream": true, "partial_images": 2}),
    );
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let text = streamed.text();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        kinds,
        ["image_generation.partial_image", "image_generation.partial_image", "image_generation.completed"]
    );
    assert_eq!((&events[1]["partial_image_index"], decoded(&events[2]["b64_json"]).width()), (&json!(1), 256));

    // Transparent is made anew.
    let original = start(&server);
    let mask = image::RgbaImage::from_fn(256, 256, |x, _| image::Rgba([0, 0, 0, if x < 128 { 0 } else { 255 }]));
    let body = form(&[
        ("prompt", None, b"a blue house by the sea"),
        ("steps", None, b"8"),
        ("n", None, b"1"),
        ("image[]", Some("a.png"), &png(&original.clone().into())),
        ("mask", Some("m.png"), &png(&mask.into())),
    ]);
    let kind = ("content-type", "multipart/form-data; boundary=edge");
    let edited = send(server.address, "POST", "/v1/images/edits", &[kind], &body).json(200);
    let picture = decoded(&edited["data"][0]["b64_json"]);
    let (inside, outside) = (apart(&picture, &original, 0), apart(&picture, &original, 128));
    assert!(outside * 2.0 < inside, "inside {inside}, outside {outside}");

    for (body, param) in [
        (json!({"prompt": "x", "size": "big"}), "size"),
        (json!({"prompt": "x", "response_format": "url"}), "response_format"),
        (json!({"prompt": "x", "output_format": "gif"}), "output_format"),
    ] {
        let refused = server.post("/v1/images/generations", &body).json(400);
        assert_eq!(
            (&refused["error"]["param"], &refused["error"]["type"]),
            (&json!(param), &json!("invalid_request_error"))
        );
    }
    assert_eq!(server.post("/v1/images/generations", &json!({"prompt": "x", "model": "no such"})).status, 404);
}

/// A client that goes away would keep the machine busy for nobody.
#[test]
fn who_goes_away_cancels_the_job() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "a red house", "steps": 150, "size": "768x768"}).to_string();
    let stream = connect(
        server.address,
        "POST",
        "/v1/images/generations",
        &[("content-type", "application/json")],
        body.as_bytes(),
    );
    let begun = std::time::Instant::now();
    let id = loop {
        let jobs = server.get("/api/v1/jobs?state=running").json(200);
        if let Some(id) = jobs["jobs"][0]["id"].as_str() {
            break id.to_owned();
        }
        assert!(begun.elapsed().as_secs() < 60, "no job");
    };
    drop(stream);
    server.wait(&id, |job| job["state"] == "cancelled");
}

/// Programs that use OpenAI's or webui's own libraries would fail on a field that we think nobody reads.
#[test]
fn clients_from_pypi_generate_edit_and_stream() {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| std::path::Path::new(&home).join(".cache")));
    let usual = cache.unwrap_or_default().join("impasto-test/clients-1/bin/python");
    let python = std::env::var_os("IMPASTO_CLIENTS_PYTHON").map_or(usual, std::path::PathBuf::from);
    assert!(python.exists(), "there is no {}: tools/test.sh makes it, with openai and webuiapi", python.display());
    let server = Server::start(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/clients.py");
    let run = std::process::Command::new(python).arg(script).arg(format!("http://{}", server.address)).output();
    let run = run.expect("Python runs");
    assert!(run.status.success(), "{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
}
