//! Changes servers and certificates of a running HAProxy without a reload.
//!
//! The state that HAProxy reports is compared with the wanted one, before and after the change. So a command that
//! failed, or that was lost with a worker, is found whatever HAProxy answered.
//!
//! A removed server first gets no new connections (maintenance). HAProxy deletes it only without connections.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::master::query_worker;

/// The columns of `show servers state` (management guide, section 9.3).
const NAME: usize = 3;
const ADMIN_STATE: usize = 6;

/// The servers of a backend that get no new connections and still have some.
pub type Leaving = BTreeSet<String>;

/// Makes `wanted` the servers of a backend: names, and what follows the name in the configuration. Returns the servers
/// that must still be deleted.
///
/// # Errors
/// If HAProxy does not answer, or if afterwards a wanted server is missing or out of service. A reload is needed then.
pub fn apply(socket: &Path, backend: &str, wanted: &BTreeMap<String, String>) -> io::Result<Leaving> {
    let before = states(socket, backend)?;
    let mut answers = Vec::new();
    let mut send = |command: String| {
        let answer = query_worker(socket, &command)?;
        answers.extend(answer.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        io::Result::Ok(())
    };
    // New servers come first, so that the backend always has one.
    for (name, address) in wanted {
        match before.get(name) {
            None => {
                send(format!("add server {backend}/{name} {address}"))?;
                send(format!("enable server {backend}/{name}"))?;
            }
            Some(false) => send(format!("set server {backend}/{name} state ready"))?,
            Some(true) => {}
        }
    }
    for (name, is_ready) in &before {
        if !wanted.contains_key(name) {
            if *is_ready {
                send(format!("set server {backend}/{name} state maint"))?;
            }
            send(format!("del server {backend}/{name}"))?;
        }
    }
    tracing::debug!(backend, ?answers, "changed servers");
    let after = states(socket, backend)?;
    let is_applied = wanted.keys().all(|name| after.get(name) == Some(&true))
        && after.iter().all(|(name, is_ready)| !is_ready || wanted.contains_key(name));
    if !is_applied {
        let answers = answers.into_iter().take(3).collect::<Vec<_>>().join("; ");
        return Err(io::Error::other(format!("backend {backend} has other servers than wanted: {answers}")));
    }
    Ok(after.into_iter().filter(|(_, is_ready)| !is_ready).map(|(name, _)| name).collect())
}

/// Closes the connections of a server.
///
/// # Errors
/// If HAProxy does not answer.
pub fn close_connections(socket: &Path, backend: &str, server: &str) -> io::Result<()> {
    query_worker(socket, &format!("shutdown sessions server {backend}/{server}")).map(drop)
}

/// The servers of a backend, and whether each is in service.
fn states(socket: &Path, backend: &str) -> io::Result<BTreeMap<String, bool>> {
    let answer = query_worker(socket, &format!("show servers state {backend}"))?;
    // The first line is the version of the format, the second has the names of the columns.
    let mut lines = answer.lines();
    if lines.next() != Some("1") {
        return Err(io::Error::other(format!("no state of backend {backend}: {}", answer.trim())));
    }
    let server = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Some(((*words.get(NAME)?).to_owned(), *words.get(ADMIN_STATE)? == "0"))
    };
    Ok(lines.filter(|line| !line.starts_with('#')).filter_map(server).collect())
}

/// Replaces a certificate. Established connections continue; the next handshake uses the new one. `pem` has no empty
/// line.
///
/// # Errors
/// If HAProxy does not answer, or refuses the certificate. A reload is needed then.
pub fn replace_certificate(socket: &Path, file: &str, pem: &str) -> io::Result<()> {
    assert!(!pem.contains("\n\n"), "an empty line ends the text of a command");
    query_worker(socket, &format!("set ssl cert {file} <<\n{}\n", pem.trim_end()))?;
    let answer = query_worker(socket, &format!("commit ssl cert {file}"))?;
    if answer.contains("Success!") {
        return Ok(());
    }
    let _ = query_worker(socket, &format!("abort ssl cert {file}"));
    Err(io::Error::other(format!("HAProxy refuses the certificate in {file}: {}", answer.trim())))
}
