//! The flow log: records of the begin and the end of flows, on their way from a worker to the thread that writes them.
//!
//! `accounts.rs` counts the packets of each logged flow and creates the records. A [`FlowLog`] is the queue of one
//! worker. While less than half of it is used, it accepts every record. After that, the records of one group of service
//! ports may use an eighth of it, so that a flood of one Service doesn't displace the records of others.
//!
//! Invariant: the worker never waits. Each record that doesn't fit is counted.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam::queue::ArrayQueue;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::FLOW_LOG_QUEUED_MAX;
use tidegate_spec::now::Now;
use tidegate_structures::counter::Counter;
use tidegate_wire::Addr;
use tidegate_wire::rewrite::Endpoint;

/// Groups of service ports, whose waiting records are counted. A group is the remainder of the index of a port.
const GROUPS: usize = 256;
/// The part of the queue that one group may use once half of it is used.
const GROUP_SHARE: usize = 8;

/// A record of the begin or the end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedFlow {
    /// What happened.
    pub event: FlowEvent,
    /// The service port.
    pub service: ServiceId,
    /// The client.
    pub client: Endpoint,
    /// The backend.
    pub backend: BackendId,
    /// The source of the packets that the backend receives, in NAT modes.
    pub source: Option<Endpoint>,
    /// The first packet that was counted.
    pub began: Now,
    /// The last packet that was counted, in whole milliseconds after the first.
    pub last: Now,
    /// Whether the first packet of the flow was counted. If not, the flow is older than the log.
    pub begin_seen: bool,
    /// The counts of packets from the client, and of replies.
    pub counts: [FlowCount; 2],
}

/// What was counted in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowCount {
    /// Packets that were forwarded.
    pub packets: u64,
    /// Their bytes, from the IP header on, as they arrived.
    pub bytes: u64,
    /// All TCP flags that were set in any of them.
    pub tcp_flags: u8,
}

/// What happened to a logged flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEvent {
    /// Its first packet was forwarded.
    Begin,
    /// It ended.
    End(EndReason),
}

tidegate_wire::named! {
    /// Why a flow ended.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum EndReason {
        /// Closed: by both sides, or in DSR modes by the client, whose packets alone are seen.
        Closed => "closed",
        /// Reset by one of the sides.
        Reset => "reset",
        /// Idle for its timeout.
        Idle => "idle",
        /// Evicted, because the flow table was full or its port was needed.
        Evicted => "evicted",
        /// Removed: its packets go to another backend now, or an operator or another gateway ended it.
        Removed => "removed",
        /// The gateway stopped. The flow itself may continue.
        Stopped => "stopped",
    }
}

tidegate_wire::named! {
    /// Why a flow or a record is missing in the log of a worker.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum FlowLogLoss {
        /// The queue was full, or the Service had used its share of it.
        QueueFull => "queue_full",
        /// A new flow got no entry in its table, so its packets can't be counted.
        NoEntry => "no_entry",
    }
}

/// The records of one worker that wait to be written.
#[derive(Debug)]
pub struct FlowLog {
    records: ArrayQueue<LoggedFlow>,
    /// The records in the queue, by group.
    waiting: [AtomicU32; GROUPS],
    lost: [Counter; FlowLogLoss::COUNT],
}

impl FlowLog {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self {
            records: ArrayQueue::new(FLOW_LOG_QUEUED_MAX),
            waiting: [const { AtomicU32::new(0) }; GROUPS],
            lost: Default::default(),
        }
    }

    /// Adds a record, or counts it as lost. Only the worker calls it.
    pub(super) fn push(&self, record: LoggedFlow) {
        let capacity = self.records.capacity();
        let share = if self.records.len() * 2 < capacity { capacity } else { capacity / GROUP_SHARE };
        let waiting = self.waiting_of(record.service);
        // Counted first, so that the reader never subtracts a record that isn't counted yet.
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        if before as usize >= share || self.records.push(record).is_err() {
            waiting.fetch_sub(1, Ordering::Relaxed);
            self.lose(FlowLogLoss::QueueFull);
        }
    }

    /// Counts a loss. Only the worker calls it.
    pub(super) fn lose(&self, why: FlowLogLoss) {
        self.lost[why as usize].add(1);
    }

    /// Takes the oldest record.
    #[must_use]
    pub fn pop(&self) -> Option<LoggedFlow> {
        let record = self.records.pop()?;
        self.waiting_of(record.service).fetch_sub(1, Ordering::Relaxed);
        Some(record)
    }

    /// Whether more than half of the queue is used.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.records.len() * 2 > self.records.capacity()
    }

    /// The losses for this reason.
    #[must_use]
    pub fn lost(&self, why: FlowLogLoss) -> u64 {
        self.lost[why as usize].value()
    }

    fn waiting_of(&self, service: ServiceId) -> &AtomicU32 {
        &self.waiting[service.index() % GROUPS]
    }
}

impl Default for FlowLog {
    fn default() -> Self {
        Self::new()
    }
}

/// A packet of a logged flow.
#[derive(Debug, Clone, Copy)]
pub struct LoggedPacket {
    /// Whether it comes from the backend.
    pub is_reply: bool,
    /// Whether it created the flow.
    pub is_first: bool,
    /// Whether it was forwarded. Others aren't counted.
    pub is_sent: bool,
    /// Its bytes from the IP header on.
    pub bytes: u32,
    /// Its TCP flags, 0 with other protocols.
    pub tcp_flags: u8,
    /// Whether it ends an SCTP association.
    pub ends_association: bool,
}

/// The client of a flow, from the parts of its key.
pub(super) fn endpoint(addr: Addr, tag: u32) -> Endpoint {
    Endpoint { addr, port: (tag >> 16) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(service: usize) -> LoggedFlow {
        LoggedFlow {
            event: FlowEvent::Begin,
            service: ServiceId::new(service, 0),
            client: Endpoint { addr: Addr::v4([198, 51, 100, 7]), port: 1 },
            backend: BackendId::new(1, 0),
            source: None,
            began: Now(0),
            last: Now(0),
            begin_seen: true,
            counts: [FlowCount::default(); 2],
        }
    }

    #[test]
    fn a_flood_of_one_service_leaves_capacity_for_the_records_of_others() {
        let log = FlowLog::new();
        (0..2 * FLOW_LOG_QUEUED_MAX).for_each(|_| log.push(record(1)));
        assert!(log.is_half_full() || log.records.len() == FLOW_LOG_QUEUED_MAX / 2);
        assert_eq!(log.lost(FlowLogLoss::QueueFull), (3 * FLOW_LOG_QUEUED_MAX / 2) as u64);
        (0..FLOW_LOG_QUEUED_MAX / GROUP_SHARE).for_each(|_| log.push(record(2)));
        assert_eq!(log.lost(FlowLogLoss::QueueFull), (3 * FLOW_LOG_QUEUED_MAX / 2) as u64, "2 loses nothing");
        let mut counts = [0; 3];
        while let Some(record) = log.pop() {
            counts[record.service.index()] += 1;
        }
        assert_eq!(counts, [0, FLOW_LOG_QUEUED_MAX / 2, FLOW_LOG_QUEUED_MAX / GROUP_SHARE]);
        assert!(log.waiting.iter().all(|group| group.load(Ordering::Relaxed) == 0));
    }
}
