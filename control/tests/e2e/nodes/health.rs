//! The answers of a node's proxy to health checks: `/healthz` at port 10256, and health-check node ports with the
//! weight header of Kubernetes 1.31 and later.
//!
//! It returns the answers that the test sets, and counts the requests.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tidegate_netlab::Namespace;

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Says {
    pub(crate) status: u16,
    /// `X-Load-Balancing-Endpoint-Weight`; older proxies send none.
    pub(crate) weight: Option<u32>,
}

impl Says {
    /// The answer of kube-proxy for a Service with this many local endpoints.
    pub(crate) fn endpoints(n: u32) -> Self {
        Self { status: if n > 0 { 200 } else { 503 }, weight: Some(n) }
    }

    /// Healthy, without a weight.
    pub(crate) const HEALTHY: Self = Self { status: 200, weight: None };
    /// Not healthy, without a weight.
    pub(crate) const SICK: Self = Self { status: 503, weight: None };
}

/// A port of a node that answers health checks. It is closed when it is dropped.
pub(crate) struct HealthPort {
    says: Arc<Mutex<Says>>,
    asked: Arc<AtomicU64>,
    closing: Arc<AtomicBool>,
    at: (Namespace, u16),
    thread: Option<JoinHandle<()>>,
}

impl HealthPort {
    /// Listens in `node` on all addresses of both families.
    pub(crate) fn open(node: &Namespace, port: u16, says: Says) -> Self {
        let listener = node
            .enter(|| TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)))
            .expect("the port is free");
        let (says, asked, closing) =
            (Arc::new(Mutex::new(says)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (says, asked, closing) = (Arc::clone(&says), Arc::clone(&asked), Arc::clone(&closing));
            thread::spawn(move || {
                for stream in listener.incoming() {
                    if closing.load(Ordering::Relaxed) {
                        return;
                    }
                    let now = *says.lock().unwrap_or_else(PoisonError::into_inner);
                    // A client that disconnects gets no answer.
                    if stream.and_then(|stream| answer(&stream, now)).is_ok() {
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        Self { says, asked, closing, at: (node.clone(), port), thread: Some(thread) }
    }

    /// Sets the answer.
    pub(crate) fn say(&self, says: Says) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    /// The number of answers so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for HealthPort {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        let (node, port) = &self.at;
        // The accept loop ends with the first connection after the flag is set.
        let woken = node.enter(|| TcpStream::connect((Ipv6Addr::LOCALHOST, *port)));
        if woken.is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: &TcpStream, says: Says) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 4096 {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let weight =
        says.weight.map_or_else(String::new, |n| format!("X-Load-Balancing-Endpoint-Weight: {n}\r\n"));
    let reason = if says.status == 200 { "OK" } else { "Service Unavailable" };
    write!(
        stream,
        "HTTP/1.1 {} {reason}\r\nContent-Type: application/json\r\n{weight}Content-Length: 0\r\nConnection: close\r\n\r\n",
        says.status
    )
}
