//! Opens, keeps, retries and closes the listeners of health-check node ports, as Services require.
//!
//! One task owns all of them. A new endpoint count changes only the answer, not the socket. A port that another process
//! uses is reported and retried every [`RETRY`]. A listener that ended because of a bug is reopened after the same
//! time.
//!
//! Users decide how many ports there are, and anyone who reaches the host can connect to each. So the connections of
//! all ports together are limited ([`CONNECTIONS_MAX`]): the more ports, the fewer connections each may have. Without a
//! limit, they could use up the file descriptors of the process.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipnet::IpNet;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use tidegate_http::{Limits, serve_up_to};
use tidegate_model::health::HealthCheckNodePort;
use tidegate_model::objects::ObjectKey;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::clients::{Admitting, Clients};
use super::{HealthReport, http_answer};

/// The pause between two attempts to bind.
const RETRY: Duration = Duration::from_secs(5);
/// The maximum number of connections of all listeners together, except that each may always have [`CONNECTIONS_MIN`].
const CONNECTIONS_MAX: usize = 8_192;
/// The number of connections that each listener may have, however many listeners there are.
const CONNECTIONS_MIN: usize = 4;
/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The addresses on which health-check node ports listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bind {
    /// All addresses of both families.
    All,
    /// Only these.
    Only(Vec<IpAddr>),
}

impl Bind {
    /// Selects the addresses according to `services.nodePortAddresses`: all if it is empty, otherwise the gateway's
    /// addresses that are in one of the networks.
    pub fn new(networks: &[IpNet], own: impl IntoIterator<Item = IpAddr>) -> Self {
        if networks.is_empty() {
            return Self::All;
        }
        Self::Only(own.into_iter().filter(|ip| networks.iter().any(|net| net.contains(ip))).collect())
    }

    fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::All => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            Self::Only(addresses) => addresses.clone(),
        }
    }
}

/// A listener that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindFailure {
    /// The Service.
    pub service: ObjectKey,
    /// The address and port.
    pub address: SocketAddr,
    /// The error of the system.
    pub error: String,
}

/// Serves health-check node ports until it is dropped.
#[derive(Debug)]
pub struct HealthCheckNodePorts {
    wanted: watch::Sender<Vec<HealthCheckNodePort>>,
    failures: watch::Receiver<Vec<BindFailure>>,
}

impl HealthCheckNodePorts {
    /// Starts without ports, on the current tokio runtime. Only `clients` are served. `report` is called for each
    /// request.
    pub fn start(
        bind: &Bind,
        clients: Clients,
        report: impl Fn() -> HealthReport + Send + Sync + 'static,
    ) -> Self {
        let (wanted, wanted_seen) = watch::channel(Vec::new());
        let (failures_out, failures) = watch::channel(Vec::new());
        let task = Listeners {
            addresses: bind.addresses(),
            clients,
            report: Arc::new(report),
            open: BTreeMap::new(),
            each: Arc::new(AtomicUsize::new(CONNECTIONS_MAX)),
            failures: failures_out,
        };
        tokio::spawn(task.run(wanted_seen));
        Self { wanted, failures }
    }

    /// Replaces the ports to serve.
    pub fn set(&self, ports: Vec<HealthCheckNodePort>) {
        self.wanted.send_if_modified(|now| {
            let changed = *now != ports;
            *now = ports;
            changed
        });
    }

    /// The ports that cannot be served now.
    #[must_use]
    pub fn failures(&self) -> watch::Receiver<Vec<BindFailure>> {
        self.failures.clone()
    }
}

type Report = Arc<dyn Fn() -> HealthReport + Send + Sync>;

struct Listeners {
    addresses: Vec<IpAddr>,
    clients: Clients,
    report: Report,
    open: BTreeMap<SocketAddr, Open>,
    /// The number of connections that each listener may have.
    each: Arc<AtomicUsize>,
    failures: watch::Sender<Vec<BindFailure>>,
}

struct Open {
    /// The contents of the listener's answers, replaced in place.
    answers: Arc<Mutex<HealthCheckNodePort>>,
    task: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listeners {
    async fn run(mut self, mut wanted: watch::Receiver<Vec<HealthCheckNodePort>>) {
        loop {
            let ports = wanted.borrow_and_update().clone();
            let failures = self.replace(&ports);
            let retry = !failures.is_empty() || !self.open.is_empty();
            self.failures.send_if_modified(|now| {
                let changed = *now != failures;
                *now = failures;
                changed
            });
            tokio::select! {
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return; // The owner was dropped; dropping `open` closes the listeners.
                    }
                }
                () = tokio::time::sleep(RETRY), if retry => {}
            }
        }
    }

    fn replace(&mut self, ports: &[HealthCheckNodePort]) -> Vec<BindFailure> {
        self.open.retain(|address, open| {
            let has_ended = open.task.is_finished();
            if has_ended {
                tracing::error!(%address, "the listener of a health-check node port ended unexpectedly");
            }
            !has_ended && ports.iter().any(|p| p.port.get() == address.port())
        });
        let mut failures = Vec::new();
        for port in ports {
            for ip in &self.addresses {
                let address = SocketAddr::new(*ip, port.port.get());
                if let Some(open) = self.open.get(&address) {
                    open.answers.lock().expect("nothing panics with the lock").clone_from(port);
                    continue;
                }
                match listen(address) {
                    Ok(listener) => {
                        let listener = Admitting { listener, clients: self.clients.clone() };
                        let (report, each) = (self.report.clone(), Arc::clone(&self.each));
                        self.open.insert(address, serve_port(listener, port, report, each));
                    }
                    // A host without IPv6 (or IPv4) serves the other family.
                    Err(e) if ip.is_unspecified() && has_no_family(&e) => {}
                    Err(e) => {
                        failures.push(BindFailure {
                            service: port.service.clone(),
                            address,
                            error: e.to_string(),
                        });
                    }
                }
            }
        }
        self.each.store(connections_of_each(self.open.len()), Ordering::Relaxed);
        failures
    }
}

/// The number of connections that each of this many listeners may have.
fn connections_of_each(listeners: usize) -> usize {
    (CONNECTIONS_MAX / listeners.max(1)).max(CONNECTIONS_MIN)
}

fn serve_port(
    listener: Admitting,
    port: &HealthCheckNodePort,
    report: Report,
    each: Arc<AtomicUsize>,
) -> Open {
    let answers = Arc::new(Mutex::new(port.clone()));
    let current = answers.clone();
    let task = tokio::spawn(serve_up_to(each, listener, Limits::PROBES, move |_| {
        let port = current.lock().expect("nothing panics with the lock").clone();
        std::future::ready(http_answer::service(&port, &report()))
    }));
    Open { answers, task }
}

/// Binds and listens. IPv6 sockets accept only IPv6, so that both families can be bound separately.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn has_no_family(error: &io::Error) -> bool {
    let raw = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(raw, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
