//! A client of HTTP that sends exactly what it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// What came back.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, of an answer with this status.
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// Sends a request and waits for all of the answer.
pub fn send(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    try_send(to, method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// The same to a server that may go away.
pub fn try_send(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    read_answer(&mut try_connect(to, method, path, headers, body)?)
}

/// Reads an answer, to the end of its connection.
pub fn read_answer(stream: &mut TcpStream) -> std::io::Result<Answer> {
    let mut bytes = vec![];
    stream.read_to_end(&mut bytes)?;
    let cut_off = || std::io::Error::other(format!("no answer but {:?}", String::from_utf8_lossy(&bytes)));
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(cut_off)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(cut_off)?;
    let headers: Vec<(String, String)> =
        lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_lowercase(), v.to_owned())).collect();
    let value = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    let body = bytes[end + 4..].to_vec();
    if value("content-length").is_some_and(|length| length != body.len().to_string()) {
        return Err(cut_off());
    }
    let body = if value("transfer-encoding") == Some("chunked") { unchunked(&body) } else { body };
    Ok(Answer { status, headers, body })
}

/// Sends a request; what comes back is read by the caller.
pub fn connect(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
    try_connect(to, method, path, headers, body).expect("a server")
}

fn try_connect(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += &format!("host: {to}\r\n");
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    if !body.is_empty() {
        head += &format!("content-length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    // A server that refuses a large body answers before it has read it.
    let _ = stream.write_all(body);
    Ok(stream)
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = vec![];
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(String::from_utf8_lossy(&bytes[..end]).trim(), 16).expect("a length");
        bytes = &bytes[end + 2..];
        if len == 0 {
            break;
        }
        body.extend(&bytes[..len]);
        bytes = &bytes[len + 2..];
    }
    body
}

/// Server-sent events of a stream, one by one: name and data.
pub struct EventLines(BufReader<TcpStream>);

impl EventLines {
    pub fn listen(to: SocketAddr, path: &str) -> EventLines {
        let mut lines = BufReader::new(connect(to, "GET", path, &[], b""));
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(lines.read_line(&mut line).expect("a head") > 0, "the head is cut off");
        }
        EventLines(lines)
    }
}

impl Iterator for EventLines {
    type Item = (String, Value);

    fn next(&mut self) -> Option<(String, Value)> {
        let (mut name, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(rest) = line.strip_prefix("event: ") {
                name = rest.trim().to_owned();
            } else if let Some(rest) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(rest).expect("JSON")));
            }
        }
    }
}
