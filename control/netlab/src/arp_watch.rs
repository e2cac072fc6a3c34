//! A station that asks for the link address of VIPs all the time, and records who answers and when.
//!
//! It is a TAP device on the bridge of a lab. It sends an ARP request for each VIP every [`EVERY`], and records each reply
//! and each gratuitous announcement with its arrival. So tests can say when one gateway stopped answering and the next
//! one began, and whether two answered at once.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tidegate_wire::arp::{self, ArpOperation};
use tidegate_wire::{MacAddr, Parsed, parse};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::Namespace;

/// The pause between two requests for one VIP.
pub const EVERY: Duration = Duration::from_millis(10);
/// The link address of the station.
const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0xa, 0xa]);

/// What a gateway said about a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// When the frame arrived.
    pub at: Instant,
    /// The link address that it gave.
    pub mac: MacAddr,
    /// The VIP.
    pub vip: Ipv4Addr,
    /// Whether it answered a request, or announced the VIP on its own.
    pub is_answer: bool,
}

/// The station. It stops when it is dropped.
#[derive(Debug)]
pub struct ArpWatch {
    said: Arc<Mutex<Vec<Said>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ArpWatch {
    /// Begins to ask for these VIPs, on this bridge of the namespace.
    ///
    /// # Errors
    /// Without root or `/dev/net/tun`.
    pub fn start(namespace: &Namespace, bridge: &str, asker: Ipv4Addr, vips: &[Ipv4Addr]) -> Result<Self> {
        let name = "arp-watch";
        let tap = namespace.enter(|| {
            let tap = DeviceBuilder::new().name(name).layer(Layer::L2).mtu(1500).build_sync();
            let tap = tap.context("TAP device of the station")?;
            tap.set_nonblocking(true)?;
            anyhow::Ok(tap)
        })?;
        namespace.ip_batch(&format!("link set {name} master {bridge} up"))?;
        let (said, stop) = (Arc::<Mutex<Vec<Said>>>::default(), Arc::<AtomicBool>::default());
        let (record, flag, vips) = (Arc::clone(&said), Arc::clone(&stop), vips.to_vec());
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                for vip in &vips {
                    // A frame that the device does not take is lost, as on any wire.
                    let _ = tap.send(&arp::request(STATION, asker, *vip, None, None));
                }
                hear(&tap, &vips, &record);
                thread::sleep(EVERY);
            }
        });
        Ok(Self { said, stop, thread: Some(thread) })
    }

    /// Everything that was said so far, in the order of arrival.
    #[must_use]
    pub fn said(&self) -> Vec<Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The link address that answered last for a VIP after this moment.
    #[must_use]
    pub fn owner(&self, vip: Ipv4Addr, after: Instant) -> Option<MacAddr> {
        let said = self.said();
        let mut answers = said.iter().filter(|one| one.is_answer && one.vip == vip && one.at > after);
        answers.next_back().map(|one| one.mac)
    }

    /// The first answer for a VIP by another station than `except`, after this moment.
    #[must_use]
    pub fn first_other(&self, vip: Ipv4Addr, except: MacAddr, after: Instant) -> Option<Said> {
        let is_one = |one: &Said| one.is_answer && one.vip == vip && one.at > after && one.mac != except;
        self.said().into_iter().find(is_one)
    }

    /// How long a former owner still answered for a VIP after the next one had begun: from `begun` to its last answer
    /// until now; zero if there was none.
    #[must_use]
    pub fn overlap(&self, vip: Ipv4Addr, former: MacAddr, begun: Instant) -> Duration {
        let is_late = |one: &&Said| one.is_answer && one.vip == vip && one.mac == former && one.at >= begun;
        self.said().iter().rfind(is_late).map_or(Duration::ZERO, |one| one.at - begun)
    }
}

impl Drop for ArpWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic was printed to standard error.
            let _ = thread.join();
        }
    }
}

/// Records the frames that have arrived.
fn hear(tap: &SyncDevice, vips: &[Ipv4Addr], said: &Mutex<Vec<Said>>) {
    let mut buffer = [0; 2048];
    while let Ok(length) = tap.recv(&mut buffer) {
        let at = Instant::now();
        let Ok(Parsed::Arp(packet)) = parse(&buffer[..length]) else { continue };
        let vip = packet.sender_ip;
        if !vips.contains(&vip) || packet.sender_mac == STATION {
            continue;
        }
        let is_answer = packet.operation == ArpOperation::Reply && packet.target_mac == STATION;
        let one = Said { at, mac: packet.sender_mac, vip, is_answer };
        said.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }
}
