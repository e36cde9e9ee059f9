//! Memory of a process's sockets, by what `sock_diag(7)` says of all sockets of a network namespace.
//!
//! Pure: messages and text in, sums out. Format: `linux/inet_diag.h`, `linux/unix_diag.h`,
//! `linux/sock_diag.h` and `linux/netlink.h` of the kernel, unchanged since Linux 4.7. In another namespace
//! than memleak's, only `/proc/PID/net` can be read: it has the queues of TCP and UDP, and no memory.

use std::collections::{BTreeMap, HashSet};

/// Protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Unix,
}

/// Sockets of one protocol, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketSum {
    pub count: u64,
    /// Received and not yet read by the program; of UDP, the memory for it.
    pub to_read: u64,
    /// Written by the program and not yet taken by the other side; of UDP and Unix sockets, the memory for
    /// it.
    pub unsent: u64,
    /// Memory of the kernel for both queues, with its headers.
    pub memory: u64,
}

/// Sockets of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    pub by_protocol: BTreeMap<Protocol, SocketSum>,
    /// Memory of each by its inode, as far as it has some; queues where the memory is not known.
    pub by_inode: BTreeMap<u64, u64>,
    /// Sockets of other protocols, and those that could not be asked about.
    pub others: u64,
    /// True if [`SocketSum::memory`] is known: the process is in memleak's network namespace.
    pub has_memory: bool,
}

impl Sockets {
    /// Memory of the kernel for all of them; at least the queues where it is not known.
    pub fn bytes(&self) -> u64 {
        let sums = self.by_protocol.values();
        let bytes = sums.map(|sum| match self.has_memory {
            true => sum.memory,
            false => sum.to_read.saturating_add(sum.unsent),
        });
        bytes.fold(0, u64::saturating_add)
    }

    fn note(&mut self, protocol: Protocol, socket: &Socket) {
        let bytes = match self.has_memory {
            true => socket.memory,
            false => socket.to_read.saturating_add(socket.unsent),
        };
        if bytes > 0 {
            self.by_inode.insert(socket.inode, bytes);
        }
        let sum = self.by_protocol.entry(protocol).or_default();
        for (field, more) in [
            (&mut sum.count, 1),
            (&mut sum.to_read, socket.to_read),
            (&mut sum.unsent, socket.unsent),
            (&mut sum.memory, socket.memory),
        ] {
            *field = field.saturating_add(more);
        }
    }
}

/// A socket, as described in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Socket {
    inode: u64,
    to_read: u64,
    unsent: u64,
    memory: u64,
}

/// `AF_UNIX`, `AF_INET`, `AF_INET6`, and the protocols' numbers.
const UNIX: u8 = 1;
const INET: [u8; 2] = [2, 10];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// State of a socket that waits for connections: its queues are numbers of these.
const LISTENS: u8 = 10;
/// Length of the head of each message of netlink.
const HEAD: usize = 16;
const ALIGNED: usize = 4;
/// Attributes with a socket's memory: `INET_DIAG_SKMEMINFO`, `UNIX_DIAG_MEMINFO`; and `UNIX_DIAG_RQLEN`.
const INET_MEMORY: u16 = 7;
const UNIX_MEMORY: u16 = 5;
const UNIX_QUEUES: u16 = 4;

/// A question about all sockets of a family and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    family: u8,
    protocol: u8,
}

impl Question {
    pub(super) const ALL: [Self; 5] = [
        Self::new(INET[0], TCP),
        Self::new(INET[1], TCP),
        Self::new(INET[0], UDP),
        Self::new(INET[1], UDP),
        Self::new(UNIX, 0),
    ];

    const fn new(family: u8, protocol: u8) -> Self {
        Self { family, protocol }
    }

    fn protocol(self) -> Protocol {
        match self.protocol {
            TCP => Protocol::Tcp,
            UDP => Protocol::Udp,
            _ => Protocol::Unix,
        }
    }

    /// The message that asks.
    pub(super) fn message(self) -> Vec<u8> {
        /// `SOCK_DIAG_BY_FAMILY`; `NLM_F_REQUEST` and `NLM_F_DUMP`.
        const BY_FAMILY: u16 = 20;
        const FLAGS: u16 = 0x301;
        /// `UDIAG_SHOW_RQLEN` and `UDIAG_SHOW_MEMINFO`.
        const SHOWN: u32 = 0x30;
        let mut body = vec![self.family, self.protocol];
        match self.family {
            UNIX => {
                // Padding, all states, no inode, what is shown, no cookie.
                body.extend([0; 2]);
                body.extend(u32::MAX.to_ne_bytes());
                body.extend([0; 4]);
                body.extend(SHOWN.to_ne_bytes());
                body.extend([0; 8]);
            }
            _ => {
                // Attributes, padding, all states, no address.
                body.extend([1 << (INET_MEMORY - 1), 0]);
                body.extend(u32::MAX.to_ne_bytes());
                body.extend([0; 48]);
            }
        }
        let length = u32::try_from(HEAD + body.len()).unwrap_or(u32::MAX);
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(BY_FAMILY.to_ne_bytes());
        message.extend(FLAGS.to_ne_bytes());
        // Number of the question, and no port.
        message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(body);
        message
    }

    /// Reads a part of the answer: adds those of the sockets that are `own` to `sockets`, and removes them
    /// from `own`. Returns whether more follows.
    pub(super) fn answer(self, bytes: &[u8], own: &mut HashSet<u64>, sockets: &mut Sockets) -> bool {
        /// `NLMSG_ERROR` and `NLMSG_DONE`.
        const ENDS: [u16; 2] = [2, 3];
        let mut rest = bytes;
        while let (Some(length), Some(kind)) = (word(rest, 0), half(rest, 4)) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let body = rest.get(HEAD..length);
            let (false, Some(body)) = (ENDS.contains(&kind), body) else {
                return false;
            };
            let socket = match self.family {
                UNIX => unix(body),
                _ => inet(body),
            };
            if let Some(socket) = socket.filter(|socket| own.remove(&socket.inode)) {
                sockets.note(self.protocol(), &socket);
            }
            rest = rest.get(length.next_multiple_of(ALIGNED)..).unwrap_or_default();
        }
        true
    }
}

/// Reads `struct inet_diag_msg`.
fn inet(body: &[u8]) -> Option<Socket> {
    const QUEUES: [usize; 2] = [56, 60];
    const INODE: usize = 68;
    const ATTRIBUTES: usize = 72;
    let listens = body.get(1) == Some(&LISTENS);
    let queue = |at| if listens { Some(0) } else { word(body, at) };
    Some(Socket {
        inode: word(body, INODE)?,
        to_read: queue(QUEUES[0])?,
        unsent: queue(QUEUES[1])?,
        memory: attribute(body.get(ATTRIBUTES..)?, INET_MEMORY).map_or(0, memory),
    })
}

/// Reads `struct unix_diag_msg`.
fn unix(body: &[u8]) -> Option<Socket> {
    const STATE: usize = 2;
    const INODE: usize = 4;
    const ATTRIBUTES: usize = 16;
    let attributes = body.get(ATTRIBUTES..)?;
    let listens = body.get(STATE) == Some(&LISTENS);
    let queues = attribute(attributes, UNIX_QUEUES).filter(|_| !listens);
    let queue = |at| queues.and_then(|queues| word(queues, at)).unwrap_or(0);
    Some(Socket {
        inode: word(body, INODE)?,
        to_read: queue(0),
        unsent: queue(4),
        memory: attribute(attributes, UNIX_MEMORY).map_or(0, memory),
    })
}

/// Memory of a socket: words of `SK_MEMINFO_*`.
fn memory(words: &[u8]) -> u64 {
    let of = |number: usize| word(words, number * 4).unwrap_or(0);
    let (received, sent, reserved, queued, options, backlog) = (of(0), of(2), of(4), of(5), of(6), of(7));
    // What is queued is sent later; some protocols count only one of them.
    received + sent.max(queued) + reserved + options + backlog
}

/// Finds an attribute of this kind.
fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = bytes;
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(ALIGNED)..)?;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?).into())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

/// Reads a table of `/proc/PID/net` (`proc_pid_net(5)`), and removes the sockets in it from `own`.
pub(super) fn table(text: &[u8], protocol: Protocol, own: &mut HashSet<u64>, sockets: &mut Sockets) {
    let text = String::from_utf8_lossy(text);
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let found = match protocol {
            Protocol::Tcp | Protocol::Udp => of_inet_line(&fields),
            Protocol::Unix => of_unix_line(&fields),
        };
        if let Some(socket) = found.filter(|socket| own.remove(&socket.inode)) {
            sockets.note(protocol, &socket);
        }
    }
}

fn of_inet_line(fields: &[&str]) -> Option<Socket> {
    let listens = *fields.get(3)? == "0A";
    let (unsent, to_read) = fields.get(4)?.split_once(':')?;
    let bytes = |digits| match listens {
        true => Some(0),
        false => u64::from_str_radix(digits, 16).ok(),
    };
    Some(Socket {
        inode: fields.get(9)?.parse().ok()?,
        to_read: bytes(to_read)?,
        unsent: bytes(unsent)?,
        memory: 0,
    })
}

fn of_unix_line(fields: &[&str]) -> Option<Socket> {
    Some(Socket {
        inode: fields.get(6)?.parse().ok()?,
        ..Socket::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = u32::try_from(HEAD + body.len()).unwrap().to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Body of an answer about a TCP socket with these queues, whose memory is 1000 bytes more.
    fn tcp(state: u8, inode: u32, queues: [u32; 2]) -> Vec<u8> {
        let mut body = vec![0; 72];
        body[1] = state;
        body[56..64].copy_from_slice(&words(&queues));
        body[68..72].copy_from_slice(&words(&[inode]));
        // Another attribute of 5 bytes comes first.
        body.extend([5, 0, 1, 0, 9, 0, 0, 0]);
        body.extend([40, 0, 7, 0]);
        body.extend(words(&[queues[0] + 600, 1, 1, 1, 400, queues[1], 0, 0, 0]));
        body
    }

    /// Own sockets count, each once; one that listens has no queues; an end ends.
    #[test]
    fn answers() {
        let mut own = HashSet::from([7, 8, 9]);
        let mut sockets = Sockets::default();
        let bodies = [tcp(1, 7, [100, 50]), tcp(1, 99, [5, 5]), tcp(10, 8, [3, 128])];
        let mut bytes: Vec<u8> = bodies.iter().flat_map(|body| message(20, body)).collect();
        let question = Question::ALL[0];
        assert!(question.answer(&bytes, &mut own, &mut sockets));
        assert!(question.answer(&bytes, &mut own, &mut sockets));
        let sum = sockets.by_protocol[&Protocol::Tcp];
        assert_eq!((sum.count, sum.to_read, sum.unsent), (2, 100, 50));
        assert_eq!(sum.memory, 100 + 50 + 1000 + 3 + 128 + 1000);
        assert_eq!(own, HashSet::from([9]));
        bytes.extend(message(3, &[0; 4]));
        assert!(!question.answer(&bytes, &mut own, &mut sockets));
    }

    /// Truncated and hostile messages end, and say nothing.
    #[test]
    fn hostile_answers() {
        let whole = message(20, &tcp(1, 7, [100, 50]));
        for question in Question::ALL {
            for length in 0..whole.len() {
                let mut cut = whole[..length].to_vec();
                question.answer(&cut, &mut HashSet::from([7]), &mut Sockets::default());
                cut.resize(whole.len(), 0xff);
                question.answer(&cut, &mut HashSet::from([7]), &mut Sockets::default());
            }
            let empty = words(&[0, 0, 0, 0]);
            assert!(!question.answer(&empty, &mut HashSet::new(), &mut Sockets::default()));
        }
        assert_eq!(attribute(&[0; 64], 7), None);
    }

    /// Tables of another namespace have queues.
    #[test]
    fn tables() {
        let tcp = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1CE6 0100007F:1CE7 01 00000010:00000020 00:00000000 00000000     0        0 7 1 0 20\n\
            1: 0100007F:1CE6 00000000:0000 0A 00000000:00000005 00:00000000 00000000     0        0 8 1 0 20\n\
            2: 0100007F:1CE6 00000000:0000 01 zz:00000005 00:00000000 00000000     0        0 9 1 0 20\nx\n";
        let unix = b"Num RefCount Protocol Flags Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01  11 /run/a b\n";
        let mut own = HashSet::from([7, 8, 9, 11]);
        let mut sockets = Sockets::default();
        table(tcp, Protocol::Tcp, &mut own, &mut sockets);
        table(unix, Protocol::Unix, &mut own, &mut sockets);
        let expected = SocketSum {
            count: 2,
            to_read: 32,
            unsent: 16,
            memory: 0,
        };
        assert_eq!(sockets.by_protocol[&Protocol::Tcp], expected);
        assert_eq!(sockets.by_protocol[&Protocol::Unix].count, 1);
        assert_eq!((own, sockets.bytes()), (HashSet::from([9]), 48));
    }
}
