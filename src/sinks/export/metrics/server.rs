//! The least of an HTTP/1.1 server (RFC 9112): one page, one request for each connection.
//!
//! Clients are not trusted: how many are served at once, how long each may take and how much it may say are limited.
//! (Servers that there are for this, such as tiny_http, have no limit of any of these.)

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Clients that are served at once.
const MAX_CLIENTS: usize = 8;
/// Bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;
/// Headers in it.
const MAX_HEADERS: usize = 64;
/// Time for a request to come, and for its answer to go.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for a client to close, once it has its answer.
const LINGER: Duration = Duration::from_millis(500);

/// Where the page is.
const PATH: &str = "/metrics";
const PAGE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves what `page` makes on `address`, and says where that is, until the process ends.
pub(super) fn start(
    address: SocketAddr,
    page: impl Fn() -> String + Send + Sync + 'static,
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

/// What is served.
struct Site<P> {
    /// Whether this machine alone is served.
    is_local: bool,
    page: P,
}

fn accept<P: Fn() -> String + Send + Sync + 'static>(listener: &TcpListener, site: &Arc<Site<P>>) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No descriptors are left: not at once again.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Some(place) = Place::take(&clients) else {
            refuse(&stream);
            continue;
        };
        let site = Arc::clone(site);
        let served = thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            // A client that is gone needs no answer.
            _ = serve(&stream, &site);
            drop(place);
        });
        if let Err(error) = served {
            tracing::debug!("metrics: a client cannot be served: {error}");
        }
    }
}

/// Says that all places are taken, and waits for nothing: the answer fits into the socket's buffer.
fn refuse(mut stream: &TcpStream) {
    let answer = Answer::plain(503, "Service Unavailable");
    let bytes = format!("{}{}", answer.head(), answer.body);
    // What has not been read when a connection is closed makes the kernel break it off, and the answer with it.
    _ = stream
        .set_nonblocking(true)
        .and_then(|()| stream.write_all(bytes.as_bytes()))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.read(&mut [0; 4096]));
}

/// One of the places for clients.
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

/// An answer.
struct Answer {
    status: u16,
    reason: &'static str,
    content_type: &'static str,
    body: String,
    has_body: bool,
}

impl Answer {
    fn plain(status: u16, reason: &'static str) -> Self {
        Self {
            status,
            reason,
            content_type: PLAIN,
            body: format!("{status} {reason}\nMetrics are at {PATH}.\n"),
            has_body: true,
        }
    }

    fn head(&self) -> String {
        let Self {
            status,
            reason,
            content_type,
            body,
            ..
        } = self;
        let allow = if *status == 405 {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}X-Content-Type-Options: \
             nosniff\r\nConnection: close\r\n\r\n",
            body.len()
        )
    }
}

fn serve<P: Fn() -> String>(stream: &TcpStream, site: &Site<P>) -> io::Result<()> {
    let answer = match read_head(stream, Instant::now() + PATIENCE) {
        Ok(head) => answer(&head, site),
        Err(answer) => answer,
    };
    let mut bytes = answer.head().into_bytes();
    if answer.has_body {
        bytes.extend(answer.body.as_bytes());
    }
    write_all(stream, &bytes, Instant::now() + PATIENCE)?;
    // The same as above.
    stream.shutdown(Shutdown::Write)?;
    let end = Instant::now() + LINGER;
    let mut rest = [0; 1024];
    while read(stream, &mut rest, end)? > 0 {}
    Ok(())
}

/// A request's head, as far as it comes in time.
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

fn answer<P: Fn() -> String>(head: &[u8], site: &Site<P>) -> Answer {
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
    // A page in a browser here may have a host of its own mean this machine, and read what it is answered.
    if site.is_local && !request.headers.iter().all(is_local_host) {
        return Answer::plain(421, "Misdirected Request");
    }
    let path = target.split('?').next().unwrap_or(target);
    let answer = match (method, path) {
        ("GET" | "HEAD", PATH) => Answer {
            status: 200,
            reason: "OK",
            content_type: PAGE,
            body: (site.page)(),
            has_body: true,
        },
        ("GET" | "HEAD", _) => Answer::plain(404, "Not Found"),
        _ => Answer::plain(405, "Method Not Allowed"),
    };
    Answer {
        has_body: method != "HEAD",
        ..answer
    }
}

/// Whether a header, if it says which host is asked, names this machine as nobody else can: by its own name, or by a number.
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

/// Time until `end`; an error if there is none.
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
