//! Asks the kernel about sockets: netlink's `sock_diag`, which needs no rights.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::proc_files::{MAX_BYTES, read};
use super::sockets::{Protocol, Question, Sockets, table};

/// Maximum number of messages of an answer, each with up to 32 KiB: those of a million sockets.
const MAX_MESSAGES: usize = 1 << 14;
/// Time after which the kernel is not waited for.
const PATIENCE_SECONDS: i64 = 2;
/// Tables of `/proc/PID/net`.
const TABLES: [(&str, Protocol); 5] = [
    ("net/tcp", Protocol::Tcp),
    ("net/tcp6", Protocol::Tcp),
    ("net/udp", Protocol::Udp),
    ("net/udp6", Protocol::Udp),
    ("net/unix", Protocol::Unix),
];

/// Reads the memory of sockets of process `pid`, which have these inodes.
pub(super) fn sockets(pid: u32, inodes: &HashSet<u64>) -> Sockets {
    let mut sockets = Sockets {
        has_memory: is_own_namespace(pid),
        ..Sockets::default()
    };
    let mut left = inodes.clone();
    if sockets.has_memory {
        for question in Question::ALL {
            if !left.is_empty() && ask(question, &mut left, &mut sockets).is_err() {
                sockets.has_memory = false;
            }
        }
    }
    for (name, protocol) in TABLES {
        if !left.is_empty() && !sockets.has_memory {
            let text = read(pid, name, MAX_BYTES).unwrap_or_default();
            table(&text, protocol, &mut left, &mut sockets);
        }
    }
    sockets.others = left.len() as u64;
    sockets
}

/// Returns whether a process is in this one's network namespace.
fn is_own_namespace(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    of("self").is_some_and(|own| of(&pid.to_string()) == Some(own))
}

/// Asks about all sockets of a kind, and adds those among `left`.
fn ask(question: Question, left: &mut HashSet<u64>, sockets: &mut Sockets) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
    send(socket.as_raw_fd(), &question.message(), MsgFlags::empty())?;
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..MAX_MESSAGES {
        let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
        let part = bytes.get(..length).unwrap_or_default();
        if length == 0 || !question.answer(part, left, sockets) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}
