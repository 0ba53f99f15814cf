//! Connections: how many there may be, and how long each may take.
//!
//! A client that says nothing, sends its request byte by byte, or never reads its answer would hold a connection for ever. So the head of a request
//! must arrive within [`RequestLimits::time`], an answer that nobody reads for as long is given up, and where there are as many connections as there
//! may be, the one that has been idle for longest makes room. Only where all of them are being answered is a new client told to come back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_io_timeout::TimeoutStream;

use crate::app::RequestLimits;

/// Bytes of a request's head, and of an answer that waits to be sent.
const BUFFER: usize = 64 << 10;
/// Clients that may wait to be accepted. Where more come at once, the system makes them try again after a second.
const BACKLOG: u32 = 4096;
/// Clients that are told at the same time that there is no room; others are not told.
const REFUSED_AT_ONCE: usize = 64;
/// How long the accepting of connections rests when the system has no more descriptors.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

/// An open connection.
#[derive(Default)]
struct OpenConnection {
    /// When its last answer was sent, by the count of such moments; [`ANSWERING`] while one is made or sent.
    idle_since: AtomicU64,
    close: Notify,
}

const ANSWERING: u64 = u64::MAX;

/// The open connections, by number.
#[derive(Default)]
struct Connections {
    open: Mutex<BTreeMap<u64, Arc<OpenConnection>>>,
    /// Counts connections and answers: an order of moments.
    moments: AtomicU64,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OpenConnection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a connection; where there are `most` already, the one that has been idle for longest is closed. `None` where none is idle.
    fn add(self: &Arc<Self>, most: usize) -> Option<ConnectionPlace> {
        let number = self.moment();
        let mut open = self.lock();
        if open.len() >= most {
            let idle = |(_, connection): &(&u64, &Arc<OpenConnection>)| connection.idle_since.load(Ordering::Relaxed);
            let longest = open.iter().min_by_key(idle).filter(|found| idle(found) != ANSWERING).map(|(at, _)| *at)?;
            // Its task lets go of the socket when it is next polled; its place is free now.
            open.remove(&longest)?.close.notify_one();
        }
        let connection = Arc::new(OpenConnection { idle_since: AtomicU64::new(number), close: Notify::new() });
        open.insert(number, connection.clone());
        Some(ConnectionPlace { all: self.clone(), number, connection })
    }
}

/// The place of a connection among all of them, until it is dropped.
struct ConnectionPlace {
    all: Arc<Connections>,
    number: u64,
    connection: Arc<OpenConnection>,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
}

/// A request is being answered, until this is dropped.
struct Answering(Arc<Connections>, Arc<OpenConnection>);

impl Answering {
    fn begin(all: &Arc<Connections>, connection: &Arc<OpenConnection>) -> Answering {
        connection.idle_since.store(ANSWERING, Ordering::Relaxed);
        Answering(all.clone(), connection.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.1.idle_since.store(self.0.moment(), Ordering::Relaxed);
    }
}

/// The body of an answer. Its connection is not idle before all of it is sent.
struct AnswerBody {
    body: Body,
    _answering: Answering,
}

impl HttpBody for AnswerBody {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Listens on an address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that was ended a moment ago leaves connections that the system still waits for.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests, for ever.
pub async fn accept(listener: TcpListener, routes: Router, limits: &RequestLimits) {
    let connections = Arc::new(Connections::default());
    let refusals = Arc::new(Semaphore::new(REFUSED_AT_ONCE));
    let (most, time) = (limits.connections.max(1), limits.time);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // A client that is gone already; or no descriptors, which come back.
            Err(error) => {
                if error.kind() != io::ErrorKind::ConnectionAborted && error.kind() != io::ErrorKind::ConnectionReset {
                    tokio::time::sleep(NO_DESCRIPTORS).await;
                }
                continue;
            }
        };
        // Events are small, and each should be seen at once.
        let _ = stream.set_nodelay(true);
        match connections.add(most) {
            Some(place) => drop(tokio::spawn(answer(stream, peer, routes.clone(), place, time))),
            None => {
                if let Ok(turn) = refusals.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(Duration::from_secs(1), refuse(stream)).await;
                        drop(turn);
                    });
                }
            }
        }
    }
}

async fn answer(stream: TcpStream, peer: SocketAddr, routes: Router, place: ConnectionPlace, time: Duration) {
    let routes = TowerToHyperService::new(routes);
    let (all, connection) = (place.all.clone(), place.connection.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let answering = Answering::begin(&all, &connection);
        request.extensions_mut().insert(ConnectInfo(peer));
        let answered = routes.call(request);
        async move {
            let (head, body) = answered.await?.into_parts();
            Ok::<_, Infallible>(Response::from_parts(head, AnswerBody { body, _answering: answering }))
        }
    });
    // A write that does not advance for so long is an error.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(time));
    let io = TokioIo::new(Box::pin(stream));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(time).max_buf_size(BUFFER);
    tokio::select! {
        // What goes wrong here is the client's: it went away, was too slow, or speaks no HTTP.
        _ = builder.serve_connection(io, service) => {}
        () = place.connection.close.notified() => {}
    }
}

/// Says that there is no room, and reads what was sent meanwhile: closing before that would take the answer back.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let body =
        r#"{"error": {"code": "too_many_connections", "message": "too many clients at once; try again in a moment"}}"#;
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 10\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_makes_room_and_one_that_is_answered_does_not() {
        let all = Arc::new(Connections::default());
        let add = || all.add(3);
        let is_open = |place: &ConnectionPlace| all.lock().contains_key(&place.number);
        let [a, b, c] = [(); 3].map(|()| add().expect("there is room"));
        let answering = Answering::begin(&all, &a.connection);
        let d = add().expect("b is idle");
        assert_eq!([&a, &b, &c, &d].map(is_open), [true, false, true, true]);
        // Answered a moment ago, so that c has been idle for longer.
        drop(answering);
        let e = add().expect("c is idle");
        assert_eq!([&a, &c, &d, &e].map(is_open), [true, false, true, true]);
        let _busy = [&a, &d, &e].map(|place| Answering::begin(&all, &place.connection));
        assert!(add().is_none());
        drop(a);
        assert!(add().is_some());
        drop((b, c));
        assert_eq!(all.lock().len(), 2, "a closed connection is counted");
    }
}
