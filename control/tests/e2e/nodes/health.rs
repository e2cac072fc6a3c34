//! A node's proxy, as health checks see it: `/healthz` at port 10256, and health-check node ports with the weight
//! header of Kubernetes 1.31 and later.
//!
//! It returns the answers that the test sets, and counts the requests.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tidegate_netlab::Namespace;

/// The answer to a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthAnswer {
    pub(crate) status: u16,
    /// `X-Load-Balancing-Endpoint-Weight`; older proxies send none.
    pub(crate) weight: Option<u32>,
}

impl HealthAnswer {
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
    answer: Arc<Mutex<HealthAnswer>>,
    requests: Arc<AtomicU64>,
    closing: Arc<AtomicBool>,
    at: (Namespace, u16),
    thread: Option<JoinHandle<()>>,
}

impl HealthPort {
    /// Listens in `node` on all addresses of both families.
    pub(crate) fn open(node: &Namespace, port: u16, answer: HealthAnswer) -> Self {
        let listener = node
            .enter(|| TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)))
            .expect("the port is free");
        let (answer, requests, closing) =
            (Arc::new(Mutex::new(answer)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (answer, requests, closing) =
                (Arc::clone(&answer), Arc::clone(&requests), Arc::clone(&closing));
            thread::spawn(move || {
                for stream in listener.incoming() {
                    if closing.load(Ordering::Relaxed) {
                        return;
                    }
                    let now = *answer.lock().unwrap_or_else(PoisonError::into_inner);
                    // A client that disconnects gets no answer.
                    if stream.and_then(|stream| respond(&stream, now)).is_ok() {
                        requests.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        Self { answer, requests, closing, at: (node.clone(), port), thread: Some(thread) }
    }

    /// Sets the answer.
    pub(crate) fn set_answer(&self, answer: HealthAnswer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
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

fn respond(mut stream: &TcpStream, answer: HealthAnswer) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 4096 {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let weight =
        answer.weight.map_or_else(String::new, |n| format!("X-Load-Balancing-Endpoint-Weight: {n}\r\n"));
    let reason = if answer.status == 200 { "OK" } else { "Service Unavailable" };
    write!(
        stream,
        "HTTP/1.1 {} {reason}\r\nContent-Type: application/json\r\n{weight}Content-Length: 0\r\nConnection: close\r\n\r\n",
        answer.status
    )
}
