//! `impasto serve` as programs see it, from a real server over real sockets.

mod attacks;
mod clients;
mod fuzz;
pub mod http;
mod kills;
mod safety;
pub mod server;
mod store;

use serde_json::{Value, json};

use http::{EventLines, send};
use server::{PROGRAM, Server};

/// The pixels of a PNG.
fn pixels(bytes: &[u8]) -> Vec<u8> {
    image::load_from_memory(bytes).expect("a picture").into_rgb8().into_raw()
}

/// The picture that the command makes by the same settings.
fn by_command(args: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.png");
    let done = std::process::Command::new(PROGRAM).args(["--gpu", "disable", "-o"]).arg(&file).args(args).output();
    let done = done.expect("the program runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    pixels(&std::fs::read(file).expect("a picture"))
}

fn picture(server: &Server, job: &Value, index: usize) -> Vec<u8> {
    let id = job["pictures"][index]["id"].as_i64().expect("a picture");
    let answer = server.get(&format!("/api/v1/pictures/{id}/file"));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("image/png")));
    pixels(&answer.body)
}

/// A page that is open all evening would show nothing, or other pictures than the command makes.
#[test]
fn a_job_tells_what_happens_and_makes_the_pictures_of_the_command() {
    let server = Server::start(&[]);
    let events = EventLines::listen(server.address, "/api/v1/events");
    let id = server.queue(json!({"prompt": "a red house", "steps": 4, "seed": 7, "batch-count": 2}));
    let mut told: Vec<(String, Value)> = vec![];
    for (name, data) in events {
        assert_eq!(data["job"], *id);
        told.push((name.clone(), data));
        if name == "done" {
            break;
        }
    }
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    let count = |name: &str| names.iter().filter(|known| **known == name).count();
    assert_eq!((names[0], count("picture"), count("step"), count("preview")), ("queued", 2, 10, 8), "{names:?}");
    assert!(count("loading") >= 3, "{names:?}");
    let last_step = told.iter().rfind(|(name, _)| name == "step").expect("a step");
    assert_eq!(
        (&last_step.1["picture"], &last_step.1["done"], &last_step.1["seconds_left"]),
        (&json!(1), &json!(4), &json!(0.0))
    );

    let job = server.job(&id);
    assert_eq!((&job["state"], job["pictures"].as_array().map(Vec::len)), (&json!("done"), Some(2)));
    assert_eq!(picture(&server, &job, 1), by_command(&["-p", "a red house", "--steps", "4", "-s", "8"]));
    // Nothing is loaded a second time.
    let loads = server.metric("impasto_loads_total");
    server.wait_done(&server.queue(json!({"prompt": "a blue tree", "steps": 2})));
    assert_eq!(server.metric("impasto_loads_total"), loads);

    let found = |search: &str| {
        server.get(&format!("/api/v1/pictures?search={search}")).json(200)["pictures"].as_array().map(Vec::len)
    };
    assert_eq!((found("RED+house"), found("tree"), found("dragon"), found("")), (Some(2), Some(1), Some(0), Some(3)));
    let first = job["pictures"][0]["id"].as_i64().expect("an id");
    assert_eq!(send(server.address, "DELETE", &format!("/api/v1/pictures/{first}"), &[], b"").status, 204);
    assert_eq!(server.get(&format!("/api/v1/pictures/{first}/file")).status, 404);
    assert_eq!(send(server.address, "DELETE", &format!("/api/v1/jobs/{id}"), &[], b"").status, 204);
    assert_eq!((server.get(&format!("/api/v1/jobs/{id}")).status, found("house")), (404, Some(0)));
    let left = std::fs::read_dir(server.data.join("pictures")).expect("a folder").count();
    assert_eq!(left, 1, "files of deleted pictures are deleted");
}

/// An evening's queue would be lost with a power cut.
#[test]
fn a_server_that_is_killed_goes_on_from_the_last_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = Server::in_folder(&data, &[]);
    let asked = json!({"prompt": "a red house", "steps": 40, "seed": 5, "batch-count": 2});
    let id = server.queue(asked);
    let next = server.queue(json!({"prompt": "a blue tree", "steps": 2, "seed": 1}));
    // In the middle of the second picture, so that a picture and a state are both there; the state is written twice a second.
    server.wait(&id, |job| job["progress"]["picture"] == 1 && job["progress"]["done"].as_u64() > Some(25));
    server.kill();

    let server = Server::in_folder(&data, &[]);
    let events = EventLines::listen(server.address, &format!("/api/v1/jobs/{id}/events"));
    let first_step = events.into_iter().find(|(name, _)| name == "step").map(|(_, data)| data["done"].as_u64());
    let job = server.wait_done(&id);
    assert!(first_step.flatten() > Some(5), "it began anew: {first_step:?}");
    assert_eq!(job["pictures"].as_array().map(Vec::len), Some(2), "{job}");
    for (i, seed) in ["5", "6"].into_iter().enumerate() {
        let whole = by_command(&["-p", "a red house", "-s", seed, "--steps", "40"]);
        assert!(picture(&server, &job, i) == whole, "picture {i}");
    }
    let next = server.wait_done(&next);
    assert_eq!(picture(&server, &next, 0), by_command(&["-p", "a blue tree", "--steps", "2", "-s", "1"]));
}

/// People could neither stop what they did not want, nor change what comes first, nor go on after they stopped.
#[test]
fn jobs_are_stopped_moved_and_resumed_and_a_full_queue_says_so() {
    let server = Server::start(&["--max-queue", "3"]);
    let long = server.queue(json!({"prompt": "a red house", "steps": 60, "seed": 3}));
    server.wait(&long, |job| job["progress"]["done"].as_u64() > Some(2));
    let [a, b, c] = ["a", "b", "c"].map(|name| server.queue(json!({"prompt": name, "steps": 1})));
    let full = server.post("/api/v1/jobs", &json!({"settings": {"prompt": "d"}}));
    assert_eq!((full.status, full.header("retry-after").is_some()), (429, true), "{}", full.text());
    assert!(full.text().contains("3 jobs wait already"), "{}", full.text());
    let moved = server.post(&format!("/api/v1/jobs/{c}/move"), &json!({"to": 0})).json(200);
    assert_eq!(moved["position"], 0);
    assert_eq!(server.post(&format!("/api/v1/jobs/{a}/cancel"), &json!({})).json(200)["state"], "cancelled");
    let listed = server.get("/api/v1/jobs?state=queued").json(200);
    let order: Vec<&str> =
        listed["jobs"].as_array().expect("jobs").iter().filter_map(|job| job["id"].as_str()).collect();
    assert_eq!(order, [&*c, &*b]);

    assert_eq!(send(server.address, "DELETE", &format!("/api/v1/jobs/{long}"), &[], b"").status, 409);
    let events = EventLines::listen(server.address, &format!("/api/v1/jobs/{long}/events"));
    server.post(&format!("/api/v1/jobs/{long}/cancel"), &json!({})).json(200);
    let stopped = server.wait(&long, |job| job["state"] == "cancelled");
    assert_eq!(stopped["resumable"], true);
    // The events of a job end with it, and who comes later is told its end.
    assert_eq!(events.into_iter().last().map(|(name, _)| name).as_deref(), Some("cancelled"));
    let late = EventLines::listen(server.address, &format!("/api/v1/jobs/{long}/events"));
    assert_eq!(late.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["cancelled"]);
    let again = server.post(&format!("/api/v1/jobs/{long}/cancel"), &json!({}));
    assert!(again.status == 409 && again.text().contains("has ended already"), "{}", again.text());
    server.wait_done(&c);
    server.wait_done(&b);
    server.post(&format!("/api/v1/jobs/{long}/retry"), &json!({})).json(200);
    let done = server.wait_done(&long);
    let whole = by_command(&["-p", "a red house", "--steps", "60", "-s", "3"]);
    assert!(picture(&server, &done, 0) == whole, "resumed, it is another picture");
    // However soon somebody thinks better of it: in the queue, about to begin, or begun.
    for _ in 0..5 {
        let id = server.queue(json!({"prompt": "a red house", "steps": 200}));
        server.post(&format!("/api/v1/jobs/{id}/cancel"), &json!({})).json(200);
        server.wait(&id, |job| job["state"] == "cancelled");
    }
}

/// Who plans, or writes a client, would have to guess.
#[test]
fn settings_models_devices_plans_and_the_document_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("broken.safetensors"), b"not a model").expect("written");
    let models = folder.path().to_str().expect("a path");
    let server = Server::start(&["--models", models]);
    let settings = server.get("/api/v1/settings").json(200);
    let names: Vec<&str> =
        settings["settings"].as_array().expect("settings").iter().filter_map(|s| s["name"].as_str()).collect();
    assert!(names.contains(&"steps") && names.contains(&"sampling-method"));
    for hidden in ["output", "model", "init-img", "backend", "lora", "threads"] {
        assert!(!names.contains(&hidden), "{hidden} can be asked for over HTTP");
    }
    let listed = server.get("/api/v1/models").json(200);
    assert_eq!((&listed["models"][0]["name"], &listed["models"][0]["width"]), (&json!("default"), &json!(256)));
    let error = listed["models"][1]["error"].as_str().expect("it cannot be opened");
    assert!(!error.contains(models), "the folders of this machine are told: {error}");
    let devices = server.get("/api/v1/devices").json(200);
    assert_eq!(devices["devices"][0]["name"], "cpu");
    let plan = server.post("/api/v1/plan", &json!({"settings": {"width": 512, "height": 512}})).json(200);
    assert_eq!((&plan["fits"], plan["modules"].as_array().map(Vec::len)), (&json!(true), Some(3)));
    assert!(plan["peaks"][0]["bytes"].as_u64() <= plan["peaks"][0]["limit"].as_u64());
    let left = std::fs::read_dir(server.data.join("uploads")).expect("a folder").count();
    assert_eq!(left, 0, "a plan leaves nothing");
}

/// Programs that are generated from the document would not work.
#[test]
fn the_document_describes_every_route_of_ours() {
    let server = Server::start(&[]);
    let document = server.get("/api/v1/openapi.json").json(200);
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")));
    let routes = include_str!("../../../server/src/lib.rs").lines().filter_map(|line| {
        let (path, methods) = line.trim().strip_prefix(".route(\"")?.split_once("\", ")?;
        Some((path, methods))
    });
    let mut described = 0;
    for (path, methods) in routes.filter(|(path, _)| path.starts_with("/api/v1/") && !path.ends_with("openapi.json")) {
        for method in ["get", "post", "delete"].into_iter().filter(|method| methods.contains(&format!("{method}("))) {
            let operation = &document["paths"][path][method];
            assert!(operation["summary"].is_string(), "{method} {path} is not described");
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_path =
                parameters.iter().filter(|parameter| parameter["in"] == "path" && parameter["required"] == true);
            assert_eq!(in_path.count(), path.matches('{').count(), "{method} {path}: its parameters");
            let answers = operation["responses"].as_object().expect("answers");
            for (status, answer) in answers {
                let has_body = answer["content"].is_object();
                assert!(has_body != (status == "204") || has_body, "{method} {path}: {status} is not described");
            }
            described += 1;
        }
    }
    assert!(described >= 20, "only {described} routes were found");
    // What is referred to is there.
    let mut left = vec![&document];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(&reference[1..]).is_some(), "{reference} is not there");
                }
                left.extend(fields.values());
            }
            Value::Array(values) => left.extend(values),
            _ => {}
        }
    }
    // And it is true of what is answered.
    let job = server.queue(json!({"prompt": "a red house", "steps": 1}));
    server.wait_done(&job);
    for (path, schema) in
        [("/api/v1/jobs", "JobList"), ("/api/v1/pictures", "PictureList"), ("/api/v1/models", "ModelList")]
    {
        let answer = server.get(path).json(200);
        let described = document.pointer(&format!("/components/schemas/{schema}/properties")).expect("a schema");
        let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&answer), names(described), "{path}");
    }
}
