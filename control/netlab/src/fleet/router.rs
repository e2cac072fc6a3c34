//! The routes of the router in front of the gateways: equal-cost routes to the VIPs over the gateways in use.
//!
//! With FRR, a thread reads from the router's kernel which gateways FRR's routes lead to. With GoBGP, it copies GoBGP's
//! routes to the kernel. With neither, it replaces the routing protocol: it polls `/readyz` of each gateway ten times a
//! second, and sets routes over those that answer 200. The kernel spreads flows by a stateless hash of addresses and
//! ports (`fib_multipath_hash_policy=1`): when a gateway leaves or returns, flows move, also between gateways that
//! stay. That is the hard case; routers with resilient hashing move fewer.
//!
//! In mode `nat` the servers' default route must lead to the gateway that has their flows. Without a routing daemon the
//! thread sets both, to the first gateway that is ready. With one, they are set once, to the address that keepalived
//! moves.

use super::addresses::{FleetService, HEALTHZ_PORT, SERVICES, gateway};
use crate::namespace::{Namespace, output_of};
use crate::poll::wait_for;
use crate::router::GoBgp;
use anyhow::Result;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The polling interval.
const INTERVAL: Duration = Duration::from_millis(100);
/// The maximum time of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// A gateway whose port refuses connections this often in a row is gone. One that answers with another status is
/// removed immediately.
const REFUSALS: u32 = 3;
/// A gateway that listens but does not answer this often in a row is gone. On a busy machine it may be slow.
const SILENCES: u32 = 10;
/// The maximum time until the routes follow a gateway, on a busy machine.
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
    /// Sets routes over the gateways of these namespaces that are ready, in the kernels of `router` and the `servers`.
    #[must_use]
    pub fn start(router: &Namespace, gateways: Vec<Namespace>, servers: Vec<Namespace>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let all = gateways.len();
        let states = gateways.into_iter().map(|namespace| follow(namespace, Arc::clone(&stop)));
        let (ready, threads): (Vec<_>, Vec<_>) = states.unzip();
        let of_router = router.clone();
        let probe = move || Some((1..=all).filter(|n| ready[n - 1].load(Ordering::Relaxed)).collect());
        let set =
            move |ready: &[usize]| set_vips(&of_router, ready).and_then(|()| set_servers(&servers, ready));
        Self::run(stop, threads, probe, set)
    }

    /// Follows the routes that FRR sets in the kernel of `router`.
    #[must_use]
    pub fn of_frr(router: &Namespace, gateways: usize) -> Self {
        let of_router = router.clone();
        let probe = move || next_hops(&of_router, gateways);
        Self::run(Arc::new(AtomicBool::new(false)), Vec::new(), probe, |_| Ok(()))
    }

    /// Sets the routes of GoBGP in the kernel of `router`.
    #[must_use]
    pub fn of_gobgp(router: &Namespace, gobgp: Arc<GoBgp>, gateways: usize) -> Self {
        let (router, known) = (router.clone(), Mutex::new(BTreeMap::new()));
        let probe = move || {
            let routes = gobgp.routes().ok()?;
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            if *known != routes {
                let copied = router.ip_batch(&changes(&known, &routes));
                copied.unwrap_or_else(|error| eprintln!("cannot copy the routes of GoBGP: {error:#}"));
                known.clone_from(&routes);
            }
            let hops = routes.get(&shared_vip()).cloned().unwrap_or_default();
            Some((1..=gateways).filter(|n| hops.contains(&gateway(*n).to_string())).collect())
        };
        Self::run(Arc::new(AtomicBool::new(false)), Vec::new(), probe, |_| Ok(()))
    }

    /// Starts the thread that calls `probe` for the gateways in use, and `set` when they have changed.
    fn run(
        stop: Arc<AtomicBool>,
        followers: Vec<JoinHandle<()>>,
        probe: impl Fn() -> Option<Vec<usize>> + Send + 'static,
        set: impl Fn(&[usize]) -> Result<()> + Send + 'static,
    ) -> Self {
        let used = Arc::new(Mutex::new(Vec::new()));
        let changes = Arc::new(AtomicU64::new(0));
        let (flag, known, counted) = (Arc::clone(&stop), Arc::clone(&used), Arc::clone(&changes));
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                let ready = probe().unwrap_or_default();
                let is_changed = *known.lock().unwrap_or_else(PoisonError::into_inner) != ready;
                if is_changed && !ready.is_empty() {
                    match set(&ready) {
                        Ok(()) => {
                            counted.fetch_add(1, Ordering::Relaxed);
                            *known.lock().unwrap_or_else(PoisonError::into_inner) = ready;
                        }
                        Err(error) => eprintln!("the router: {error:#}"),
                    }
                }
                thread::sleep(INTERVAL / 2);
            }
            for thread in followers {
                // The panic was printed to standard error.
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
            // The panic was printed to standard error.
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

/// The status of `/readyz` of the gateway in the calling thread's namespace.
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

/// The prefix of a VIP that all gateways announce.
fn shared_vip() -> String {
    format!("{}/32", SERVICES[0].vip().ip())
}

/// Lines of `ip` that change the routes `old` to `new`: the next hops of each prefix.
fn changes(old: &BTreeMap<String, Vec<String>>, new: &BTreeMap<String, Vec<String>>) -> String {
    let gone = old.keys().filter(|prefix| !new.contains_key(*prefix));
    let gone = gone.map(|prefix| format!("route del {prefix}\n"));
    let changed = new.iter().filter(|(prefix, hops)| old.get(*prefix) != Some(hops));
    let changed = changed.map(|(prefix, hops)| {
        let hops: String = hops.iter().map(|hop| format!(" nexthop via {hop}")).collect();
        format!("route replace {prefix}{hops}\n")
    });
    gone.chain(changed).collect()
}

/// The gateways to which the router has a route for a VIP that all announce.
fn next_hops(router: &Namespace, gateways: usize) -> Option<Vec<usize>> {
    let text = output_of(router.command("ip").args(["-o", "route", "show", &shared_vip()])).ok()?;
    let leads_to = |n: &usize| {
        let hop = gateway(*n).to_string();
        text.split_whitespace().zip(text.split_whitespace().skip(1)).any(|pair| pair == ("via", hop.as_str()))
    };
    Some((1..=gateways).filter(leads_to).collect())
}

/// Sets the router's routes over these gateways.
fn set_vips(router: &Namespace, ready: &[usize]) -> Result<()> {
    let hops = |gateways: &[usize]| -> String {
        gateways.iter().map(|n| format!(" nexthop via {}", gateway(*n))).collect()
    };
    let route = |service: &FleetService| {
        let over = if service.is_nat() { &ready[..1] } else { ready };
        format!("route replace {}/32{}", service.vip().ip(), hops(over))
    };
    router.ip_batch(&SERVICES.iter().map(route).collect::<Vec<String>>().join("\n"))
}

/// Sets the servers' default route, for replies in mode `nat`.
fn set_servers(servers: &[Namespace], ready: &[usize]) -> Result<()> {
    let default = gateway(ready[0]);
    servers.iter().try_for_each(|server| server.ip_batch(&format!("route replace default via {default}")))
}
