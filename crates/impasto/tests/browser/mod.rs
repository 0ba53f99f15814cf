//! The page of `impasto serve` as a user meets it: a real browser, real clicks and a real model.

mod driver;

use crate::serve::server::Server;
use driver::{Browser, ENTER};
use serde_json::{Value, json};

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
    generate(&browser, prompt, 512, 25);
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
    assert_eq!(browser.value("#steps"), "25");
    assert_eq!(browser.value("#seed"), picture["seed"].to_string());

    browser.click("#gallery button[data-picture]");
    browser.click("#delete-picture");
    browser.click("#delete-confirm");
    wait_for_pictures(&browser, 0);
    assert!(pictures(&server).is_empty());
    browser.wait("!document.querySelector('#viewer').open");
    browser.assert_no_errors(&[]);
}

/// If this failed, a job could not be stopped nor go on later, a queue would not be worked through in the order that the user wants, or closing the
/// page would lose what it was making.
#[test]
fn stopping_queue_and_reload() {
    let server = Server::start(&[]);
    let browser = open(&server);
    let row = |id: &str, state: &str| {
        browser.wait(&format!("document.querySelector('#queue li[data-job=\"{id}\"]')?.dataset.state === '{state}'"));
    };
    let button = |id: &str, action: &str| format!("#queue li[data-job=\"{id}\"] [data-action={action}]");
    let under_way = "Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0";

    generate(&browser, "stopped", 512, 25);
    let stopped = job_of(&server, &browser, "stopped");
    browser.wait(under_way);
    browser.wait("document.querySelector('#progress-left').textContent.includes('left')");
    browser.click("#stop");
    let stopped = server.wait(id(&stopped), |job| job["state"] != "running");
    assert_eq!(stopped["state"], "cancelled");
    row(id(&stopped), "cancelled");
    browser.wait("document.querySelector('#stop').disabled");

    let names = ["first", "second", "third", "fourth", "fifth"];
    let mut jobs = vec![];
    for name in names {
        let (side, steps) = if name == "first" { (512, 40) } else { (256, 4) };
        generate(&browser, name, side, steps);
        jobs.push(job_of(&server, &browser, name));
    }
    jobs.iter().skip(1).for_each(|job| row(id(job), "queued"));
    browser.click(&button(id(&jobs[2]), "cancel"));
    row(id(&jobs[2]), "cancelled");
    browser.click(&button(id(&jobs[4]), "up"));
    let order = "[...document.querySelectorAll('#queue li[data-state=queued] .queue-title')].map((one) => one.textContent).join()";
    browser.wait(&format!("{order} === 'second,fifth,fourth'"));

    browser.reload();
    browser.wait(under_way);
    row(id(&jobs[0]), "running");
    browser.wait(&format!("{order} === 'second,fifth,fourth'"));
    browser.wait("!document.querySelector('#stop').disabled");
    browser.wait(PREVIEW_SEEN);
    assert_eq!(server.job(id(&jobs[0]))["state"], "running", "it ended before the page was read again");
    browser.wait(&format!("document.querySelector(`{}`).textContent === 'Go on'", button(id(&stopped), "retry")));
    browser.click(&button(id(&stopped), "retry"));
    let begun = |index: usize| server.job(id(&jobs[index]))["started"].as_f64();
    for (index, job) in jobs.iter().enumerate() {
        if index == 2 {
            assert_eq!(server.job(id(job))["state"], "cancelled");
        } else {
            server.wait_done(id(job));
        }
    }
    assert!(begun(4) < begun(3), "what was moved up did not come first");
    server.wait_done(id(&stopped));
    wait_for_pictures(&browser, 5);
    browser.wait("!document.querySelector('#queue li[data-state=queued], #queue li[data-state=running]')");
    browser.wait("document.querySelector('#stop').disabled");

    browser.fill("#search", "FIFTH");
    wait_for_pictures(&browser, 1);
    browser.fill("#search", "no such words");
    browser.wait("document.querySelector('#gallery-empty').textContent.includes('no such words')");
    browser.assert_no_errors(&[]);
}

/// If this failed, painting a mask would change other parts of a user's picture than those painted, or none; or the two could not be compared.
#[test]
fn mask_painting() {
    let server = Server::start(&[]);
    // A picture of the model's own: it could not keep another one, small as it is.
    let made = server.wait_done(&server.queue(json!({ "prompt": "a red house by the sea", "steps": 8, "seed": 2 })));
    let file = |picture: &Value| server.get(&format!("/api/v1/pictures/{}/file", picture["id"])).body;
    let original = file(&made["pictures"][0]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("start.png");
    std::fs::write(&path, &original).expect("written");

    let browser = open(&server);
    // Given in each of the ways that there are: pasted, dropped, chosen.
    let arrived = |how: &str| {
        browser.wait("document.querySelector('#start-picture').naturalWidth === 256");
        browser.click("#start-remove");
        browser.wait(&format!("document.querySelector('#start-set').hidden /* {how} */"));
    };
    for (how, event) in [
        ("pasted", "new ClipboardEvent('paste', { clipboardData: data, bubbles: true })"),
        ("dropped", "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })"),
    ] {
        browser.script(&format!(
            "fetch('api/v1/pictures/{}/file').then((answer) => answer.blob()).then((blob) => {{ \
               const data = new DataTransfer(); data.items.add(new File([blob], 'a.png', {{ type: 'image/png' }})); \
               document.body.dispatchEvent({event}); }})",
            made["pictures"][0]["id"]
        ));
        arrived(how);
    }
    browser.keys("#init-file", path.to_str().expect("a path"));
    browser.click("#paint-mask");
    browser.wait("document.querySelector('#mask-canvas').offsetWidth > 0");
    // The left half, in lines from top to bottom.
    let lines: Vec<(f64, f64)> = (0..12).flat_map(|i| [0.02, 0.42].map(|x| (x, 0.02 + 0.085 * f64::from(i)))).collect();
    browser.drag("#mask-canvas", &lines);
    browser.screenshot("desktop-mask", false);
    browser.assert_accessible("the mask");
    browser.click("#mask-done");
    browser.fill("#seed", "1");
    browser.script("const strength = document.querySelector('#strength'); strength.value = 1; strength.dispatchEvent(new Event('input', { bubbles: true }))");
    generate(&browser, "a blue house by the sea", 256, 8);
    wait_for_pictures(&browser, 2);

    let [before, after] = [original, file(&pictures(&server)[0])]
        .map(|bytes| image::load_from_memory(&bytes).expect("a picture").to_rgb8());
    // On average, in columns away from the mask's edge.
    let apart = |columns: std::ops::Range<u32>| {
        let pixels = columns.flat_map(|x| (0..256).map(move |y| (x, y)));
        let apart: Vec<f64> = pixels
            .flat_map(|(x, y)| (0..3).map(move |c| (x, y, c)))
            .map(|(x, y, c)| f64::from(before.get_pixel(x, y)[c].abs_diff(after.get_pixel(x, y)[c])))
            .collect();
        apart.iter().sum::<f64>() / apart.len() as f64
    };
    let (painted, kept) = (apart(10..90), apart(150..246));
    eprintln!("apart from the start picture: {painted:.2} of 255 where it was painted, {kept:.2} elsewhere");
    assert!(painted > 5.0, "what was painted over changed only by {painted}");
    assert!(kept * 3.0 < painted, "what was not painted over changed by {kept}, what was by {painted}");

    browser.click("#gallery button[data-picture]");
    browser.wait("document.querySelector('#viewer-before').naturalWidth === 256");
    browser.script("const compare = document.querySelector('#compare'); compare.value = 50; compare.dispatchEvent(new Event('input'))");
    browser.wait("document.querySelector('#viewer-before').style.clipPath.includes('50%')");
    browser.wait("document.querySelector('#viewer-split').offsetHeight > 0");
    browser.screenshot("desktop-before-after", false);
    browser.assert_no_errors(&[]);
}

/// If this failed, a request that the server refuses would end in silence, and a server with a key would show a page
/// that does not work.
#[test]
fn refusals_and_key() {
    let server = Server::start(&["--max-steps", "5"]);
    let browser = open(&server);
    let refused = "document.querySelector('#error').offsetWidth > 0 && document.querySelector('#error').textContent";
    for (side, steps, word) in [(256, 50, "steps"), (100_000, 4, "height")] {
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

impasto_testkit::trial! {
    /// If this failed, parts of the page would lie out of reach on a phone, could not be read, or would have no name for who cannot see them. What it
    /// looks like is kept for people to see.
    long fn looks() {
        let server = Server::start(&["--max-steps", "150"]);
        let browser = open(&server);
        for prompt in ["a red circle on a blue background", "a green triangle", "a yellow star on a dark background"] {
            server.wait_done(&server.queue(json!({ "prompt": prompt, "steps": 20, "batch-count": 2 })));
        }
        wait_for_pictures(&browser, 6);
        browser.fill("#prompt", "a small orange square above a large purple circle, on a light background");
        browser.click("#more summary");
        let sizes = [("desktop", 1280, 900, false), ("phone", 390, 844, true)];
        for (scheme, (device, width, height, phone)) in
            ["light", "dark"].into_iter().flat_map(|one| sizes.map(|size| (one, size)))
        {
            browser.size(width, height, phone);
            browser.prefer(scheme);
            let look = |what: &str, whole: bool| {
                browser.screenshot(&format!("{device}-{scheme}-{what}"), whole);
                browser.assert_accessible(&format!("{what}, {device}, {scheme}"));
                let wide = browser.script("return document.documentElement.scrollWidth");
                assert!(wide.as_u64().expect("a width") <= width.into(), "{what} is {wide} wide on a {device}");
            };
            browser.script("scrollTo(0, 0)");
            look("settings", true);
            browser.click("#more summary");
            let long =
                server.queue(json!({ "prompt": "a red house by the sea", "steps": 150, "width": 384, "height": 384 }));
            let next = server.queue(json!({ "prompt": "a green tree" }));
            browser.fill("#steps", "151");
            browser.click("#generate");
            browser.wait("document.querySelector('#error').textContent.includes('150')");
            browser.wait(PREVIEW_SEEN);
            browser.wait(&format!("document.querySelector('#queue li[data-job=\"{next}\"]')"));
            browser.wait("Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0");
            browser.script("scrollTo(0, 0)");
            look("running", true);
            browser.click("#error-close");
            browser.fill("#steps", "20");
            for job in [next, long] {
                server.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({})).json(200);
                server.wait(&job, |job| job["state"] == "cancelled");
            }
            browser.wait("document.querySelector('#stop').disabled");
            browser.click("#machine-toggle");
            browser.wait("document.querySelector('#plan-verdict').textContent.includes('fits')");
            look("machine", false);
            browser.click("#machine-close");
            browser.click("#gallery button[data-picture]");
            browser.wait("[...document.querySelectorAll('#viewer img')].some((image) => image.naturalWidth === 256)");
            look("viewer", false);
            browser.click("#viewer-close");
            browser.click("#more summary");
        }
        browser.assert_no_errors(&[422]);
    }
}
