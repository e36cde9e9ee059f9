//! Attaching and detaching probes in helper processes, which finish even if memleak is killed.
//!
//! A thread that is being killed may attach or detach only a part of a link's probes: the kernel's
//! `install_breakpoint` and `remove_breakpoint` (`kernel/events/uprobes.c`), which read and write the
//! target's memory, then fail with EINTR, and a probe that is not removed stays in the target for good
//! (dmesg: "failed to unregister, leaking uprobe"). Helpers are safe because nothing else knows them; they
//! have their own process group so that killing memleak's group spares them.
#![allow(unsafe_code, reason = "descriptors that another process sends")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::{ErrorKind, Link};
use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};
use nix::sys::wait::waitpid;
use thiserror::Error;

use crate::base::helper;

/// Reason why a link could not be made.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct Refusal {
    pub(super) denied: bool,
    text: String,
}

impl Refusal {
    fn of(error: &libbpf_rs::Error) -> Self {
        Self {
            denied: error.kind() == ErrorKind::PermissionDenied,
            text: format!("{error:#}"),
        }
    }

    pub(super) fn other(text: String) -> Self {
        Self { denied: false, text }
    }
}

/// Maximum bytes of a refusal's text.
const MAX_TEXT: usize = 1024;

/// Maximum number of descriptors of a message (`SCM_MAX_FD` of the kernel).
const MAX_DESCRIPTORS: usize = 253;

/// First byte of a message. `MADE` comes with the last descriptors of a link, `MORE` with some that others
/// follow. `DENIED` means that the link was refused for lack of privileges, `REFUSED` that it was for another
/// reason.
const MADE: u8 = 0;
const REFUSED: u8 = 1;
const DENIED: u8 = 2;
const MORE: u8 = 3;

/// The descriptor of a link.
pub(super) fn descriptor(link: &Link) -> Result<OwnedFd, libbpf_rs::Error> {
    let descriptor = link.as_fd().try_clone_to_owned();
    descriptor.map_err(|error| as_libbpf_says(&error))
}

/// An error as libbpf would return it.
pub(super) fn as_libbpf_says(error: &io::Error) -> libbpf_rs::Error {
    libbpf_rs::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Makes `count` links, numbered from 0. Returns for each its descriptor and those of events that keep its
/// probes. Fails with the number of the first link that is refused.
///
/// Makes them in this process if it cannot start a helper.
pub(super) fn make_links(
    count: usize,
    make: impl Fn(usize) -> Result<Vec<OwnedFd>, libbpf_rs::Error>,
) -> Result<Vec<Vec<OwnedFd>>, (usize, Refusal)> {
    let pair = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    );
    let Ok((ours, theirs)) = pair else {
        return make_in_process(count, make);
    };
    let Some(maker) = helper::start(|| send_links(&theirs, count, &make)) else {
        return make_in_process(count, make);
    };
    drop(theirs);
    let links = (0..count).map(|number| receive(&ours).map_err(|refusal| (number, refusal)));
    let links = links.collect();
    // The pid cannot have been reused before this call.
    _ = waitpid(maker, None);
    links
}

fn make_in_process(
    count: usize,
    make: impl Fn(usize) -> Result<Vec<OwnedFd>, libbpf_rs::Error>,
) -> Result<Vec<Vec<OwnedFd>>, (usize, Refusal)> {
    let link = |number| make(number).map_err(|error| (number, Refusal::of(&error)));
    (0..count).map(link).collect()
}

/// Runs in the helper. If a message cannot be sent, memleak has ended, and the links end with this process.
fn send_links(to: &OwnedFd, count: usize, make: impl Fn(usize) -> Result<Vec<OwnedFd>, libbpf_rs::Error>) {
    // SAFETY: replaces the print callback, whose lock may be held by a thread that does not exist in this
    // process.
    unsafe { libbpf_sys::libbpf_set_print(None) };
    let mut links = Vec::with_capacity(count);
    for number in 0..count {
        let link = make(number);
        let sent = match &link {
            Ok(link) => send_descriptors(to, link),
            Err(error) => {
                let Refusal { denied, text } = Refusal::of(error);
                let first = if denied { DENIED } else { REFUSED };
                let text = text.bytes().take(MAX_TEXT);
                send(to, &[first].into_iter().chain(text).collect::<Vec<_>>(), &[])
            }
        };
        let is_sent = link.is_ok() && sent.is_ok();
        links.push(link);
        if !is_sent {
            break;
        }
    }
    // Drop would close them while this process can still be killed. The kernel closes open descriptors at its
    // end, when it no longer can be.
    std::mem::forget(links);
}

fn send_descriptors(to: &OwnedFd, descriptors: &[OwnedFd]) -> nix::Result<usize> {
    let all: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let mut parts = all.chunks(MAX_DESCRIPTORS).peekable();
    let mut sent = 0;
    while let Some(part) = parts.next() {
        let first = if parts.peek().is_some() { MORE } else { MADE };
        sent = send(to, &[first], part)?;
    }
    Ok(sent)
}

fn send(to: &OwnedFd, bytes: &[u8], descriptors: &[i32]) -> nix::Result<usize> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() { &[][..] } else { &rights };
    let data = [IoSlice::new(bytes)];
    sendmsg::<()>(to.as_raw_fd(), &data, rights, MsgFlags::MSG_NOSIGNAL, None)
}

fn receive(from: &OwnedFd) -> Result<Vec<OwnedFd>, Refusal> {
    let mut descriptors = Vec::new();
    while receive_part(from, &mut descriptors)? == MORE {}
    Ok(descriptors)
}

/// Adds the descriptors of a message; returns its first byte.
fn receive_part(from: &OwnedFd, all: &mut Vec<OwnedFd>) -> Result<u8, Refusal> {
    let ended = |why: &str| Refusal::other(format!("the process that attaches ended: {why}"));
    let mut bytes = [0; 1 + MAX_TEXT];
    let mut rights = cmsg_space!([i32; MAX_DESCRIPTORS]);
    let mut data = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = loop {
        match recvmsg::<()>(from.as_raw_fd(), &mut data, Some(&mut rights), flags) {
            Err(nix::Error::EINTR) => {}
            received => break received.map_err(|error| ended(error.desc()))?,
        }
    };
    let length = message.bytes;
    let passed = message.cmsgs().ok().into_iter().flatten();
    let passed = passed.flat_map(|rights| {
        let ControlMessageOwned::ScmRights(descriptors) = rights else {
            return vec![];
        };
        descriptors
    });
    let before = all.len();
    // SAFETY: the message created them for this process; nothing else owns them.
    all.extend(passed.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) }));
    let is_cut = message.flags.contains(MsgFlags::MSG_CTRUNC) || all.len() == before;
    match bytes.get(..length).unwrap_or_default() {
        [MADE | MORE] if is_cut => Err(Refusal::other("no file descriptor is left".to_owned())),
        [first @ (MADE | MORE)] => Ok(*first),
        [first, text @ ..] => Err(Refusal {
            denied: *first == DENIED,
            text: String::from_utf8_lossy(text).into_owned(),
        }),
        [] => Err(ended("it was killed")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::id;

    use super::*;

    fn refuse(_: usize) -> Result<Vec<OwnedFd>, libbpf_rs::Error> {
        Err(libbpf_rs::Error::from_raw_os_error(libc::EACCES))
    }

    /// A refusal carries the number of the link, whether privileges are missing, and the kernel's text.
    #[test]
    fn refusals_carry_number_and_reason() {
        for refused in [make_links(2, refuse), make_in_process(2, refuse)] {
            let (number, refusal) = refused.expect_err("all are refused");
            assert_eq!((number, refusal.denied), (0, true));
            assert!(refusal.text.contains("Permission denied"), "{refusal}");
        }
        assert!(make_links(0, refuse).is_ok());
    }

    /// A maker that panics or exits makes no link, and does not continue as a second memleak.
    #[test]
    fn failing_makers_leave_no_second_process() {
        let memleak = id();
        let panics = |_| {
            std::panic::set_hook(Box::new(|_| {}));
            panic!("on purpose")
        };
        let (number, refusal) = make_links(1, panics).expect_err("no link");
        assert_eq!((number, refusal.denied, id()), (0, false, memleak));
        assert!(refusal.text.contains("was killed"), "{refusal}");
    }
}
