//! `impasto serve`: the page and the APIs, until it is told to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use impasto::EngineOptions;
use impasto::generate::place::MachineOptions;
use impasto::generate::settings::Settings;
use impasto::server::app::{RequestLimits, Retention};
use impasto::server::{ServeOptions, request};

use super::BenchServe;

pub const SERVE_HELP: &str = "\
APIs: /api/v1 (its document is /api/v1/openapi.json), OpenAI's /v1/images, webui's /sdapi/v1; /health, /metrics.
Requests name models by their names in --models folders. LoRAs are named in prompts, from --lora-model-dir.
Nothing is open to other machines unless --listen says so, and then a key is needed: --key-file, else one is made and printed.
For TLS put a proxy before it, and name the server with --allowed-host. A job that runs when the server ends goes on at its next start.";

#[derive(Args)]
pub struct Serve {
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7860", help_heading = "The server")]
    pub listen: SocketAddr,
    /// A folder of models, which requests name; may be given several times.
    #[arg(long, value_name = "DIR", help_heading = "The server")]
    pub models: Vec<PathBuf>,
    /// A file with the key that requests must have.
    #[arg(long, value_name = "FILE", help_heading = "The server")]
    pub key_file: Option<PathBuf>,
    /// Where jobs and pictures are kept; by default ~/.local/share/impasto.
    #[arg(long, value_name = "DIR", help_heading = "The server")]
    pub data: Option<PathBuf>,
    /// A name of this server, where a proxy passes requests on; may be given several times.
    #[arg(long, value_name = "NAME", help_heading = "The server")]
    pub allowed_host: Vec<String>,
    /// Seconds that models stay loaded after their last use.
    #[arg(long, value_name = "S", default_value_t = 300, help_heading = "The server")]
    pub keep_alive: u64,
    /// Jobs that may wait.
    #[arg(long, value_name = "N", default_value_t = RequestLimits::default().queue, help_heading = "The server")]
    pub max_queue: usize,
    /// Pixels of a picture.
    #[arg(long, value_name = "N", default_value_t = RequestLimits::default().pixels, help_heading = "The server")]
    pub max_pixels: u64,
    /// Steps of a picture.
    #[arg(long, value_name = "N", default_value_t = RequestLimits::default().steps, help_heading = "The server")]
    pub max_steps: u32,
    /// Pictures of a job.
    #[arg(long, value_name = "N", default_value_t = RequestLimits::default().batch, help_heading = "The server")]
    pub max_batch: u32,
    /// Connections at once; where there are as many, the one that has been idle for longest is closed.
    #[arg(long, value_name = "N", default_value_t = RequestLimits::default().connections, help_heading = "The server")]
    pub max_connections: usize,
    /// Seconds that a request may take to arrive, and an answer may stay unread.
    #[arg(long, value_name = "S", default_value_t = RequestLimits::default().time.as_secs(), value_parser = clap::value_parser!(u64).range(1..), help_heading = "The server")]
    pub client_timeout: u64,
    /// Jobs that are kept after their end, with their pictures.
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = "The server")]
    pub keep_jobs: usize,
    /// Days that they are kept; without it, as long as there are not too many.
    #[arg(long, value_name = "N", help_heading = "The server")]
    pub keep_days: Option<u32>,
}

/// Serves until Ctrl-C.
pub fn serve(args: &Serve, settings: Settings) -> anyhow::Result<()> {
    let data = args.data.clone().or_else(data_folder);
    let data = data.context("there is no home folder to keep jobs and pictures in: name one with --data DIR")?;
    if let Some(folder) = args.models.iter().find(|folder| !folder.is_dir()) {
        anyhow::bail!("--models {}: there is no such folder", folder.display());
    }
    let (key, is_new) = key(args, &data)?;
    let options = EngineOptions::new(&settings)?;
    let keep_alive = Duration::from_secs(args.keep_alive);
    let options = ServeOptions {
        listen: args.listen,
        models: args.models.clone(),
        data: data.clone(),
        key: key.clone(),
        hosts: args.allowed_host.clone(),
        base: settings,
        engine: EngineOptions { devices: MachineOptions { keep_alive, ..options.devices }, ..options },
        limits: RequestLimits {
            queue: args.max_queue,
            pixels: args.max_pixels,
            steps: args.max_steps,
            batch: args.max_batch,
            connections: args.max_connections,
            time: Duration::from_secs(args.client_timeout),
            ..RequestLimits::default()
        },
        retention: Retention {
            jobs: args.keep_jobs,
            age: args.keep_days.map(|days| Duration::from_secs(u64::from(days) * 86_400)),
        },
        open: Box::new(impasto::open_model),
    };
    let (tell, told) = mpsc::channel();
    let handler = ctrlc::set_handler(move || {
        // The second time it ends at once: a run's state is whole on the disk at any moment.
        if tell.send(()).is_err() {
            std::process::exit(130);
        }
    });
    handler.context("cannot listen for Ctrl-C")?;
    let ready = |address: SocketAddr| {
        eprintln!("jobs and pictures are kept in {}", data.display());
        if let Some(key) = key.filter(|_| is_new) {
            eprintln!("the key of this server, kept in {}: {key}", data.join("key").display());
        }
        super::show::line(format_args!("http://{address}"));
    };
    Ok(impasto::server::serve(options, ready, told)?)
}

/// Jobs of a turn of `bench serve --against-engine`.
const JOBS_OF_A_TURN: usize = 10;

/// Jobs through a server and by an engine alone.
fn bench_against_engine(turns: usize, json: bool) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("impasto-bench-{}", std::process::id()));
    let measured = impasto::bench::served_jobs(&folder, turns.max(1), JOBS_OF_A_TURN);
    let _ = std::fs::remove_dir_all(&folder);
    let measured = measured?;
    if json {
        super::show::json(&measured);
        return Ok(());
    }
    let impasto::bench::ServedJobs { alone, served, ratio, cpu_ratio } = measured;
    super::show::line(format_args!("jobs a minute: {served:.1} through a server, {alone:.1} by an engine alone"));
    let told = |what: &str, ratio: impasto::bench::Spread| {
        let [least, median, most] = [ratio.least, ratio.median, ratio.most].map(|share| share * 100.0);
        super::show::line(format_args!("{what}: {median:.1} %, from {least:.1} to {most:.1}"));
    };
    told("through a server, of an engine alone", ratio);
    if let Some(ratio) = cpu_ratio {
        told("the same by time of processors", ratio);
    }
    Ok(())
}

/// Asks a running server as many clients would.
pub fn bench(args: &BenchServe) -> anyhow::Result<()> {
    if let Some(turns) = args.against_engine {
        return bench_against_engine(turns, args.json);
    }
    anyhow::ensure!(
        args.server.ip().is_loopback(),
        "--server {}: only a server on this machine is put under load",
        args.server
    );
    let routes = impasto::bench::serve_load(args.server, args.clients, Duration::from_secs(args.seconds));
    if args.json {
        routes.iter().for_each(super::show::json);
        return Ok(());
    }
    let head = ["request", "answered", "429 or 503", "broken", "median ms", "99 %", "most"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(routes.iter().map(|route| {
        let [median, most_of, most] = route.milliseconds.map(|time| format!("{time:.1}"));
        let counts = [route.answers, route.refused, route.broken].map(|count| count.to_string());
        let [answers, refused, broken] = counts;
        [route.route.clone(), answers, refused, broken, median, most_of, most]
    }));
    super::show::rows(&lines);
    Ok(())
}

/// The key, and whether it is a new one. A server that other machines can reach has one in any case.
fn key(args: &Serve, data: &Path) -> anyhow::Result<(Option<String>, bool)> {
    let read = |path: &Path| -> anyhow::Result<String> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read the key in {}", path.display()))?;
        let key = text.trim().to_owned();
        anyhow::ensure!(key.len() >= 8, "the key in {} has fewer than 8 characters", path.display());
        Ok(key)
    };
    if let Some(path) = &args.key_file {
        return Ok((Some(read(path)?), false));
    }
    if args.listen.ip().is_loopback() {
        return Ok((None, false));
    }
    let path = data.join("key");
    if path.exists() {
        return Ok((Some(read(&path)?), true));
    }
    let bits = || request::random_bits().map_err(|problem| anyhow::anyhow!(problem.message));
    let key = format!("{:016x}{:016x}", bits()?, bits()?);
    std::fs::create_dir_all(data).with_context(|| format!("cannot make {}", data.display()))?;
    impasto::server::write_private(&path, key.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok((Some(key), true))
}

/// The user's folder for data: `$XDG_DATA_HOME/impasto`, else `~/.local/share/impasto`; on Windows below `%LOCALAPPDATA%`.
fn data_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match cfg!(windows) {
        true => variable("LOCALAPPDATA").map(|path| path.join("impasto").join("data")),
        false => variable("XDG_DATA_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
            .map(|path| path.join("impasto")),
    }
}
