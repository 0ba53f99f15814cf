//! A server under load: many clients at once, on loopback, for a while.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

/// How requests of one kind went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RouteLoad {
    /// The route.
    pub route: String,
    /// Requests that were answered.
    pub answers: usize,
    /// Answers with 429 or 503, as promised where there is too much.
    pub refused: usize,
    /// Answers with another 5xx, or none.
    pub broken: usize,
    /// Milliseconds: the median, of 99 in a hundred, the most.
    pub milliseconds: [f64; 3],
}

/// The mix of requests: mostly cheap ones, some jobs.
const MIX: [(&str, &str, &str); 8] = [
    ("GET", "/health", ""),
    ("GET", "/api/v1/jobs?limit=10", ""),
    ("GET", "/api/v1/pictures?limit=10", ""),
    ("GET", "/sdapi/v1/progress?skip_current_image=true", ""),
    ("GET", "/", ""),
    ("GET", "/api/v1/settings", ""),
    ("GET", "/metrics", ""),
    ("POST", "/api/v1/jobs", r#"{"settings": {"prompt": "a red house", "steps": 2}}"#),
];
/// Every so many requests of a client is a job.
const JOB_EVERY: usize = 40;

/// Lets `clients` ask a server for so long.
pub fn serve_load(server: SocketAddr, clients: usize, time: Duration) -> Vec<RouteLoad> {
    let end = AtomicBool::new(false);
    let mut samples: Vec<Vec<(u16, f64)>> = vec![vec![]; MIX.len()];
    thread::scope(|scope| {
        let client = |number: usize| {
            let mut seen: Vec<Vec<(u16, f64)>> = vec![vec![]; MIX.len()];
            for i in number.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let at = if i % JOB_EVERY == 0 { MIX.len() - 1 } else { i % (MIX.len() - 1) };
                let begun = Instant::now();
                let status = ask(server, MIX[at], number).unwrap_or(0);
                seen[at].push((status, begun.elapsed().as_secs_f64() * 1e3));
            }
            seen
        };
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        thread::sleep(time);
        end.store(true, Ordering::Relaxed);
        for thread in threads {
            // A client that broke has no samples.
            for (all, seen) in samples.iter_mut().zip(thread.join().unwrap_or_default()) {
                all.extend(seen);
            }
        }
    });
    MIX.iter()
        .zip(samples)
        .map(|((method, route, _), samples)| summary(&format!("{method} {route}"), samples))
        .collect()
}

fn summary(route: &str, samples: Vec<(u16, f64)>) -> RouteLoad {
    let refused = samples.iter().filter(|(status, _)| [429, 503].contains(status)).count();
    let broken = samples.iter().filter(|(status, _)| *status == 0 || *status >= 500 && *status != 503).count();
    let mut times: Vec<f64> = samples.iter().map(|(_, time)| *time).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len().saturating_sub(1)) as f64 * share) as usize).copied().unwrap_or(0.0);
    RouteLoad {
        route: route.into(),
        answers: samples.len() - broken,
        refused,
        broken,
        milliseconds: [at(0.5), at(0.99), at(1.0)],
    }
}

/// One request on a connection of its own; the status.
pub(super) fn ask(server: SocketAddr, (method, path, body): (&str, &str, &str), client: usize) -> Option<u16> {
    let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(30)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\nx-impasto-client: {client}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = vec![];
    stream.read_to_end(&mut answer).ok()?;
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}
