//! A server that is killed at random moments under load.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::serve::http::try_send;
use crate::serve::picture;
use crate::serve::server::Server;

/// What is asked for, again and again: few different ones, so that few undisturbed runs tell what they should give.
fn asked(number: usize) -> Value {
    let prompts = ["a red house", "a yellow star on a dark background", "a green triangle"];
    let kind = number % prompts.len();
    json!({ "prompt": prompts[kind], "steps": 6, "seed": 10 * kind, "batch-count": 1 + kind % 2 })
}

fn pictures_of(settings: &Value) -> usize {
    settings["batch-count"].as_str().and_then(|count| count.parse().ok()).unwrap_or(1)
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Jobs that clients were told are accepted, and how many requests for jobs were sent.
#[derive(Default)]
struct Load {
    accepted: Mutex<Vec<String>>,
    sent: AtomicUsize,
}

impl Load {
    /// Queues jobs, and looks at the server as pages do, until it is gone.
    fn run(&self, server: SocketAddr, most: usize) {
        let ask = |method: &str, path: &str, body: &str| {
            let kind = [("content-type", "application/json")];
            try_send(server, method, path, &kind, body.as_bytes()).ok()
        };
        loop {
            // Killed: what is sent from now on says nothing.
            let Some(queued) = ask("GET", "/api/v1/jobs?state=queued", "") else { return };
            let queued: Value = serde_json::from_slice(&queued.body).expect("JSON");
            let waiting = queued["jobs"].as_array().map_or(0, Vec::len);
            if waiting < 4 && self.sent.load(Ordering::Relaxed) < most {
                let number = self.sent.fetch_add(1, Ordering::Relaxed);
                let body = json!({ "settings": asked(number) }).to_string();
                if let Some(answer) = ask("POST", "/api/v1/jobs", &body).filter(|answer| answer.status == 201) {
                    let job: Value = serde_json::from_slice(&answer.body).expect("JSON");
                    let id = job["id"].as_str().expect("an id").to_owned();
                    self.accepted.lock().expect("a list").push(id);
                }
            }
            ask("GET", "/api/v1/pictures", "");
        }
    }
}

/// Starts a server on the folder, puts it under load, and kills it after a while.
fn round(data: &Path, load: &Load, most: usize, milliseconds: u64) {
    let server = Server::in_folder(data, &[]);
    std::thread::scope(|scope| {
        let address = server.address;
        scope.spawn(move || load.run(address, most));
        std::thread::sleep(Duration::from_millis(milliseconds));
        server.kill();
    });
}

impasto_testkit::trial! {
    /// Somebody was told that a picture will be made, and it never is; or it is another one, or there twice.
    ///
    /// `IMPASTO_KILLS=50` kills more often, `IMPASTO_KILLS_SEED` repeats the moments of an earlier run.
    fn every_accepted_job_ends_in_its_pictures_whenever_the_server_is_killed(kills: u64 = 2, 5) {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let kills = number("IMPASTO_KILLS").unwrap_or(kills);
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64;
        let seed = number("IMPASTO_KILLS_SEED").unwrap_or(now);
        eprintln!("IMPASTO_KILLS={kills} IMPASTO_KILLS_SEED={seed}");
        let begun = Instant::now();
        let undisturbed = Server::start(&[]);
        let mut expected: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
        for kind in 0..3 {
            let job = undisturbed.wait_done(&undisturbed.queue(asked(kind)));
            let pictures = (0..pictures_of(&job["settings"])).map(|i| picture(&undisturbed, &job, i)).collect();
            expected.insert(job["settings"]["prompt"].to_string(), pictures);
        }
        undisturbed.kill();
        // Moments from the start to some jobs later, however fast the machine is.
        let longest = begun.elapsed().as_millis() as u64;

        let (mut random, folder, load) = (Random(seed | 1), tempfile::tempdir().expect("a folder"), Load::default());
        let data = folder.path().join("data");
        let mut done = 0;
        // Moments may all be early by chance: until some jobs were accepted, there are more.
        while done < kills || done < 4 * kills && load.accepted.lock().expect("a list").len() < 5 {
            round(&data, &load, 3 * done as usize + 5, random.below(2 * longest));
            done += 1;
        }
        let server = Server::in_folder(&data, &[]);
        let accepted = load.accepted.into_inner().expect("a list");
        assert!(accepted.len() >= 5, "too few jobs were accepted: {accepted:?}");
        let jobs = server.get("/api/v1/jobs?limit=1000").json(200);
        let ids: Vec<String> =
            jobs["jobs"].as_array().expect("jobs").iter().map(|job| job["id"].as_str().expect("an id").into()).collect();
        for id in &accepted {
            assert!(ids.contains(id), "job {id} was accepted, and is lost");
        }
        // Also those whose answer was lost with the server.
        let mut count = 0;
        for id in &ids {
            let job = server.wait_done(id);
            let made = job["pictures"].as_array().map_or(0, Vec::len);
            assert_eq!(made, pictures_of(&job["settings"]), "{job}");
            for (i, expected) in expected[&job["settings"]["prompt"].to_string()].iter().enumerate() {
                assert!(picture(&server, &job, i) == *expected, "picture {i} of {job} is another one");
            }
            count += made;
        }
        let listed = server.get("/api/v1/pictures?limit=1000").json(200);
        let listed = listed["pictures"].as_array().expect("pictures");
        let once: BTreeSet<String> = listed.iter().map(|one| format!("{} {}", one["job"], one["seed"])).collect();
        assert_eq!((listed.len(), once.len()), (count, count), "a picture is there twice");
        let files = std::fs::read_dir(data.join("pictures")).expect("a folder").count();
        assert_eq!(files, count, "files are left over");
        eprintln!("{kills} kills, {} jobs accepted of {}, {count} pictures", accepted.len(), ids.len());
    }
}
