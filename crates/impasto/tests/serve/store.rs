//! What goes wrong around a job: a disk that is full, a model that is gone, what is kept and for how long.

use serde_json::{Value, json};

use crate::serve::http::send;
use crate::serve::server::Server;

fn ended(server: &Server, id: &str) -> Value {
    server.wait(id, |job| !["queued", "running"].contains(&job["state"].as_str().unwrap_or_default()))
}

/// A disk that was full for a moment would cost the picture, or the server.
#[test]
fn a_full_disk_fails_the_job_in_words_and_it_can_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    // The first two are the state of the run, at its beginning and its end; the third is its picture.
    let server = Server::with_fault(&folder.path().join("data"), &[], "disk:write:3");
    let id = server.queue(json!({"prompt": "a red house", "steps": 2}));
    let failed = ended(&server, &id);
    assert_eq!(failed["state"], "failed", "{failed}");
    let error = failed["error"].as_str().expect("an error");
    assert!(error.contains("no storage space") && !error.contains(folder.path().to_str().expect("a path")), "{error}");
    assert_eq!(failed["resumable"], true, "{failed}");
    server.post(&format!("/api/v1/jobs/{id}/retry"), &json!({})).json(200);
    assert_eq!(server.wait_done(&id)["pictures"].as_array().map(Vec::len), Some(1));
}

/// Who moves a model while jobs wait for it would get a server that hangs, or that tells where its files are.
#[test]
fn a_model_that_is_gone_fails_its_jobs_in_words_and_one_that_comes_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let models = folder.path().join("models");
    std::fs::create_dir(&models).expect("made");
    let file = models.join("house.safetensors");
    let inside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/default.safetensors.zst");
    std::fs::copy(inside, &file).expect("copied");
    #[cfg(unix)]
    std::os::unix::fs::symlink("/etc/hostname", models.join("secret.safetensors")).expect("linked");
    let (path, data) = (models.to_str().expect("a path"), folder.path().join("data"));
    let server = Server::in_folder(&data, &["--models", path]);

    let asked = |model: &str| json!({"model": model, "settings": {"prompt": "a red house", "steps": 1}});
    let long = server.queue(json!({"prompt": "a red house", "steps": 150}));
    let waiting = server.post("/api/v1/jobs", &asked("house")).json(201)["id"].as_str().expect("an id").to_owned();
    // A server that has a model open would go on with it; another one has to open it.
    server.kill();
    std::fs::rename(&file, models.join("moved.safetensors")).expect("moved");
    let server = Server::in_folder(&data, &["--models", path]);
    server.post(&format!("/api/v1/jobs/{long}/cancel"), &json!({})).json(200);
    let failed = ended(&server, &waiting);
    let error = failed["error"].as_str().unwrap_or_else(|| panic!("it did not fail: {failed}"));
    assert!(failed["state"] == "failed" && error.contains("house") && !error.contains(path), "{failed}");
    let listed = server.get("/api/v1/models").json(200);
    let names: Vec<&str> =
        listed["models"].as_array().expect("models").iter().filter_map(|model| model["name"].as_str()).collect();
    assert_eq!(names, ["default", "moved"]);
    let made = server.post("/api/v1/jobs", &asked("moved")).json(201);
    server.wait_done(made["id"].as_str().expect("an id"));

    // Names are names: neither paths nor links to elsewhere.
    let refused =
        ["house", "secret", "../models/moved", "moved.safetensors", "/etc/hostname", "./moved", "MOVED", path];
    for name in refused {
        for (route, body) in [
            ("/api/v1/jobs", asked(name)),
            ("/v1/images/generations", json!({"prompt": "x", "model": name})),
            ("/sdapi/v1/options", json!({"sd_model_checkpoint": format!("../{name}")})),
        ] {
            let answer = server.post(route, &body);
            assert_eq!(answer.status, 404, "{route} {name}: {}", answer.text());
            let text = answer.text().replace(name, "");
            assert!(!text.contains(path) && !text.contains("/etc"), "{text}");
        }
    }
}

/// Pictures that nobody wanted to keep would fill the disk; or those that somebody did would be gone.
#[test]
fn as_many_jobs_are_kept_as_was_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = Server::in_folder(&data, &["--keep-jobs", "2"]);
    let jobs = [1, 2, 3].map(|seed| server.queue(json!({"prompt": "a red house", "steps": 1, "seed": seed})));
    server.wait_done(&jobs[2]);
    crate::serve::server::wait_for("the first to be forgotten", || {
        match server.get(&format!("/api/v1/jobs/{}", jobs[0])).status {
            404 => Ok(()),
            other => Err(other),
        }
    });
    let files = || std::fs::read_dir(data.join("pictures")).expect("a folder").count();
    assert_eq!((server.metric("impasto_pictures"), files()), (2.0, 2));
    server.kill();

    // What a kill left of jobs that are forgotten goes at the next start; what is not ours stays.
    for (file, is_ours) in [("0123456789abcdef.png", true), (".tmpAb12Cd", true), ("holiday in 2026.png", false)] {
        std::fs::write(data.join("pictures").join(file), "x")
            .unwrap_or_else(|error| panic!("{file}, {is_ours}: {error}"));
    }
    std::fs::write(data.join("uploads/0123456789abcdef-init.png"), "x").expect("written");
    let server = Server::in_folder(&data, &[]);
    assert!(!data.join("uploads/0123456789abcdef-init.png").exists());
    let job = server.queue(json!({"prompt": "a red house", "steps": 1}));
    server.wait_done(&job);
    assert_eq!(files(), 4, "two pictures, the new one, and what is not ours");
    assert!(data.join("pictures/holiday in 2026.png").exists());
    assert_eq!(send(server.address, "DELETE", &format!("/api/v1/jobs/{job}"), &[], b"").status, 204);
    assert_eq!(files(), 3);
}
