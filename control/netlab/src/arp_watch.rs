//! A station that sends ARP requests for VIPs all the time, and records who answers and when.
//!
//! It is a TAP device on the bridge of a lab. It requests each VIP every [`EVERY`], and records each reply and each
//! gratuitous announcement with its arrival time. From the records, tests compute when one gateway stopped answering
//! and the next one began, and whether two answered at once.

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

/// An ARP reply or announcement for a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpReply {
    /// When the frame arrived.
    pub at: Instant,
    /// The link address in the frame.
    pub mac: MacAddr,
    /// The VIP.
    pub vip: Ipv4Addr,
    /// Whether it answers a request, rather than announcing the VIP unasked.
    pub is_answer: bool,
}

/// The station. It stops when it is dropped.
#[derive(Debug)]
pub struct ArpWatch {
    replies: Arc<Mutex<Vec<ArpReply>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ArpWatch {
    /// Starts a station on this bridge of the namespace, which requests these VIPs.
    ///
    /// # Errors
    /// Without root or `/dev/net/tun`.
    pub fn start(namespace: &Namespace, bridge: &str, sender: Ipv4Addr, vips: &[Ipv4Addr]) -> Result<Self> {
        let name = "arp-watch";
        let tap = namespace.enter(|| {
            let tap = DeviceBuilder::new().name(name).layer(Layer::L2).mtu(1500).build_sync();
            let tap = tap.context("cannot create the TAP device of the station")?;
            tap.set_nonblocking(true)?;
            anyhow::Ok(tap)
        })?;
        namespace.ip_batch(&format!("link set {name} master {bridge} up"))?;
        let (replies, stop) = (Arc::<Mutex<Vec<ArpReply>>>::default(), Arc::<AtomicBool>::default());
        let (record, flag, vips) = (Arc::clone(&replies), Arc::clone(&stop), vips.to_vec());
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                for vip in &vips {
                    // A frame that the device does not accept is lost, as on any wire.
                    let _ = tap.send(&arp::request(STATION, sender, *vip, None, None));
                }
                receive(&tap, &vips, &record);
                thread::sleep(EVERY);
            }
        });
        Ok(Self { replies, stop, thread: Some(thread) })
    }

    /// All replies so far, in the order of arrival.
    #[must_use]
    pub fn replies(&self) -> Vec<ArpReply> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The link address in the last answer for a VIP after this time.
    #[must_use]
    pub fn owner(&self, vip: Ipv4Addr, after: Instant) -> Option<MacAddr> {
        let replies = self.replies();
        let mut answers = replies.iter().filter(|one| one.is_answer && one.vip == vip && one.at > after);
        answers.next_back().map(|one| one.mac)
    }

    /// The first answer for a VIP by another station than `except`, after this time.
    #[must_use]
    pub fn first_other(&self, vip: Ipv4Addr, except: MacAddr, after: Instant) -> Option<ArpReply> {
        let is_one = |one: &ArpReply| one.is_answer && one.vip == vip && one.at > after && one.mac != except;
        self.replies().into_iter().find(is_one)
    }

    /// How long a former owner still answered for a VIP after the next one had begun: from `begun` to its last answer
    /// so far; zero if there was none.
    #[must_use]
    pub fn overlap(&self, vip: Ipv4Addr, former: MacAddr, begun: Instant) -> Duration {
        let is_late =
            |one: &&ArpReply| one.is_answer && one.vip == vip && one.mac == former && one.at >= begun;
        self.replies().iter().rfind(is_late).map_or(Duration::ZERO, |one| one.at - begun)
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
fn receive(tap: &SyncDevice, vips: &[Ipv4Addr], replies: &Mutex<Vec<ArpReply>>) {
    let mut buffer = [0; 2048];
    while let Ok(length) = tap.recv(&mut buffer) {
        let at = Instant::now();
        let Ok(Parsed::Arp(packet)) = parse(&buffer[..length]) else { continue };
        let vip = packet.sender_ip;
        if !vips.contains(&vip) || packet.sender_mac == STATION {
            continue;
        }
        let is_answer = packet.operation == ArpOperation::Reply && packet.target_mac == STATION;
        let one = ArpReply { at, mac: packet.sender_mac, vip, is_answer };
        replies.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }
}
