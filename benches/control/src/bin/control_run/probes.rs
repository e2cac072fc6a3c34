//! Changes seen from outside: the first packet that a worker sends to a new endpoint.
//!
//! Some Services have one endpoint, and a change replaces it by another. After the write, a packet of one UDP flow goes
//! to such a Service about every 200 µs until one arrives at the new endpoint. UDP flows move immediately from a
//! removed backend. The measured time is from the acknowledged write to the arrival of that packet, including the
//! packet's own latency.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tidegate_control_bench::cluster::{self, PORT, TARGET_PORT};
use tidegate_control_bench::world::Size;
use tidegate_netlab::{Lab, addresses as plan_of_lab};

use crate::figures::Quantiles;
use crate::packets::backend;
use crate::plan::SINGLES;

const STEP: Duration = Duration::from_micros(150);
/// A change that was not seen within this time counts as unseen.
const UNSEEN: Duration = Duration::from_secs(5);

/// A thread that watches for changes.
pub(crate) struct Probes {
    events: Sender<Event>,
    thread: JoinHandle<Seen>,
}

enum Event {
    /// Change n replaces the endpoint of Service k by this one.
    Expect(usize, usize, bool),
    /// The change was sent and answered at these times.
    Written(usize, Instant, Instant),
}

/// A change that is being written.
pub(crate) struct Waiting(usize, Sender<Event>);

impl Waiting {
    /// Records that the API server has accepted the change.
    pub(crate) fn written(self, sent: Instant, answered: Instant) {
        // The thread outlives all senders, so the send succeeds.
        let _ = self.1.send(Event::Written(self.0, sent, answered));
    }
}

/// The changes that were seen, and the times.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    written: BTreeMap<usize, (Instant, Instant)>,
    arrived: BTreeMap<usize, Instant>,
    unseen: usize,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |pick: fn(&(Instant, Instant)) -> Instant| {
            let both = self.arrived.iter().filter_map(|(n, at)| Some((at, self.written.get(n)?)));
            Quantiles::of(both.map(|(at, written)| at.saturating_duration_since(pick(written))).collect())
        };
        writeln!(f, "{}", times(|w| w.1).row("from the write acknowledged to a packet at the new endpoint"))?;
        writeln!(f, "{}", times(|w| w.0).row("from the write sent to a packet at the new endpoint"))?;
        if self.unseen > 0 {
            writeln!(f, "| never seen | {} | | | | | |", self.unseen)?;
        }
        Ok(())
    }
}

impl Probes {
    /// Starts the thread. `vip` returns the addresses of Services.
    ///
    /// # Errors
    /// A socket cannot be created.
    pub(crate) fn start(lab: &Lab, size: Size, vip: &dyn Fn(usize) -> Option<IpAddr>) -> Result<Self> {
        let vips = (0..SINGLES)
            .map(|k| vip(cluster::single_service(size, k)).context("a Service without an address"));
        let vips: Vec<SocketAddr> = vips.map(|ip| Ok(SocketAddr::new(ip?, PORT))).collect::<Result<_>>()?;
        let (client, endpoints) = lab.client().enter(|| {
            let from = plan_of_lab::client(plan_of_lab::Family::V4, 5);
            let client = UdpSocket::bind(SocketAddr::new(from, 20_000))?;
            let endpoint = |k, other| {
                let socket = backend(SocketAddr::new(cluster::single(k, other), TARGET_PORT))?;
                socket.set_nonblocking(true)?;
                std::io::Result::Ok(socket)
            };
            let endpoints = (0..SINGLES).map(|k| Ok([endpoint(k, false)?, endpoint(k, true)?]));
            let endpoints = endpoints.collect::<std::io::Result<Vec<_>>>()?;
            std::io::Result::Ok((client, endpoints))
        })?;
        let (events, received) = mpsc::channel();
        let thread = std::thread::spawn(move || watch_packets(&client, &vips, &endpoints, &received));
        Ok(Self { events, thread })
    }

    /// Announces change n, which is about to replace the endpoint of Service k by this one.
    pub(crate) fn expect(&self, n: usize, k: usize, other: bool) -> Waiting {
        self.events.send(Event::Expect(n, k, other)).expect("the thread listens as long as this lives");
        Waiting(n, self.events.clone())
    }

    /// Waits for the changes that have not been seen yet.
    pub(crate) fn stop(self) -> Seen {
        drop(self.events);
        self.thread.join().expect("it does not panic")
    }
}

fn watch_packets(
    client: &UdpSocket,
    vips: &[SocketAddr],
    endpoints: &[[UdpSocket; 2]],
    received: &Receiver<Event>,
) -> Seen {
    let mut seen = Seen::default();
    let mut pending: Vec<(usize, usize, bool, Instant)> = Vec::new();
    let mut is_over = false;
    loop {
        loop {
            let event = if pending.is_empty() && !is_over {
                received
                    .recv_timeout(Duration::from_millis(100))
                    .map_err(|error| error == RecvTimeoutError::Disconnected)
            } else {
                received.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            };
            match event {
                Ok(Event::Expect(n, k, other)) => pending.push((n, k, other, Instant::now())),
                Ok(Event::Written(n, sent, answered)) => {
                    seen.written.insert(n, (sent, answered));
                }
                Err(ended) => {
                    is_over |= ended;
                    break;
                }
            }
        }
        if is_over && pending.is_empty() {
            return seen;
        }
        pending.retain(|&(n, k, other, since)| {
            let mark = format!("change {n}").into_bytes();
            // A lost packet is sent again.
            let _ = client.send_to(&mark, vips[k]);
            let (mut bytes, mut has_come) = ([0; 64], false);
            while let Ok(length) = endpoints[k][usize::from(other)].recv(&mut bytes) {
                has_come |= bytes[..length] == *mark;
            }
            if has_come {
                seen.arrived.insert(n, Instant::now());
            }
            let is_given_up = !has_come && since.elapsed() > UNSEEN;
            seen.unseen += usize::from(is_given_up);
            !has_come && !is_given_up
        });
        if !pending.is_empty() {
            std::thread::sleep(STEP);
        }
    }
}
