//! Clients that want to harm: slow ones, large ones, many at once. Each gets a clear answer or is let go; others are answered meanwhile, and the
//! server's memory and descriptors stay bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::serve::http::{Answer, connect, read_answer, send};
use crate::serve::server::{Server, wait_for};

/// How long a server has for what these tests wait for.
const PATIENCE: Duration = Duration::from_secs(60);
const JSON: (&str, &str) = ("content-type", "application/json");

fn open(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).expect("a server");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

/// Sends byte after byte until the server has had enough; what it answered.
fn drip(server: &Server, head: &str, byte: &[u8]) -> Vec<u8> {
    let mut stream = open(server);
    stream.write_all(head.as_bytes()).expect("sent");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a time limit");
    let (begun, mut answer, mut room) = (Instant::now(), vec![], [0; 4096]);
    loop {
        assert!(begun.elapsed() < PATIENCE, "a slow client is still there");
        assert_eq!(server.get("/health").status, 200, "others are not answered");
        let gone = stream.write_all(byte).is_err();
        match stream.read(&mut room) {
            Ok(0) => return answer,
            Ok(length) => answer.extend(&room[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !gone => {}
            Err(_) => return answer,
        }
    }
}

/// A few slow clients would take every connection for ever.
#[test]
fn slow_clients_are_let_go() {
    let server = Server::start(&["--client-timeout", "1"]);
    let head = format!("GET /health HTTP/1.1\r\nhost: {}\r\nx-slow: ", server.address);
    drip(&server, &head, b"a");
    drip(&server, "", b"");
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n",
        server.address
    );
    let answer = String::from_utf8_lossy(&drip(&server, &head, b" ")).into_owned();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("did not arrive within 1 second"), "{answer}");
}

/// A page that stopped reading, or a program that never did, would make the server keep everything for it.
#[test]
fn who_never_reads_events_is_let_go() {
    let server = Server::start(&["--client-timeout", "1"]);
    let before = server.sockets();
    let mut deaf = connect(server.address, "GET", "/api/v1/events", &[], b"");
    deaf.read_exact(&mut [0; 12]).expect("an answer");
    // A picture's event has its prompt three times: more than the buffers of a connection hold.
    let blank = " ".repeat(32_000);
    let many =
        json!({"prompt": format!("a red house{blank}"), "width": 64, "height": 64, "steps": 1, "batch-count": 64});
    let id = server.queue(many);
    server.wait_done(&id);
    let memory = server.peak_memory();
    wait_for("the reader to be let go", || {
        let open = server.sockets();
        if open <= before { Ok(()) } else { Err(format!("{open} sockets, {before} before")) }
    });
    // What is left in the buffers, and then the end, which a stream of events has not by itself.
    let mut rest = vec![];
    let _ = deaf.read_to_end(&mut rest);
    let pictures = rest.windows(14).filter(|part| part == b"event: picture").count();
    assert!((1..64).contains(&pictures), "{pictures} of 64 pictures were read: the stream was not cut");
    // All of it may have been waiting once: 64 events of 100 kB.
    assert!(server.peak_memory() < memory + 50, "{} MiB, {memory} before", server.peak_memory());
}

/// One request would take all memory.
#[test]
fn bodies_of_a_gigabyte_are_refused_before_they_are_read() {
    let server = Server::start(&[]);
    server.wait_done(&server.queue(json!({"prompt": "a red house", "steps": 1})));
    let before = server.peak_memory();
    let routes = ["/api/v1/jobs", "/api/v1/plan", "/v1/images/generations", "/v1/images/edits", "/sdapi/v1/img2img"];
    let refused = |answer: &Answer, path: &str| {
        assert_eq!(answer.status, 413, "{path}: {}", answer.text());
        assert!(answer.text().contains("32 MiB at most"), "{path}: {}", answer.text());
    };
    for path in routes {
        let mut stream = open(&server);
        let head = format!("POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", server.address);
        write!(stream, "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{{", 1 << 30).expect("sent");
        refused(&read_answer(&mut stream).expect("an answer"), path);
    }
    // Without a length: what arrives is counted. Four at once.
    let flood = |path: &'static str| {
        let address = server.address;
        std::thread::spawn(move || {
            let head = [JSON, ("transfer-encoding", "chunked")];
            let mut stream = connect(address, "POST", path, &head, b"");
            let chunk = [&b"100000\r\n"[..], &vec![b' '; 1 << 20], b"\r\n"].concat();
            let sent = (0..1024).take_while(|_| stream.write_all(&chunk).is_ok()).count();
            assert!(sent < 200, "{path}: {sent} MiB were taken");
            read_answer(&mut stream)
        })
    };
    let answers: Vec<_> = routes[..4].iter().map(|path| (path, flood(path))).collect();
    for (path, answer) in answers {
        // A client that goes on sending may lose the answer with its connection; the count above is what matters.
        if let Ok(answer) = answer.join().expect("refused") {
            refused(&answer, path);
        }
    }
    assert_eq!(server.get("/health").status, 200);
    // Four bodies up to the limit, twice while they grow.
    assert!(server.peak_memory() < before + 400, "{} MiB, {before} before", server.peak_memory());
}

/// Everybody else would be locked out, or the server would run out of descriptors in the middle of a picture.
#[test]
fn ten_thousand_connections_leave_room_for_others() {
    let server = Server::start(&[]);
    let before = server.sockets();
    let job = server.queue(json!({"prompt": "a red house", "steps": 8}));
    let mut held = vec![];
    while held.len() < 10_000 {
        match TcpStream::connect(server.address) {
            Ok(stream) => held.push(stream),
            // The test's own limit of descriptors.
            Err(error) => {
                eprintln!("only {} connections could be opened: {error}", held.len());
                // Room for what the test itself opens from here on.
                held.truncate(held.len().saturating_sub(50));
                break;
            }
        }
        if held.len() % 500 == 0 {
            assert_eq!(server.get("/health").status, 200, "with {} connections", held.len());
        }
    }
    assert!(held.len() > 700, "more than the server holds at once");
    let open = server.sockets();
    assert!(open <= before + 512 + 64, "{open} sockets, {before} before");
    server.wait_done(&job);
    drop(held);

    // Where all of them are being answered, a new client is told so.
    let server = Server::start(&["--max-connections", "10"]);
    let mut busy: Vec<TcpStream> = vec![];
    let mut listen = || {
        let mut stream = connect(server.address, "GET", "/api/v1/events", &[], b"");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("an answer");
        busy.push(stream);
        String::from_utf8_lossy(&head).into_owned()
    };
    for _ in 0..10 {
        assert_eq!(listen(), "HTTP/1.1 200");
    }
    let full = server.get("/health");
    assert_eq!((full.status, full.header("retry-after")), (503, Some("10")), "{}", full.text());
    assert!(full.text().contains("too many clients"), "{}", full.text());
    drop(busy);
    wait_for("room", || match server.get("/health").status {
        200 => Ok(()),
        other => Err(other),
    });
}

/// A head without end would take all memory.
#[test]
fn floods_of_headers_are_refused() {
    let server = Server::start(&[]);
    let before = server.peak_memory();
    let many: Vec<(String, String)> = (0..500).map(|i| (format!("x-{i}"), "a".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(send(server.address, "GET", "/health", &many, b"").status, 431);
    let mut stream = open(&server);
    write!(stream, "GET /health HTTP/1.1\r\nhost: {}\r\n", server.address).expect("sent");
    let line = format!("x-flood: {}\r\n", "a".repeat(1000)).repeat(100);
    let sent = (0..1000).take_while(|_| stream.write_all(line.as_bytes()).is_ok()).count();
    assert!(sent < 1000, "100 MB of headers were taken");
    assert_eq!(server.get("/health").status, 200);
    assert!(server.peak_memory() < before + 50, "{} MiB, {before} before", server.peak_memory());
}
