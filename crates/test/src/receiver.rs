//! A server on this machine that takes requests one after the other, answers as a test says, and hands over
//! what came. Used by unit tests, too: it knows nothing of memleak.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Maximum time to wait for a request; nothing here takes half as long.
const LONG: Duration = Duration::from_secs(60);

/// A request that came.
#[derive(Debug)]
pub struct Received {
    /// `POST /path HTTP/1.1`.
    pub line: String,
    headers: Vec<(String, String)>,
    /// Body of the request, as it was sent.
    pub body: Vec<u8>,
}

impl Received {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A connection that can be read and written.
pub trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

/// The server. Its thread ends with the test's process.
pub struct Receiver {
    /// `127.0.0.1:PORT`.
    pub address: String,
    received: mpsc::Receiver<Received>,
}

impl Receiver {
    /// Answers request number 0, 1, … as `answer` says, or closes the connection.
    pub fn start(answer: impl Fn(usize) -> Option<String> + Send + 'static) -> Self {
        Self::start_wrapped(answer, |stream| Box::new(stream))
    }

    /// Answers as [`Receiver::start`] does, with a layer such as TLS between the connection and HTTP.
    pub fn start_wrapped(
        answer: impl Fn(usize) -> Option<String> + Send + 'static,
        wrap: impl Fn(TcpStream) -> Box<dyn Connection> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let (send, received) = mpsc::channel();
        thread::spawn(move || {
            let mut number = 0;
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(wrap(stream));
                // The client gave up, for example as it does not trust the certificate.
                let Some(request) = read_request(&mut reader) else {
                    continue;
                };
                if send.send(request).is_err() {
                    return;
                }
                if let Some(answer) = answer(number) {
                    let stream = reader.get_mut();
                    _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.flush());
                }
                number += 1;
            }
        });
        Self { address, received }
    }

    #[track_caller]
    pub fn next(&self) -> Received {
        self.received.recv_timeout(LONG).expect("a request")
    }

    /// Takes the requests that have come and were not taken by [`Receiver::next`].
    pub fn rest(&self) -> Vec<Received> {
        self.received.try_iter().collect()
    }
}

/// An answer with these lines above its body.
pub fn answer(status: u16, lines: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Status\r\nContent-Length: {}\r\nConnection: close\r\n{lines}\r\n{body}",
        body.len()
    )
}

fn read_request(reader: &mut BufReader<Box<dyn Connection>>) -> Option<Received> {
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned())
    };
    let line = next().filter(|line| !line.is_empty())?;
    let mut headers = Vec::new();
    loop {
        let header = next()?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().expect("a length"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Received { line, headers, body })
}
