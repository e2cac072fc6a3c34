//! Packets to all Services while something else is measured, each counted in and out.
//!
//! A thread offers them to a port in memory at a rate, and takes what the worker sends. A queue as long as a NIC's
//! (4,096 frames) stands between: a worker that stops for longer than that lasts loses packets, and that is counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_core::snapshot::{Protocol, ServiceKey};
use tidegate_core::testing::builder::Builder;
use tidegate_core::wire::MacAddr;
use tidegate_core::wire::tcp::flags;
use tidegate_dataplane::drivers::memory::MemoryPort;

use crate::world::GATEWAY_MAC;

/// Clients times Services are flows: these stay within the worker's table.
const FLOWS: usize = 20_000;
const TICK: Duration = Duration::from_millis(1);
/// After the last packet the worker has this long to send the rest.
const LAST: Duration = Duration::from_secs(2);

/// What became of the packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// That the queue took.
    pub offered: u64,
    /// That found it full: lost.
    pub lost: u64,
    /// That came out.
    pub forwarded: u64,
}

/// The thread. See the module.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counts>,
}

impl Traffic {
    /// Starts `rate` packets a second.
    #[must_use]
    pub fn start(wire: MemoryPort, to: Vec<ServiceKey>, rate: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Self { stop, thread: std::thread::spawn(move || run(&wire, &to, rate, &told)) }
    }

    /// Stops, and waits for what is still under way.
    ///
    /// # Panics
    /// If the thread did.
    #[must_use]
    pub fn stop(self) -> Counts {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the traffic does not panic")
    }
}

fn run(wire: &MemoryPort, to: &[ServiceKey], rate: u64, stop: &AtomicBool) -> Counts {
    let frames: Vec<Vec<u8>> =
        (0..FLOWS).map(|n| frame(n, to[n.wrapping_mul(0x9e37_79b1) % to.len()])).collect();
    let (mut counts, mut frames, began) = (Counts::default(), frames.iter().cycle(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        while counts.offered + counts.lost < due {
            let taken = frames.next().is_some_and(|frame| wire.offer(0, frame));
            *(if taken { &mut counts.offered } else { &mut counts.lost }) += 1;
            counts.forwarded += u64::from(wire.take(0).is_some());
        }
        while wire.take(0).is_some() {
            counts.forwarded += 1;
        }
        std::thread::sleep(TICK);
    }
    let latest = Instant::now() + LAST;
    while counts.forwarded < counts.offered && Instant::now() < latest {
        counts.forwarded += u64::from(wire.take(0).is_some());
    }
    counts
}

/// The first packet of a flow; sent again and again, it is one that the worker knows.
fn frame(n: usize, to: ServiceKey) -> Vec<u8> {
    let from = SocketAddr::from(([198, 18, (n >> 8) as u8, n as u8], 1024 + (n % 50_000) as u16));
    let vip = SocketAddr::new(to.vip, to.port);
    let packet = match to.protocol {
        Protocol::Udp => Builder::udp(from, vip),
        _ => Builder::tcp(from, vip).flags(flags::SYN),
    };
    packet.mac(MacAddr([2, 0, 0, 0, 0, 0xfe]), GATEWAY_MAC).build()
}
