//! What a server costs its jobs: the same jobs one after the other, through a server and by an engine alone, in turns.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use impasto_generate::place::MachineOptions;
use impasto_generate::settings::Settings;
use impasto_generate::{Engine, EngineOptions, GenerateError, Job};
use impasto_model::Model;
use impasto_server::ServeOptions;
use impasto_server::app::{RequestLimits, Retention};
use serde::Serialize;
use serde_json::json;

use super::{Spread, median};

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct ServedJobs {
    /// Jobs a minute by an engine alone, the median of the turns.
    pub alone: f64,
    /// The same through a server.
    pub served: f64,
    /// The second over the first, turn by turn.
    pub ratio: Spread,
    /// The time of processors alone over that through a server, turn by turn, which other work on the machine changes less. Linux tells.
    pub cpu_ratio: Option<Spread>,
}

/// Settings of job `i`: the model inside, as it is by default.
fn settings(i: usize) -> [(&'static str, String); 2] {
    [("prompt", "a red house by the sea".into()), ("seed", i.to_string())]
}

/// An engine whose models stay loaded.
fn options() -> Result<EngineOptions, GenerateError> {
    let options = EngineOptions::new(&Settings::default())?;
    let devices = MachineOptions { keep_alive: Duration::from_secs(3600), ..options.devices };
    Ok(EngineOptions { devices, ..options })
}

/// `turns` turns of `jobs` jobs each. Files go into `folder`.
pub fn served_jobs(folder: &Path, turns: usize, jobs: usize) -> anyhow::Result<ServedJobs> {
    let (stop, stopped) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let serve = ServeOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        models: vec![],
        data: folder.join("served"),
        key: None,
        hosts: vec![],
        base: Settings::default(),
        engine: options()?,
        limits: RequestLimits { queue: jobs + 1, ..RequestLimits::default() },
        retention: Retention { jobs: 10 * jobs, age: None },
        open: Box::new(crate::open_model),
    };
    let ready = move |address| {
        let _ = tell.send(address);
    };
    let server = thread::spawn(move || impasto_server::serve(serve, ready, stopped));
    let Ok(address) = told.recv() else {
        let ended = server.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
        return Err(ended.err().map_or_else(|| anyhow::anyhow!("the server ended"), Into::into));
    };
    let alone = folder.join("alone");
    let engine = Engine::new(options()?);
    // An engine keeps the modules of models that somebody has open.
    let model = crate::open_model(&engine, &Settings::default())?;
    let mut measured: Vec<[Measured; 2]> = vec![];
    // The first turn loads the model.
    for turn in 0..=turns {
        let by_engine = || Measured::of(|| run_alone(&engine, &model, &alone.join(turn.to_string()), jobs));
        let by_server = || Measured::of(|| run_served(address, jobs));
        // Who begins changes, since what ran before leaves the processor warm.
        let (one, two) = match turn % 2 {
            0 => (by_engine()?, by_server()?),
            _ => {
                let served = by_server()?;
                (by_engine()?, served)
            }
        };
        if turn > 0 {
            measured.push([one, two]);
        }
    }
    drop(stop);
    server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    let a_minute =
        |which: usize| median(&mut measured.iter().map(|m| jobs as f64 / m[which].seconds * 60.0).collect::<Vec<_>>());
    let ratio =
        |of: fn(&Measured) -> f64| Spread::of(measured.iter().map(|[alone, served]| of(alone) / of(served)).collect());
    let told = measured.iter().flatten().all(|m| m.cpu > 0.0);
    Ok(ServedJobs {
        alone: a_minute(0),
        served: a_minute(1),
        ratio: ratio(|m| m.seconds),
        cpu_ratio: told.then(|| ratio(|m| m.cpu)),
    })
}

/// A turn.
struct Measured {
    seconds: f64,
    /// Seconds of processors, or 0 where the system does not tell.
    cpu: f64,
}

impl Measured {
    fn of(turn: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Measured> {
        let (begun, before) = (Instant::now(), processor_seconds());
        turn()?;
        Ok(Measured { seconds: begun.elapsed().as_secs_f64(), cpu: processor_seconds() - before })
    }
}

/// Seconds that processors were busy with this process, as Linux tells; its clock ticks are hundredths.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before the last bracket may have spaces in it.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    (ticks(11) + ticks(12)) as f64 / 100.0
}

/// The jobs by an engine, which writes pictures as a server does.
fn run_alone(engine: &Engine, model: &Arc<Model>, folder: &Path, jobs: usize) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for i in 0..jobs {
        let mut asked = Settings::default();
        for (name, text) in settings(i) {
            asked.set(name, &text)?;
        }
        asked.set("output", &folder.join(format!("{i}.png")).to_string_lossy())?;
        engine.run(&Job::new(&asked, model)?.written(), &mut |_| Ok(true))?;
    }
    Ok(())
}

/// The jobs through a server, from the first request until it has told that the last one is done.
fn run_served(server: SocketAddr, jobs: usize) -> anyhow::Result<()> {
    let mut events = BufReader::new(TcpStream::connect(server)?);
    write!(events.get_mut(), "GET /api/v1/events HTTP/1.1\r\nhost: {server}\r\n\r\n")?;
    let mut line = String::new();
    events.read_line(&mut line)?;
    anyhow::ensure!(line.contains(" 200 "), "no events: {line}");
    for i in 0..jobs {
        let asked: serde_json::Map<_, _> =
            settings(i).map(|(name, text)| (name.to_owned(), text.into())).into_iter().collect();
        let body = json!({ "settings": asked }).to_string();
        let status = super::serve::ask(server, ("POST", "/api/v1/jobs", &body), 0);
        anyhow::ensure!(status == Some(201), "a job was refused: {status:?}");
    }
    let mut done = 0;
    while done < jobs {
        line.clear();
        anyhow::ensure!(events.read_line(&mut line)? > 0, "the server ended the stream of events");
        anyhow::ensure!(line != "event: failed\n", "a job failed");
        done += usize::from(line == "event: done\n");
    }
    Ok(())
}
