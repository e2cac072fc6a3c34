//! The routes of the router in front of the gateways: equal-cost routes to the VIPs over every gateway that is ready.
//!
//! A thread stands for the routing protocol. It asks `/readyz` of each gateway, ten times a second, and gives the
//! kernel of the router a route over those that answer 200, as BGP with BFD would. The kernel spreads flows by a hash of
//! addresses and ports, without memory (`fib_multipath_hash_policy=1`): when a gateway comes or goes, flows move, also
//! between gateways that stay. That is the hard case; routers with resilient hashing move fewer.
//!
//! The SNAT address of a gateway that is not ready leads to one that is.
//!
//! In mode `nat` the servers' default route must lead to the gateway that has their flows. So these VIPs, and the default
//! route, are at one gateway at a time: at the first one that is ready.

use super::addresses::{HEALTHZ_PORT, SERVICES, gateway, snat};
use crate::netlab::namespace::Namespace;
use crate::netlab::poll::wait_for;
use anyhow::Result;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The interval of the questions.
const INTERVAL: Duration = Duration::from_millis(100);
/// The maximum time of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// A gateway at whose port nobody listens this often in a row is gone. One that answers with another status goes at once.
const REFUSALS: u32 = 3;
/// A gateway that listens and does not answer this often in a row is gone. On a busy machine it may be slow.
const SILENCES: u32 = 10;
/// The maximum time until a change of a gateway is in the routes, on a busy machine.
const ROUTED_BOUND: Duration = Duration::from_secs(60);

/// The thread that follows the gateways.
#[derive(Debug)]
pub struct Router {
    stop: Arc<AtomicBool>,
    /// The gateways in the routes, by number from 1.
    used: Arc<Mutex<Vec<usize>>>,
    /// How often the routes changed.
    changes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// Follows the gateways of these namespaces, in the kernel of `router` and in that of the `servers`.
    #[must_use]
    pub fn start(router: &Namespace, gateways: [Namespace; 2], servers: Vec<Namespace>) -> Self {
        let (stop, used) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let changes = Arc::new(AtomicU64::new(0));
        let states = gateways.map(|namespace| follow(namespace, Arc::clone(&stop)));
        let (flag, known, router) = (Arc::clone(&stop), Arc::clone(&used), router.clone());
        let counted = Arc::clone(&changes);
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                let ready: Vec<usize> = (1..=2).filter(|n| states[n - 1].0.load(Ordering::Relaxed)).collect();
                let is_news = *known.lock().unwrap_or_else(PoisonError::into_inner) != ready;
                if is_news && !ready.is_empty() {
                    match set_routes(&router, &servers, &ready) {
                        Ok(()) => {
                            counted.fetch_add(1, Ordering::Relaxed);
                            *known.lock().unwrap_or_else(PoisonError::into_inner) = ready;
                        }
                        Err(error) => eprintln!("the router: {error:#}"),
                    }
                }
                thread::sleep(INTERVAL / 2);
            }
            for (_, thread) in states {
                // Its panic was printed to standard error.
                let _ = thread.join();
            }
        });
        Self { stop, used, changes, thread: Some(thread) }
    }

    /// How often the routes have changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until exactly these gateways are in the routes.
    ///
    /// # Errors
    /// When that does not happen in time.
    pub fn wait_until_used(&self, gateways: &[usize]) -> Result<()> {
        wait_for(&format!("routes over the gateways {gateways:?}"), ROUTED_BOUND, || {
            (*self.used.lock().unwrap_or_else(PoisonError::into_inner) == gateways).then_some(())
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic was printed to standard error.
            let _ = thread.join();
        }
    }
}

/// Follows one gateway: whether it is ready.
fn follow(namespace: Namespace, stop: Arc<AtomicBool>) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let ready = Arc::new(AtomicBool::new(false));
    let known = Arc::clone(&ready);
    let thread = thread::spawn(move || {
        namespace.move_this_thread().expect("the namespace lives as long as its lab");
        let (mut refusals, mut silences) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            match status_of_readyz() {
                Ok(status) => {
                    (refusals, silences) = (0, 0);
                    known.store(status == 200, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => refusals += 1,
                Err(_) => silences += 1,
            }
            if refusals >= REFUSALS || silences >= SILENCES {
                known.store(false, Ordering::Relaxed);
            }
            thread::sleep(INTERVAL);
        }
    });
    (ready, thread)
}

/// The status of `/readyz` of the gateway in the namespace of the calling thread.
fn status_of_readyz() -> io::Result<u16> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTHZ_PORT));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no status"))
}

/// Sets the routes over these gateways.
fn set_routes(router: &Namespace, servers: &[Namespace], ready: &[usize]) -> Result<()> {
    let hops = |gateways: &[usize]| -> String {
        gateways.iter().map(|n| format!(" nexthop via {}", gateway(*n))).collect()
    };
    let lines: Vec<String> = SERVICES
        .iter()
        .map(|service| {
            let over = if service.is_nat() { &ready[..1] } else { ready };
            format!("route replace {}/32{}", service.vip().ip(), hops(over))
        })
        .collect();
    router.ip_batch(&lines.join("\n"))?;
    // The SNAT address of a gateway that is gone is at one that is ready, as it is announced by those that hold its flows.
    let owner = |n| if ready.contains(&n) { n } else { ready[0] };
    let lines = [1, 2].map(|n| format!("route replace {}/32 via {}\n", snat(n), gateway(owner(n)))).concat();
    for server in servers {
        server.ip_batch(&format!("{lines}route replace default via {}", gateway(ready[0])))?;
    }
    Ok(())
}
