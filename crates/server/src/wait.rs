//! Waiting for a job to end, for APIs that answer with its pictures.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::broadcast::error::RecvError;

use crate::app::{App, blocking};
use crate::body::BodyShare;
use crate::error::RequestError;
use crate::hub::JobEvent;
use crate::record::{JobRecord, JobState};
use crate::request::JobRequest;

/// A job that somebody waits for. If they go away before its end, it is cancelled: nobody would see its pictures.
pub struct AwaitedJob {
    app: Arc<App>,
    /// The job.
    pub id: String,
    events: tokio::sync::broadcast::Receiver<JobEvent>,
    ended: bool,
}

impl AwaitedJob {
    /// Queues a request, and gives back the memory of its body.
    pub async fn submit(
        app: &Arc<App>,
        request: JobRequest,
        client: String,
        share: BodyShare,
    ) -> Result<AwaitedJob, RequestError> {
        // Before it is queued, so that nothing is missed.
        let events = app.hub.listen();
        let app = app.clone();
        // Made by the work itself: who goes away meanwhile drops what it returns, which cancels the job.
        blocking(move || {
            let job = request.checked(&app)?.submit(&app, &client)?;
            drop((request, share));
            Ok(AwaitedJob { app, id: job.id, events, ended: false })
        })
        .await
    }

    /// The next thing that happens to it; `None` after its end.
    pub async fn next(&mut self) -> Option<JobEvent> {
        while !self.ended {
            match self.events.recv().await {
                Ok(event) if event.job == self.id => {
                    self.ended = event.is_last();
                    return Some(event);
                }
                Ok(_) => {}
                // It may have ended among what was missed.
                Err(RecvError::Lagged(_)) => {
                    let (app, id) = (self.app.clone(), self.id.clone());
                    let job = blocking(move || Ok(app.queue.job(&id)?)).await;
                    self.ended = job.is_ok_and(|job| job.state.has_ended());
                }
                Err(RecvError::Closed) => self.ended = true,
            }
        }
        None
    }

    /// How it ended: its record where its pictures are ready.
    pub async fn done(&mut self) -> Result<JobRecord, RequestError> {
        while self.next().await.is_some() {}
        let (app, id) = (self.app.clone(), self.id.clone());
        let job = blocking(move || Ok(app.queue.job(&id)?)).await?;
        match job.state {
            JobState::Done => Ok(job),
            JobState::Cancelled => Err(RequestError::new(StatusCode::CONFLICT, "cancelled", "the job was cancelled")),
            _ => {
                let message = job.error.unwrap_or_else(|| "the job did not end".into());
                Err(RequestError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message))
            }
        }
    }
}

impl Drop for AwaitedJob {
    fn drop(&mut self) {
        if !self.ended {
            let (app, id) = (self.app.clone(), self.id.clone());
            // Off this thread, which must not wait for the disk.
            std::thread::spawn(move || drop(app.cancel(&id)));
        }
    }
}

/// The files of a job's pictures.
pub async fn files(app: &Arc<App>, job: &JobRecord) -> Result<Vec<Vec<u8>>, RequestError> {
    let paths: Vec<_> = job.pictures.iter().map(|picture| app.pictures().join(&picture.file)).collect();
    let gone = |error: std::io::Error| RequestError::broken(format!("the picture's file cannot be read: {error}"));
    blocking(move || paths.iter().map(|path| std::fs::read(path).map_err(gone)).collect()).await
}
