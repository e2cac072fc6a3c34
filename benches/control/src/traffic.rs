//! Packets to all Services during a measurement, each counted in and out.
//!
//! A thread offers packets to a port in memory at a fixed rate, and receives the packets that the worker sends. A queue
//! as long as a NIC's (4,096 frames) is in between. If a worker stops for longer than the queue lasts, packets are lost
//! and counted as such.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_dataplane::drivers::memory::MemoryPort;
use tidegate_pipeline::testing::builder::Builder;
use tidegate_spec::{Protocol, ServiceKey};
use tidegate_wire::MacAddr;
use tidegate_wire::tcp::flags;

use crate::world::GATEWAY_MAC;

/// The limit of clients times Services, so that the flows fit in the worker's table.
const FLOWS: usize = 20_000;
const TICK: Duration = Duration::from_millis(1);
/// The time that the worker has to send the rest after the last packet.
const LAST: Duration = Duration::from_secs(2);

/// The packet counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the queue accepted.
    pub offered: u64,
    /// Packets that were lost because the queue was full.
    pub lost: u64,
    /// Packets that the worker sent.
    pub forwarded: u64,
}

/// The thread that sends and receives packets.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counts>,
}

impl Traffic {
    /// Starts sending `rate` packets a second.
    #[must_use]
    pub fn start(wire: MemoryPort, to: Vec<ServiceKey>, rate: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        Self { stop, thread: std::thread::spawn(move || run(&wire, &to, rate, &flag)) }
    }

    /// Stops, and waits for packets that are still in flight.
    ///
    /// # Panics
    /// If the thread panicked.
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

/// The first packet of a flow. When it is sent again, the worker already knows the flow.
fn frame(n: usize, to: ServiceKey) -> Vec<u8> {
    let from = SocketAddr::from(([198, 18, (n >> 8) as u8, n as u8], 1024 + (n % 50_000) as u16));
    let vip = SocketAddr::new(to.vip, to.port);
    let packet = match to.protocol {
        Protocol::Udp => Builder::udp(from, vip),
        _ => Builder::tcp(from, vip).flags(flags::SYN),
    };
    packet.mac(MacAddr([2, 0, 0, 0, 0, 0xfe]), GATEWAY_MAC).build()
}
