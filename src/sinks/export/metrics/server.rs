//! A minimal HTTP/1.1 server (RFC 9112): a few pages, one request per connection.
//!
//! Clients are not trusted: their number, the time for each and the size of a request are limited. (Existing
//! servers for this purpose, such as tiny_http, limit none of these.)

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of clients served at once.
const MAX_CLIENTS: usize = 8;
/// Maximum number of bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// Timeout for reading a request, and for writing its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for a client to close the connection after its answer.
const LINGER: Duration = Duration::from_millis(500);

const PLAIN: &str = "text/plain; charset=utf-8";

/// Target of a `GET`.
pub(super) struct Request<'a> {
    pub(super) path: &'a str,
    /// Text behind the `?`; empty without one.
    query: &'a str,
}

impl<'a> Request<'a> {
    fn of(target: &'a str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self { path, query }
    }

    /// The value of a parameter, as it was sent.
    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        let pairs = self
            .query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut named = pairs.filter(|(found, _)| *found == name);
        named.next().map(|(_, value)| value)
    }
}

/// Serves `page` on `address` until the process ends; returns the bound address.
pub(super) fn start(
    address: SocketAddr,
    page: impl Fn(&Request<'_>) -> Answer + Send + Sync + 'static,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let site = Arc::new(Site {
        is_local: bound.ip().is_loopback(),
        page,
    });
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || accept(&listener, &site))?;
    Ok(bound)
}

struct Site<P> {
    /// True if the socket is bound to loopback, so that the `Host` header is checked.
    is_local: bool,
    page: P,
}

fn accept<P: Fn(&Request<'_>) -> Answer + Send + Sync + 'static>(
    listener: &TcpListener,
    site: &Arc<Site<P>>,
) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Probably out of file descriptors: wait before the next try.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Some(place) = Place::take(&clients) else {
            refuse(&stream);
            continue;
        };
        let site = Arc::clone(site);
        let served = thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            // An error means that the client has disconnected.
            _ = serve(&stream, &site);
            drop(place);
        });
        if let Err(error) = served {
            tracing::debug!("metrics: a client cannot be served: {error}");
        }
    }
}

/// Answers 503 without blocking: the answer fits into the socket's buffer.
fn refuse(mut stream: &TcpStream) {
    let answer = Answer::plain(503, "Service Unavailable");
    let bytes = [answer.head().as_bytes(), &answer.body].concat();
    // Closing a socket with unread input sends RST, which can discard the answer, so pending input is read
    // first.
    _ = stream
        .set_nonblocking(true)
        .and_then(|()| stream.write_all(&bytes))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.read(&mut [0; 4096]));
}

/// One of the [`MAX_CLIENTS`] slots, released on drop.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        if taken.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer to one request.
pub(super) struct Answer {
    status: u16,
    reason: &'static str,
    content_type: &'static str,
    /// More headers, each with its line end.
    headers: String,
    body: Arc<[u8]>,
    has_body: bool,
}

impl Answer {
    /// A page, with status 200.
    pub(super) fn page(content_type: &'static str, body: Arc<[u8]>) -> Self {
        Self {
            status: 200,
            reason: "OK",
            content_type,
            headers: String::new(),
            body,
            has_body: true,
        }
    }

    /// An error status, with a line that gives the reason.
    pub(super) fn refusal(status: u16, reason: &'static str, why: &str) -> Self {
        Self {
            status,
            reason,
            content_type: PLAIN,
            headers: String::new(),
            body: format!("{status} {reason}\n{why}\n").into_bytes().into(),
            has_body: true,
        }
    }

    fn plain(status: u16, reason: &'static str) -> Self {
        Self::refusal(status, reason, super::PLACES)
    }

    /// Adds a header.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    fn head(&self) -> String {
        let Self {
            status,
            reason,
            content_type,
            headers,
            body,
            ..
        } = self;
        format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: \
             {}\r\n{headers}X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            body.len()
        )
    }
}

fn serve<P: Fn(&Request<'_>) -> Answer>(stream: &TcpStream, site: &Site<P>) -> io::Result<()> {
    let answer = match read_head(stream, Instant::now() + PATIENCE) {
        Ok(head) => answer(&head, site),
        Err(answer) => answer,
    };
    let end = Instant::now() + PATIENCE;
    write_all(stream, answer.head().as_bytes(), end)?;
    if answer.has_body {
        write_all(stream, &answer.body, end)?;
    }
    // Close in order, as in `refuse`: send FIN, then read the rest of the input so that close does not send
    // RST.
    stream.shutdown(Shutdown::Write)?;
    let end = Instant::now() + LINGER;
    let mut rest = [0; 1024];
    while read(stream, &mut rest, end)? > 0 {}
    Ok(())
}

/// Reads up to the end of a request's head; fails with the answer to send.
fn read_head(stream: &TcpStream, end: Instant) -> Result<Vec<u8>, Answer> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let length = read(stream, &mut piece, end).map_err(|_| Answer::plain(408, "Request Timeout"))?;
        head.extend(&piece[..length]);
        if head.len() > MAX_HEAD {
            return Err(Answer::plain(431, "Request Header Fields Too Large"));
        }
        let is_whole =
            head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n");
        if is_whole {
            return Ok(head);
        }
        if length == 0 {
            return Err(Answer::plain(400, "Bad Request"));
        }
    }
}

fn answer<P: Fn(&Request<'_>) -> Answer>(head: &[u8], site: &Site<P>) -> Answer {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let (method, target) = match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => (request.method.unwrap_or(""), request.path.unwrap_or("")),
        Err(httparse::Error::TooManyHeaders) => {
            return Answer::plain(431, "Request Header Fields Too Large");
        }
        Err(httparse::Error::Version) => return Answer::plain(505, "HTTP Version Not Supported"),
        Ok(httparse::Status::Partial) | Err(_) => return Answer::plain(400, "Bad Request"),
    };
    // DNS rebinding: a web page in a local browser can make its own host name resolve to loopback and read
    // the answer.
    if site.is_local && !request.headers.iter().all(is_local_host) {
        return Answer::plain(421, "Misdirected Request");
    }
    let answer = match method {
        "GET" | "HEAD" => (site.page)(&Request::of(target)),
        _ => Answer::plain(405, "Method Not Allowed").with("Allow", "GET, HEAD"),
    };
    Answer {
        has_body: method != "HEAD",
        ..answer
    }
}

/// Returns whether a header is not `Host`, or names this machine by `localhost` or an IP address, which no
/// DNS can redirect.
fn is_local_host(header: &httparse::Header<'_>) -> bool {
    if !header.name.eq_ignore_ascii_case("host") {
        return true;
    }
    let Ok(host) = std::str::from_utf8(header.value) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || literal.unwrap_or(name).parse::<IpAddr>().is_ok()
}

/// Time left until `end`; `TimedOut` if there is none.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn read(mut stream: &TcpStream, buffer: &mut [u8], end: Instant) -> io::Result<usize> {
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
