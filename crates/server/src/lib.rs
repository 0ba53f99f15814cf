//! Pictures over HTTP: a page, an API of our own, two that clients already speak, and a queue that loses nothing.
//!
//! [`serve`] listens; [`connection`] bounds how many clients there are and how slow they may be; [`guard`] lets a request through or refuses it; a route makes a [`JobRequest`](request::JobRequest) of it, which is checked as far
//! as it can be and queued ([`queue`], kept by [`store`]); one thread ([`runner`]) runs jobs with an [`Engine`], which saves where a run
//! stands after each step, so that a server that is killed goes on from there. [`hub`] tells everybody who listens.
//!
//! | Routes | Module |
//! |---|---|
//! | `/` | [`page`] |
//! | `/api/v1` | [`api`] |
//! | `/v1` | [`openai`] |
//! | `/sdapi/v1` | [`a1111`] |

pub mod a1111;
pub mod api;
pub mod app;
pub mod body;
pub mod connection;
pub mod error;
pub mod guard;
pub mod hub;
pub mod models;
pub mod openai;
pub mod page;
pub mod queue;
pub mod record;
pub mod request;
pub mod runner;
pub mod store;
pub mod wait;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::{any, delete, get, post};
use impasto_generate::settings::{Setting, SettingKind, Settings};
use impasto_generate::{Engine, EngineOptions, GenerateError};

use app::{App, RequestLimits, Retention};
use guard::AccessRules;
use models::{DEFAULT, ModelFolder, OpenModel};
use store::SqliteStore;

/// What a server is started with.
pub struct ServeOptions {
    /// The address.
    pub listen: SocketAddr,
    /// Folders of models.
    pub models: Vec<PathBuf>,
    /// Where jobs and pictures are kept.
    pub data: PathBuf,
    /// The key, where one is needed.
    pub key: Option<String>,
    /// Names of this server beside its addresses.
    pub hosts: Vec<String>,
    /// Settings of every job that asks for nothing else, and how the machine is used.
    pub base: Settings,
    /// How the engine uses the machine.
    pub engine: EngineOptions,
    /// What requests may ask for.
    pub limits: RequestLimits,
    /// How long things stay.
    pub retention: Retention,
    /// Opens the model that settings name, or the one inside the program.
    pub open: Box<OpenModel>,
}

/// Why a server cannot be started, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be had.
    #[error("cannot listen on {listen}: {source}; choose another address with --listen")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Everybody could use it.
    #[error("{0} can be reached from other machines: a key is needed, with --key-file FILE")]
    Open(SocketAddr),
    /// The folder of jobs and pictures cannot be used.
    #[error("cannot use the folder {}: {problem}; choose another with --data", .folder.display())]
    Data {
        /// The folder.
        folder: PathBuf,
        /// Why.
        problem: String,
    },
    /// A model or a device.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The system refused something.
    #[error("the server ended: {0}")]
    Io(#[from] io::Error),
}

fn routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/health", get(api::health))
        .route("/metrics", get(api::metrics))
        .route("/api/v1/openapi.json", get(api::document))
        .route("/api/v1/login", post(api::login))
        .route("/api/v1/logout", post(api::logout))
        .route("/api/v1/settings", get(api::settings))
        .route("/api/v1/models", get(api::models))
        .route("/api/v1/devices", get(api::devices))
        .route("/api/v1/plan", post(api::plan))
        .route("/api/v1/events", get(api::all_events))
        .route("/api/v1/jobs", get(api::list_jobs).post(api::create_job))
        .route("/api/v1/jobs/{id}", get(api::read_job).delete(api::delete_job))
        .route("/api/v1/jobs/{id}/cancel", post(api::cancel_job))
        .route("/api/v1/jobs/{id}/retry", post(api::retry_job))
        .route("/api/v1/jobs/{id}/move", post(api::move_job))
        .route("/api/v1/jobs/{id}/preview", get(api::job_preview))
        .route("/api/v1/jobs/{id}/init", get(api::job_init))
        .route("/api/v1/jobs/{id}/events", get(api::job_events))
        .route("/api/v1/pictures", get(api::list_pictures))
        .route("/api/v1/pictures/{id}/file", get(api::picture_file))
        .route("/api/v1/pictures/{id}", delete(api::delete_picture))
        .route("/v1/models", get(openai::models))
        .route("/v1/images/generations", post(openai::generations))
        .route("/v1/images/edits", post(openai::edits))
        .route("/sdapi/v1/txt2img", post(a1111::txt2img))
        .route("/sdapi/v1/img2img", post(a1111::img2img))
        .route("/sdapi/v1/progress", get(a1111::progress))
        .route("/sdapi/v1/interrupt", post(a1111::interrupt))
        .route("/sdapi/v1/skip", post(a1111::interrupt))
        .route("/sdapi/v1/options", get(a1111::options).post(a1111::set_options))
        .route("/sdapi/v1/sd-models", get(a1111::sd_models))
        .route("/sdapi/v1/samplers", get(a1111::samplers))
        .route("/sdapi/v1/schedulers", get(a1111::schedulers))
        .route("/sdapi/v1/upscalers", get(a1111::upscalers))
        .route("/sdapi/v1/latent-upscale-modes", get(a1111::nothing))
        .route("/sdapi/v1/sd-vae", get(a1111::nothing))
        .route("/sdapi/v1/prompt-styles", get(a1111::nothing))
        .route("/sdapi/v1/loras", get(a1111::loras))
        .route("/sdapi/v1/refresh-checkpoints", post(a1111::refresh))
        .route("/sdapi/v1/unload-checkpoint", post(a1111::unload))
        .route("/sdapi/v1/png-info", post(a1111::png_info))
        .route("/sdapi/v1/memory", get(a1111::memory))
        .fallback(any(page::show))
        .layer(DefaultBodyLimit::max(app.limits.body))
        .layer(middleware::from_fn_with_state(app.clone(), guard::guard))
        .with_state(app.clone())
}

/// How long answers may take after the server was told to stop.
const LAST_ANSWERS: Duration = Duration::from_millis(300);

/// Makes the data folder, for its owner alone, and what is in it.
fn data_folder(folder: &Path) -> io::Result<()> {
    for folder in [folder.to_path_buf(), folder.join("pictures"), folder.join("uploads")] {
        std::fs::create_dir_all(&folder)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
        }
    }
    Ok(())
}

/// Folders of this machine that errors may name and answers may not: those of the server's own flags, and its data.
fn private_folders(base: &Settings, data: &Path) -> Vec<PathBuf> {
    let named = base
        .texts
        .iter()
        .filter(|(name, _)| Setting::named(name).is_some_and(|setting| matches!(setting.kind, SettingKind::File)));
    let folders = named.filter_map(|(_, text)| Path::new(text).parent());
    folders
        .filter(|folder| folder.components().count() > 1)
        .map(Path::to_path_buf)
        .chain([data.to_path_buf()])
        .collect()
}

/// Claims a file. A server that was killed a moment ago may not be quite gone.
fn claim(path: &Path) -> Option<impasto_store::Claim> {
    let begun = Instant::now();
    loop {
        match impasto_store::Claim::of(path) {
            None if begun.elapsed() < Duration::from_secs(3) => std::thread::sleep(Duration::from_millis(50)),
            claim => return claim,
        }
    }
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(bytes)
}

/// Listens until `stop` is told, or nobody can tell it any more. `ready` is told the address, once requests are answered.
pub fn serve(
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
    stop: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let ServeOptions { listen, models, data, key, hosts, base, engine, limits, retention, open } = options;
    if !listen.ip().is_loopback() && key.is_none() {
        return Err(ServeError::Open(listen));
    }
    let refused = |problem: String| ServeError::Data { folder: data.clone(), problem };
    data_folder(&data).map_err(|error| refused(error.to_string()))?;
    // Two servers in one folder would run the same jobs.
    let _claim = claim(&data.join("server")).ok_or_else(|| refused("another server uses it".into()))?;
    let store = SqliteStore::open(&data.join("jobs.sqlite")).map_err(|error| refused(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = connection::listen(listen).map_err(|source| ServeError::Listen { listen, source })?;
        let listen = listener.local_addr()?;
        let app = Arc::new(App {
            // Drivers are asked from here on, beside the first requests.
            engine: Engine::new(engine),
            models: ModelFolder::new(models, private_folders(&base, &data)),
            base,
            queue: Box::new(store),
            hub: hub::Hub::default(),
            bodies: body::BodyMemory::new(&limits),
            limits,
            access: AccessRules::new(listen, hosts, key.as_deref()),
            retention,
            chosen: Mutex::new(DEFAULT.into()),
            begun: Instant::now(),
            ending: false.into(),
            open,
            opened: Mutex::default(),
            data: data.clone(),
            turn: Mutex::default(),
            decoding: Mutex::default(),
            work: (Mutex::new(()), Condvar::new()),
        });
        if let Err(problem) = runner::recover(&app) {
            return Err(refused(problem.message));
        }
        let running = app.clone();
        let worker = std::thread::Builder::new().name("jobs".into()).spawn(move || runner::run(&running))?;
        ready(listen);
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let ending = app.clone();
        std::thread::Builder::new().name("stop".into()).spawn(move || {
            let _ = stop.recv();
            ending.ending.store(true, Ordering::Relaxed);
            ending.wake();
            drop(ended);
        })?;
        tokio::select! {
            () = connection::accept(listener, routes(&app), &app.limits) => {}
            // What is being answered is; streams of events never end by themselves.
            () = async { let _ = end.await; tokio::time::sleep(LAST_ANSWERS).await; } => {}
        }
        // A run that is stopped has saved where it stands.
        tokio::task::spawn_blocking(move || worker.join()).await.ok();
        Ok(())
    })
}
