//! What `tidegate-edge status` shows: the state that a running edge writes to its runtime directory.
//!
//! Invariant: nothing of a private key is part of it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_host::atomic_file;

/// The name of the file in the runtime directory.
pub const FILE: &str = "status.json";

/// The state of an edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `metadata.name`.
    pub name: String,
    /// The pid of the edge.
    pub pid: u32,
    /// HAProxy.
    pub haproxy: Haproxy,
    /// What is served, sorted by Service and port.
    pub listeners: Vec<Listener>,
    /// The certificates in use, sorted by Secret.
    pub certificates: Vec<Certificate>,
    /// Requests that are not granted and other faults.
    pub findings: Vec<Finding>,
}

/// The state of HAProxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Haproxy {
    /// Its version, if it was found.
    pub version: Option<String>,
    /// The pid of its master, while it runs.
    pub pid: Option<u32>,
    /// How often it was started again after it had ended.
    pub restarts: u64,
    /// How often it was reloaded.
    pub reloads: u64,
    /// Why the wanted configuration is not in use; absent if it is.
    pub error: Option<String>,
}

/// A port of a Service that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// `namespace/name`.
    pub service: String,
    /// The port.
    pub port: u16,
    /// The addresses and ports.
    pub addresses: Vec<SocketAddr>,
    /// The TLS policy, if it has TLS.
    pub tls: Option<String>,
    /// The Secrets of its certificates.
    pub secrets: Vec<String>,
    /// `tcp`, `tls`, `http`, `https`, `h2c`, `grpc`, or `redirect`.
    pub protocol: String,
    /// The endpoints that take new requests.
    pub servers: Vec<SocketAddr>,
}

/// A certificate in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// `namespace/name` of the Secret.
    pub secret: String,
    /// Its DNS names and addresses.
    pub names: Vec<String>,
    /// When it expires, RFC 3339.
    pub not_after: String,
}

/// A request that is not granted, or another fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// `namespace/name`; empty for faults of files.
    pub object: String,
    /// The reason, one word.
    pub reason: String,
    /// What, where, and what is accepted.
    pub message: String,
}

impl Status {
    /// Writes the file in the runtime directory.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        atomic_file::replace(&directory.join(FILE), |out| out.write_all(&text)).map(drop)
    }

    /// Reads the file in the runtime directory.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(directory.join(FILE))?)?)
    }

    /// Prints it as tables.
    ///
    /// # Errors
    /// If the output is closed.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let haproxy = &self.haproxy;
        let version = haproxy.version.as_deref().unwrap_or("not found");
        let state = haproxy.pid.map_or("not running".to_owned(), |pid| format!("pid {pid}"));
        let (restarts, reloads) = (haproxy.restarts, haproxy.reloads);
        writeln!(out, "edge {}: pid {}", self.name, self.pid)?;
        writeln!(out, "HAProxy {version}: {state}, {reloads} reloads, {restarts} restarts")?;
        if let Some(error) = &haproxy.error {
            writeln!(out, "error: {error}")?;
        }
        let rows = self.listeners.iter().map(|listener| {
            let addresses: Vec<String> = listener.addresses.iter().map(ToString::to_string).collect();
            [
                format!("{}:{}", listener.service, listener.port),
                addresses.join(","),
                listener.tls.clone().unwrap_or_else(|| "-".to_owned()),
                listener.protocol.clone(),
                listener.servers.len().to_string(),
            ]
        });
        table(out, ["SERVICE", "ADDRESSES", "TLS", "PROTOCOL", "SERVERS"], &rows.collect::<Vec<_>>())?;
        let rows = self.certificates.iter().map(|certificate| {
            [certificate.secret.clone(), certificate.not_after.clone(), certificate.names.join(",")]
        });
        table(out, ["SECRET", "EXPIRES", "NAMES"], &rows.collect::<Vec<_>>())?;
        let rows = self.findings.iter().map(|finding| {
            let object = if finding.object.is_empty() { "-" } else { &finding.object };
            [object.to_owned(), finding.reason.clone(), finding.message.clone()]
        });
        table(out, ["OBJECT", "REASON", "MESSAGE"], &rows.collect::<Vec<_>>())
    }
}

/// Prints a table after an empty line; nothing if it has no rows. The last column has no padding.
fn table<const N: usize>(out: &mut impl Write, head: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let head = head.map(str::to_owned);
    let all: Vec<&[String; N]> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in all {
        let cells: Vec<String> = (0..N)
            .map(|at| if at + 1 == N { row[at].clone() } else { format!("{:1$}", row[at], widths[at]) })
            .collect();
        writeln!(out, "{}", cells.join("  "))?;
    }
    Ok(())
}
