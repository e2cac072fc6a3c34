//! The ports on which the gateway listens: does another process have them?

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidegate_model::config::FlowSharing;

use super::subject::Subject;
use crate::finding::Finding;

/// The state of a listening TCP socket, and of an unconnected UDP socket, in /proc/net.
const LISTENS: [&str; 2] = ["0A", "07"];

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let config = subject.config;
    let shares = config.flow_sharing.mode != FlowSharing::None;
    let listeners = [
        ("admin.listen", "tcp", config.admin.listen),
        ("admin.healthz", "tcp", config.admin.healthz),
        ("admin.page.listen", "tcp", config.admin.page.as_ref().map(|page| page.listen)),
        ("flowSharing.listen", "udp", shares.then(|| config.flow_sharing_socket())),
    ];
    let listeners = listeners.into_iter().filter_map(|(key, protocol, at)| Some((key, protocol, at?)));
    listeners.map(|(key, protocol, at)| listener(subject, key, protocol, at)).collect()
}

fn listener(subject: &Subject<'_>, key: &str, protocol: &str, at: SocketAddr) -> Finding {
    let check = "ports";
    let files = [protocol.to_owned(), format!("{protocol}6")];
    let texts = files.iter().filter_map(|file| subject.machine.text(format!("proc/net/{file}")));
    let taken = texts.flat_map(|text| text.lines().filter_map(socket).collect::<Vec<_>>());
    let taken = taken.filter(|(other, _)| clash(*other, at)).map(|(_, inode)| inode);
    let own = subject.gateway.map(|gateway| gateway.pid);
    let others: Vec<Option<u32>> = taken.map(|inode| owner(subject, inode)).collect();
    if others.iter().all(|pid| pid.is_some() && *pid == own) {
        let by = if others.is_empty() { "free" } else { "used by the running gateway" };
        return Finding::ok(check, format!("{key} {at} is {by}"));
    }
    let who: Vec<String> =
        others.iter().filter(|pid| **pid != own || pid.is_none()).map(|pid| name(subject, *pid)).collect();
    let what = format!("{key}: {protocol} port {} is used by {}", at.port(), who.join(", "));
    let fix = format!("stop that process, or {key}: another port");
    Finding::fault(check, what, "the gateway doesn't start", fix)
}

fn name(subject: &Subject<'_>, pid: Option<u32>) -> String {
    let Some(pid) = pid else { return "another process".to_owned() };
    let name = subject.machine.text(format!("proc/{pid}/comm")).unwrap_or_default();
    format!("{name} (pid {pid})")
}

/// The local address and the inode of a listening socket, from a line of /proc/net.
fn socket(line: &str) -> Option<(SocketAddr, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if !LISTENS.contains(fields.get(3)?) {
        return None;
    }
    let (ip, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(address(ip)?, port), fields.get(9)?.parse().ok()?))
}

/// An address as words of 32 bits in the byte order of this machine.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

/// Whether two sockets cannot listen at the same time.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    let is_any = a.is_unspecified() || b.is_unspecified();
    // A socket at [::] also accepts IPv4.
    let same_family = a.is_ipv4() == b.is_ipv4() || is_any;
    one.port() == other.port() && same_family && (a == b || is_any)
}

/// The process that has a socket.
fn owner(subject: &Subject<'_>, inode: u64) -> Option<u32> {
    let socket = format!("socket:[{inode}]");
    let pids = subject.machine.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let directory = format!("proc/{pid}/fd");
        let mut files = subject.machine.names(&directory).into_iter();
        files.any(|file| subject.machine.link(format!("{directory}/{file}")).as_deref() == Some(&socket))
    })
}
