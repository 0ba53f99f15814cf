//! `impasto serve` as programs see it, from a real server over real sockets.

mod clients;
mod http;
mod safety;
mod server;

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
    let asked = json!({"prompt": "a red house", "steps": 40, "seed": 5, "width": 512, "height": 512, "batch-count": 2});
    let id = server.queue(asked);
    let next = server.queue(json!({"prompt": "a blue tree", "steps": 2, "seed": 1}));
    // In the middle of the second picture, so that a picture and a state are both there.
    server.wait(&id, |job| job["progress"]["picture"] == 1 && job["progress"]["done"].as_u64() > Some(12));
    server.kill();

    let server = Server::in_folder(&data, &[]);
    let events = EventLines::listen(server.address, &format!("/api/v1/jobs/{id}/events"));
    let first_step = events.into_iter().find(|(name, _)| name == "step").map(|(_, data)| data["done"].as_u64());
    let job = server.wait_done(&id);
    assert!(first_step.flatten() > Some(5), "it began anew: {first_step:?}");
    assert_eq!(job["pictures"].as_array().map(Vec::len), Some(2), "{job}");
    let size = ["-W", "512", "-H", "512", "--steps", "40"];
    for (i, seed) in ["5", "6"].into_iter().enumerate() {
        assert!(
            picture(&server, &job, i) == by_command(&[&["-p", "a red house", "-s", seed], &size[..]].concat()),
            "picture {i}"
        );
    }
    let next = server.wait_done(&next);
    assert_eq!(picture(&server, &next, 0), by_command(&["-p", "a blue tree", "--steps", "2", "-s", "1"]));
}

/// People could neither stop what they did not want, nor change what comes first, nor go on after they stopped.
#[test]
fn jobs_are_stopped_moved_and_resumed_and_a_full_queue_says_so() {
    let server = Server::start(&["--max-queue", "3"]);
    let long = server.queue(json!({"prompt": "a red house", "steps": 60, "seed": 3, "width": 512, "height": 512}));
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
    server.post(&format!("/api/v1/jobs/{long}/cancel"), &json!({})).json(200);
    let stopped = server.wait(&long, |job| job["state"] == "cancelled");
    assert_eq!(stopped["resumable"], true);
    let again = server.post(&format!("/api/v1/jobs/{long}/cancel"), &json!({}));
    assert!(again.status == 409 && again.text().contains("has ended already"), "{}", again.text());
    server.wait_done(&c);
    server.wait_done(&b);
    server.post(&format!("/api/v1/jobs/{long}/retry"), &json!({})).json(200);
    let done = server.wait_done(&long);
    let whole = by_command(&["-p", "a red house", "--steps", "60", "-s", "3", "-W", "512", "-H", "512"]);
    assert!(picture(&server, &done, 0) == whole, "resumed, it is another picture");
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
    let document = server.get("/api/v1/openapi.json").json(200);
    for path in ["/api/v1/jobs", "/api/v1/jobs/{id}/move", "/api/v1/pictures/{id}/file", "/api/v1/plan"] {
        assert!(document["paths"][path].is_object(), "{path} is not in the document");
    }
    let left = std::fs::read_dir(server.data.join("uploads")).expect("a folder").count();
    assert_eq!(left, 0, "a plan leaves nothing");
}
