//! The packets that operators watch with `tidegate trace` and `tidegate capture`.
//!
//! A client starts a watch, fetches its packets repeatedly, and ends it. The workers copy the packets that match
//! ([`tidegate_dataplane::worker::watch`]). This file converts names to ids and back.
//!
//! Invariant: a watch whose client is gone ends after [`IDLE_MAX`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_admin_api::{
    AdminError, SentFrame, UnwatchAnswer, VerdictName, WatchAnswer, WatchQuery, WatchedAnswer, WatchedFrame,
    WatchedRow,
};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_dataplane::worker::watch::{
    PacketWatch, VerdictKind, VerdictReason, WATCHES_MAX, WatchFilter, WatchedPacket,
};
use tidegate_pipeline::pipeline::FlowNote;
use tidegate_snapshot::Snapshot;
use tidegate_spec::ForwardingMode;
use tidegate_spec::verdict::{DropReason, PuntReason, TransmitReason, Verdict};
use tidegate_wire::{Addr, proto};
use tokio::time::Instant;

use super::flows::{backend_ids, service_ids};
use super::packet_detail;

/// Bytes of packets that a watch buffers per worker.
const MEMORY: usize = 4 << 20;
/// The maximum number of packets that a watch buffers per worker.
const RECORDS_MAX: usize = 4_096;
/// The maximum number of packets of each worker in one answer.
const ANSWER_MAX: usize = 512;
/// How long a request waits for a packet.
const WAIT: Duration = Duration::from_secs(1);
/// How often a waiting request checks for packets.
const POLL: Duration = Duration::from_millis(10);
/// A watch ends if its packets are not requested for this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The watches.
#[derive(Debug, Default)]
pub(super) struct Watches {
    active: Mutex<Active>,
}

#[derive(Debug, Default)]
struct Active {
    last_id: u64,
    by_id: BTreeMap<u64, One>,
}

#[derive(Debug)]
struct One {
    watch: Arc<PacketWatch>,
    requested: Instant,
}

impl Watches {
    /// Starts a watch.
    ///
    /// # Errors
    /// A name is not known, there are too many watches, or a worker does not accept it.
    pub(super) fn begin(
        self: &Arc<Self>,
        dataplane: &Dataplane,
        query: &WatchQuery,
    ) -> Result<WatchAnswer, AdminError> {
        let interfaces: Vec<String> = dataplane.interfaces().iter().map(|one| one.name.clone()).collect();
        let filter = dataplane.with_snapshot(|snapshot| filter(snapshot, &interfaces, query))?;
        let snap = query.snap.0;
        let records = (MEMORY / (2 * snap)).clamp(64, RECORDS_MAX);
        let mut active = self.active();
        active.forget_idle();
        if active.by_id.len() >= WATCHES_MAX {
            return Err(AdminError::Unavailable(format!(
                "{WATCHES_MAX} traces and captures are already running; accepted: a new one when \
                 a running one has ended"
            )));
        }
        let watch = dataplane.watch(&filter, records, snap).map_err(|worker| {
            AdminError::Unavailable(format!("worker {worker} has too many requests waiting; try again"))
        })?;
        active.last_id += 1;
        let id = active.last_id;
        active.by_id.insert(id, One { watch: Arc::new(watch), requested: Instant::now() });
        if active.by_id.len() == 1 {
            tokio::spawn(forget_idle(Arc::clone(self)));
        }
        Ok(WatchAnswer { id, interfaces })
    }

    /// The packets of a watch since the last call.
    ///
    /// # Errors
    /// There is no such watch.
    pub(super) async fn take(&self, dataplane: &Dataplane, id: u64) -> Result<WatchedAnswer, AdminError> {
        let watch = self.requested(id)?;
        let until = Instant::now() + WAIT;
        loop {
            let answer = answer(dataplane, &watch);
            if !answer.packets.is_empty() || Instant::now() >= until {
                self.requested(id)?;
                return Ok(answer);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// There is no such watch.
    pub(super) fn end(&self, id: u64) -> Result<UnwatchAnswer, AdminError> {
        let one = self.active().by_id.remove(&id).ok_or_else(|| unknown(id))?;
        Ok(UnwatchAnswer { lost: one.watch.lost() })
    }

    fn requested(&self, id: u64) -> Result<Arc<PacketWatch>, AdminError> {
        let mut active = self.active();
        let one = active.by_id.get_mut(&id).ok_or_else(|| unknown(id))?;
        one.requested = Instant::now();
        Ok(Arc::clone(&one.watch))
    }

    fn active(&self) -> MutexGuard<'_, Active> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Active {
    fn forget_idle(&mut self) {
        self.by_id.retain(|_, one| one.requested.elapsed() < IDLE_MAX);
    }
}

/// Ends idle watches until there are none.
async fn forget_idle(watches: Arc<Watches>) {
    loop {
        tokio::time::sleep(IDLE_MAX / 4).await;
        let mut active = watches.active();
        active.forget_idle();
        if active.by_id.is_empty() {
            return;
        }
    }
}

fn unknown(id: u64) -> AdminError {
    AdminError::NotFound(format!(
        "there is no watch {id}: it has ended, or its packets were not requested for {} s",
        IDLE_MAX.as_secs()
    ))
}

/// Converts the names to ids.
fn filter(snapshot: &Snapshot, interfaces: &[String], query: &WatchQuery) -> Result<WatchFilter, AdminError> {
    let interface = query.interface.as_ref().map(|name| {
        let at = interfaces.iter().position(|one| one == name);
        at.and_then(|at| u8::try_from(at).ok()).ok_or_else(|| {
            let accepted = interfaces.join(", ");
            AdminError::NotFound(format!("interface {name:?} is not known; accepted: {accepted}"))
        })
    });
    Ok(WatchFilter {
        host: query.host.map(Into::into),
        port: query.port,
        protocol: query.protocol.map(|protocol| protocol.0.number()),
        interface: interface.transpose()?,
        services: query.service.as_ref().map(|name| service_ids(snapshot, name)).transpose()?,
        backends: query.backend.map(|name| backend_ids(snapshot, name)).transpose()?,
        verdict: query.verdict.map(|verdict| match verdict {
            VerdictName::Transmit => VerdictKind::Transmit,
            VerdictName::Punt => VerdictKind::Punt,
            VerdictName::Drop => VerdictKind::Drop,
        }),
        reasons: query.reason.as_deref().map(reasons).transpose()?,
    })
}

/// The reasons with this name.
fn reasons(name: &str) -> Result<Arc<[VerdictReason]>, AdminError> {
    let transmit = TransmitReason::ALL.iter().map(|&why| (why.as_str(), VerdictReason::Transmit(why)));
    let punt = PuntReason::ALL.iter().map(|&why| (why.as_str(), VerdictReason::Punt(why)));
    let drop = DropReason::all().map(|why| (why.as_str(), VerdictReason::Drop(why)));
    let found: Arc<[VerdictReason]> =
        transmit.chain(punt).chain(drop).filter(|(one, _)| *one == name).map(|(_, why)| why).collect();
    if found.is_empty() {
        return Err(AdminError::BadRequest(format!(
            "reason: {name:?} is not known; accepted: the reasons that `tidegate drops` and `replay --json` show"
        )));
    }
    Ok(found)
}

fn answer(dataplane: &Dataplane, watch: &PacketWatch) -> WatchedAnswer {
    // The workers' clock counts from their start.
    let (wall, clock) = (SystemTime::now(), dataplane.now());
    let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let wall = u64::try_from(wall).unwrap_or(u64::MAX);
    let interfaces = dataplane.interfaces();
    let name = |n: u8| interfaces.get(usize::from(n)).map_or_else(String::new, |one| one.name.clone());
    dataplane.with_snapshot(|snapshot| {
        let mut packets = Vec::new();
        watch.take(ANSWER_MAX, |packet| {
            let timestamp_ns = wall.saturating_sub(clock.0.saturating_sub(packet.at.0));
            packets.push(row(snapshot, name, packet, timestamp_ns));
        });
        WatchedAnswer { packets, lost: watch.lost() }
    })
}

fn row(
    snapshot: &Snapshot,
    name: impl Fn(u8) -> String,
    packet: &WatchedPacket,
    timestamp_ns: u64,
) -> WatchedRow {
    let service = packet.note.service.and_then(|id| snapshot.service_info(id));
    let backend = packet.note.backend.and_then(|id| snapshot.backend(id));
    let (verdict, reason, sent) = match packet.verdict {
        Verdict::Transmit { interface, why } => {
            (VerdictName::Transmit.as_str(), why.as_str(), Some(interface))
        }
        Verdict::Punt(why) => (VerdictName::Punt.as_str(), why.as_str(), None),
        Verdict::Drop(why) => (VerdictName::Drop.as_str(), why.as_str(), None),
        Verdict::HandOver(_) => ("hand-over", "hand_over", None),
    };
    let (detail, checksum) = packet_detail::detail(&packet.received, packet.received_len);
    let (source_port, destination_port) = packet.endpoints.and_then(|ends| ends.ports).unzip();
    WatchedRow {
        timestamp_ns,
        worker: packet.worker,
        interface: name(packet.interface),
        protocol: packet.endpoints.map(|ends| ends.protocol.map_or_else(|| "ARP".to_owned(), protocol)),
        source: packet.endpoints.map(|ends| end(ends.source, source_port)),
        destination: packet.endpoints.map(|ends| end(ends.destination, destination_port)),
        detail,
        checksum: checksum.map(str::to_owned),
        verdict: verdict.to_owned(),
        reason: reason.to_owned(),
        waits: packet.waits,
        service: service.map(tidegate_snapshot::service::ServiceInfo::label),
        vip: service.map(|service| service.key.vip),
        backend: backend.map(|backend| SocketAddr::new(backend.address.ip(), backend.port)),
        mode: service.map(|service| ForwardingMode::as_str(service.mode).to_owned()),
        flow: match packet.note.flow {
            FlowNote::None => "none",
            FlowNote::New => "new",
            FlowNote::Known => "known",
        }
        .to_owned(),
        received: frame(&packet.received, packet.received_len),
        sent: sent.map(|interface| SentFrame {
            interface: name(interface),
            frame: frame(&packet.sent, packet.sent_len),
        }),
    }
}

/// An address, with its port if it has one.
fn end(address: Addr, port: Option<u16>) -> String {
    match port {
        Some(port) => SocketAddr::new(address.ip(), port).to_string(),
        None => address.ip().to_string(),
    }
}

fn protocol(number: u8) -> String {
    match number {
        proto::TCP => "TCP".to_owned(),
        proto::UDP => "UDP".to_owned(),
        proto::SCTP => "SCTP".to_owned(),
        proto::ICMP => "ICMP".to_owned(),
        proto::ICMPV6 => "ICMPv6".to_owned(),
        other => other.to_string(),
    }
}

fn frame(bytes: &[u8], length: usize) -> WatchedFrame {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
    }
    WatchedFrame { length, hex }
}
