//! The page of `impasto serve` as a user meets it: a real browser, real clicks and a real model.

mod driver;
#[path = "../serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "../serve/server.rs"]
#[allow(dead_code)]
mod server;

use driver::{Browser, ENTER};
use serde_json::{Value, json};
use server::Server;

/// The page has read settings and models, and listens.
const READY: &str =
    "document.querySelector('#model option') && document.querySelector('#connection').textContent === ''";
const PREVIEW_SEEN: &str = "(() => { const image = document.querySelector('#stage-preview'); \
    return image.src && image.naturalWidth > 0 && image.offsetWidth > 0 })()";

fn open(server: &Server) -> Browser {
    let browser = Browser::open(server.address);
    browser.wait(READY);
    browser
}

/// Fills the form and presses Generate.
fn generate(browser: &Browser, prompt: &str, side: u32, steps: u32) {
    browser.fill("#prompt", prompt);
    let side = side.to_string();
    for (field, text) in [("#width", &side), ("#height", &side), ("#steps", &steps.to_string())] {
        browser.fill(field, text);
    }
    browser.click("#generate");
}

/// The job that the page has just queued with this prompt.
fn job_of(server: &Server, browser: &Browser, prompt: &str) -> Value {
    let mut found = Value::Null;
    browser.until(&format!("a job for {prompt}"), || {
        let jobs = server.get("/api/v1/jobs").json(200);
        let jobs = jobs["jobs"].as_array().expect("a list");
        found = jobs.iter().find(|job| job["settings"]["prompt"] == prompt).cloned().unwrap_or_default();
        if found.is_null() { Err(format!("{jobs:?}")) } else { Ok(()) }
    });
    found
}

fn id(job: &Value) -> &str {
    job["id"].as_str().expect("an id")
}

fn pictures(server: &Server) -> Vec<Value> {
    server.get("/api/v1/pictures").json(200)["pictures"].as_array().expect("a list").clone()
}

fn wait_for_pictures(browser: &Browser, count: usize) {
    browser.wait(&format!("document.querySelectorAll('#gallery button[data-picture]').length === {count}"));
    browser.wait("[...document.querySelectorAll('#gallery img')].every((image) => image.naturalWidth > 0)");
}

/// If this failed, someone who opens the page for the first time would get no picture, see nothing of it while it is
/// made, or could neither look at it, make it again nor throw it away.
#[test]
fn first_visit_to_picture() {
    let server = Server::start(&[]);
    let browser = open(&server);
    let prompt = "a red circle on a blue background";
    generate(&browser, prompt, 512, 60);
    browser.wait(PREVIEW_SEEN);
    let job = job_of(&server, &browser, prompt);
    assert_eq!(job["state"], "running", "the preview was seen only after the end: {job}");
    wait_for_pictures(&browser, 1);
    server.wait_done(id(&job));
    let picture = &pictures(&server)[0];

    browser.fill("#prompt", "something else");
    browser.fill("#steps", "3");
    browser.click("#gallery button[data-picture]");
    browser.wait("document.querySelector('#viewer').open");
    browser.wait(
        "[...document.querySelectorAll('#viewer img')].some((image) => image.naturalWidth === 512 \
         && image.naturalHeight === 512 && image.offsetWidth >= 512)",
    );
    let link = browser.script("return document.querySelector('#download-picture').href");
    let path = link.as_str().and_then(|link| link.split_once(&server.address.to_string())).expect("a link").1;
    let file = server.get(path);
    assert_eq!(file.status, 200);
    assert!(file.header("content-disposition").is_some_and(|how| how.starts_with("attachment")));
    assert_eq!(image::load_from_memory(&file.body).expect("a picture").width(), 512);

    browser.click("#use-settings");
    browser.wait("!document.querySelector('#viewer').open");
    assert_eq!(browser.value("#prompt"), prompt);
    assert_eq!(browser.value("#steps"), "60");
    assert_eq!(browser.value("#seed"), picture["seed"].to_string());

    browser.click("#gallery button[data-picture]");
    browser.click("#delete-picture");
    browser.click("#delete-confirm");
    wait_for_pictures(&browser, 0);
    assert!(pictures(&server).is_empty());
    browser.wait("!document.querySelector('#viewer').open");
    browser.assert_no_errors(&[]);
}

/// If this failed, a job could not be stopped, a queue would not be worked through, or closing the page would lose
/// what it was making.
#[test]
fn stopping_queue_and_reload() {
    let server = Server::start(&[]);
    let browser = open(&server);
    let row = |id: &str, state: &str| {
        browser.wait(&format!("document.querySelector('#queue li[data-job=\"{id}\"]')?.dataset.state === '{state}'"));
    };

    generate(&browser, "stopped", 768, 100);
    let stopped = job_of(&server, &browser, "stopped");
    browser.wait("Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0");
    browser.click("#stop");
    let stopped = server.wait(id(&stopped), |job| job["state"] != "running");
    assert_eq!(stopped["state"], "cancelled");
    row(id(&stopped), "cancelled");
    browser.wait("document.querySelector('#stop').disabled");

    let names = ["first", "second", "third", "fourth", "fifth"];
    let mut jobs = vec![];
    for name in names {
        generate(&browser, name, if name == "first" { 768 } else { 256 }, if name == "first" { 60 } else { 8 });
        jobs.push(job_of(&server, &browser, name));
    }
    jobs.iter().skip(1).for_each(|job| row(id(job), "queued"));
    let first = server.job(id(&jobs[0]));
    assert_eq!(first["state"], "running", "it ended before the queue could be seen: {first}");
    browser.click(&format!("#queue li[data-job=\"{}\"] [data-action=cancel]", id(&jobs[2])));
    row(id(&jobs[2]), "cancelled");
    for (index, job) in jobs.iter().enumerate() {
        if index == 2 {
            assert_eq!(server.wait(id(job), |job| job["state"] != "queued")["state"], "cancelled");
        } else {
            server.wait_done(id(job));
        }
    }
    wait_for_pictures(&browser, 4);
    browser.wait("!document.querySelector('#queue li[data-state=queued], #queue li[data-state=running]')");

    generate(&browser, "going on", 768, 60);
    let running = job_of(&server, &browser, "going on");
    generate(&browser, "waiting", 256, 8);
    let waiting = job_of(&server, &browser, "waiting");
    browser.wait("Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0");
    browser.reload();
    browser.wait("Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0");
    row(id(&running), "running");
    row(id(&waiting), "queued");
    browser.wait("!document.querySelector('#stop').disabled");
    browser.wait(PREVIEW_SEEN);
    assert_eq!(server.job(id(&running))["state"], "running", "it ended before the page was read again");
    server.wait_done(id(&running));
    server.wait_done(id(&waiting));
    wait_for_pictures(&browser, 6);
    browser.wait("document.querySelector('#stop').disabled");
    browser.assert_no_errors(&[]);
}

/// If this failed, painting a mask would change other parts of a user's picture than those painted, or none.
#[test]
fn mask_painting() {
    let server = Server::start(&[]);
    let browser = open(&server);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("start.png");
    let start = image::RgbImage::from_fn(256, 256, |x, y| image::Rgb([(x / 2 + 60) as u8, (y / 2 + 60) as u8, 90]));
    start.save(&path).expect("written");

    browser.keys("#init-file", path.to_str().expect("a path"));
    browser.click("#paint-mask");
    browser.wait("document.querySelector('#mask-canvas').offsetWidth > 0");
    for y in [0.42, 0.5, 0.58] {
        browser.drag("#mask-canvas", &[(0.4, y), (0.5, y), (0.6, y)]);
    }
    browser.click("#mask-done");
    browser.fill("#seed", "7");
    generate(&browser, "a large white square on a black background", 256, 20);
    wait_for_pictures(&browser, 1);

    let picture = &pictures(&server)[0];
    let file = server.get(&format!("/api/v1/pictures/{}/file", picture["id"]));
    let made = image::load_from_memory(&file.body).expect("a picture").to_rgb8();
    assert_eq!(made.dimensions(), (256, 256));
    // Of the sides, the mask covers 0.34 to 0.66; its edge may be soft, so what lies near it counts as neither.
    let (mut inside, mut outside) = (vec![], vec![]);
    for (x, y, pixel) in made.enumerate_pixels() {
        let far = x.abs_diff(128).max(y.abs_diff(128));
        let apart =
            (pixel.0.iter().zip(start.get_pixel(x, y).0)).map(|(a, b)| f64::from(a.abs_diff(b))).sum::<f64>() / 3.0;
        if far < 25 {
            inside.push(apart);
        } else if far > 64 {
            outside.push(apart);
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (inside, outside) = (mean(&inside), mean(&outside));
    eprintln!("apart from the start picture: {inside:.2} of 255 inside the mask, {outside:.2} outside");
    assert!(outside < 6.0, "what was not painted over changed by {outside}");
    assert!(inside > 3.0 * outside.max(2.0), "what was painted over changed only by {inside}");
    browser.assert_no_errors(&[]);
}

/// If this failed, a request that the server refuses would end in silence, and a server with a key would show a page
/// that does not work.
#[test]
fn refusals_and_key() {
    let server = Server::start(&["--max-steps", "5"]);
    let browser = open(&server);
    let refused = "document.querySelector('#error').offsetWidth > 0 && document.querySelector('#error').textContent";
    for (side, steps, word) in [(256, 50, "steps"), (100_000, 4, "width")] {
        generate(&browser, "impossible", side, steps);
        browser.wait(&format!("{refused}.toLowerCase().includes('{word}')"));
        assert!(pictures(&server).is_empty());
    }
    generate(&browser, "possible", 256, 4);
    wait_for_pictures(&browser, 1);
    browser.wait("!document.querySelector('#error').textContent");
    browser.assert_no_errors(&[400, 422]);
    drop((browser, server));

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    std::fs::write(&path, "quite a long key 4711\n").expect("written");
    let server = Server::start(&["--key-file", path.to_str().expect("a path")]);
    let browser = Browser::open(server.address);
    let field = "dialog[open] input[type=password]";
    browser.click(field);
    browser.keys(field, &format!("a wrong key{ENTER}"));
    browser.wait("document.querySelector('dialog[open] [role=alert]').textContent");
    browser.fill(field, &format!("quite a long key 4711{ENTER}"));
    browser.wait(&format!("!document.querySelector('dialog[open]') && {READY}"));
    generate(&browser, "with a key", 256, 20);
    wait_for_pictures(&browser, 1);
    browser.assert_no_errors(&[401, 403]);
}

/// If this failed, parts of the page would lie out of reach on a phone. What it looks like is kept for people to see.
#[test]
fn looks() {
    let server = Server::start(&[]);
    let browser = open(&server);
    for prompt in ["a red circle on a blue background", "a green triangle", "a yellow star on a dark background"] {
        server.wait_done(&server.queue(json!({ "prompt": prompt, "steps": 20, "batch-count": 2 })));
    }
    wait_for_pictures(&browser, 6);
    browser.fill("#prompt", "a small orange square above a large purple circle, on a light background");
    let fits = |what: &str| {
        let wide = browser.script("return document.documentElement.scrollWidth");
        assert!(wide.as_u64().expect("a width") <= 390, "{what} is {wide} wide on a phone");
    };
    for (device, width, height, phone) in [("desktop", 1280, 900, false), ("phone", 390, 844, true)] {
        browser.size(width, height, phone);
        let shoot = |what: &str, whole: bool| {
            browser.screenshot(&format!("{device}-{what}"), whole);
            if phone {
                fits(what);
            }
        };
        browser.script("scrollTo(0, 0)");
        shoot("page", true);
        browser.click("#machine-toggle");
        browser.wait("document.querySelector('#plan-verdict').textContent.includes('fits')");
        shoot("machine", false);
        browser.click("#machine-close");
        browser.click("#gallery button[data-picture]");
        browser.wait("[...document.querySelectorAll('#viewer img')].some((image) => image.naturalWidth === 256)");
        shoot("viewer", false);
        browser.click("#viewer-close");
        let long = server.queue(json!({ "prompt": "a long one", "steps": 100, "width": 768, "height": 768 }));
        let next = server.queue(json!({ "prompt": "the next one" }));
        browser.wait(PREVIEW_SEEN);
        browser.wait("document.querySelectorAll('#queue li').length >= 2");
        browser.wait("Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0");
        shoot("running", true);
        for job in [next, long] {
            server.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({})).json(200);
            server.wait(&job, |job| job["state"] == "cancelled");
        }
        browser.wait("document.querySelector('#stop').disabled");
    }
    browser.assert_no_errors(&[]);
}
