//! The packets and bytes of each logged flow of one table.
//!
//! The account of a flow is at the index of the client's entry and moves with it. `logging.rs` decides what is counted
//! and when an account ends. Accounts take memory only once the log is enabled, and pages of it only where logged flows
//! are.
//!
//! Invariant: nothing is allocated after the log is enabled.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_spec::limits::FLOW_LOG_CLOSING_MAX;
use tidegate_spec::now::Now;
use tidegate_wire::tcp::flags;

use super::flow_log::{EndReason, FlowCount, FlowLog, LoggedPacket};
use super::flow_traffic::FlowTraffic;
use super::key::PackedKey;

/// The accounts of one table.
#[derive(Debug, Default)]
pub(super) struct Accounts<const A: usize> {
    pub(super) log: Option<Arc<FlowLog>>,
    /// By the index of the client's entry; empty without a log.
    words: Vec<[u64; 6]>,
    /// The flows that were closed or reset, with the time after which that is checked, oldest first.
    pub(super) closing: VecDeque<(PackedKey<A>, u32)>,
}

impl<const A: usize> Accounts<A> {
    pub(super) fn new() -> Self {
        Self { log: None, words: Vec::new(), closing: VecDeque::new() }
    }

    /// Enables the accounts of a table with this many entries.
    pub(super) fn enable(&mut self, log: &Arc<FlowLog>, entries: usize) {
        // The system zeroes the memory when it is used.
        self.words = vec![[0; 6]; entries];
        self.closing = VecDeque::with_capacity(FLOW_LOG_CLOSING_MAX);
        self.log = Some(Arc::clone(log));
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// The account at an index, which may not be open.
    pub(super) fn get(&self, index: usize) -> Account {
        self.words.get(index).map(Account::read).unwrap_or_default()
    }

    pub(super) fn set(&mut self, index: usize, account: &Account) {
        self.words[index] = account.words();
    }

    /// Removes and returns the account at an index, if it is open.
    pub(super) fn take(&mut self, index: usize) -> Option<Account> {
        let words = self.words.get_mut(index)?;
        Some(Account::read(&std::mem::take(words))).filter(Account::is_open)
    }

    /// Moves an account with its entry.
    #[inline]
    pub(super) fn relocate(&mut self, from: usize, to: usize) {
        if self.is_on() {
            self.words[to] = std::mem::take(&mut self.words[from]);
        }
    }
}

/// The counts of a flow: 48 bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    /// The time of the first packet, in nanoseconds.
    began: u64,
    pub(super) counts: [FlowCount; 2],
    /// From the first to the last packet, at most 49 days.
    duration_ms: u32,
    state: u8,
}

/// The account exists.
const OPEN: u8 = 1;
/// Its first packet was the first of the flow.
const BEGIN_SEEN: u8 = 2;
/// An SCTP association ended.
const ASSOCIATION_ENDED: u8 = 4;
/// It is among the closing ones.
const CLOSING: u8 = 8;

impl Account {
    /// The account of a flow whose first counted packet arrives at `now`. `begin_seen`: it is the first of the flow.
    pub(super) fn new(begin_seen: bool, now: Now) -> Self {
        let state = OPEN | if begin_seen { BEGIN_SEEN } else { 0 };
        Self { began: now.0, state, ..Self::default() }
    }

    fn read(words: &[u64; 6]) -> Self {
        let &[began, first, second, bytes, reply_bytes, rest] = words;
        let [duration @ .., flags, reply_flags, state, _] = rest.to_le_bytes();
        let count = |packets, bytes, tcp_flags| FlowCount { packets, bytes, tcp_flags };
        let counts = [count(first, bytes, flags), count(second, reply_bytes, reply_flags)];
        Self { began, counts, duration_ms: u32::from_le_bytes(duration), state }
    }

    fn words(&self) -> [u64; 6] {
        let [request, reply] = &self.counts;
        let [a, b, c, d] = self.duration_ms.to_le_bytes();
        let rest = u64::from_le_bytes([a, b, c, d, request.tcp_flags, reply.tcp_flags, self.state, 0]);
        [self.began, request.packets, reply.packets, request.bytes, reply.bytes, rest]
    }

    pub(super) fn is_open(&self) -> bool {
        self.state & OPEN != 0
    }

    pub(super) fn begin_seen(&self) -> bool {
        self.state & BEGIN_SEEN != 0
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state & CLOSING != 0
    }

    pub(super) fn set_closing(&mut self) {
        self.state |= CLOSING;
    }

    /// Counts a packet.
    pub(super) fn add(&mut self, packet: &LoggedPacket, now: Now) {
        let count = &mut self.counts[usize::from(packet.is_reply)];
        count.packets += 1;
        count.bytes += u64::from(packet.bytes);
        count.tcp_flags |= packet.tcp_flags;
        let duration_ms = now.0.saturating_sub(self.began) / 1_000_000;
        self.duration_ms = u32::try_from(duration_ms).unwrap_or(u32::MAX);
        if packet.ends_association {
            self.state |= ASSOCIATION_ENDED;
        }
    }

    /// What was counted, if it is open.
    pub(super) fn traffic(&self) -> Option<FlowTraffic> {
        let [request, reply] = &self.counts;
        self.is_open().then(|| FlowTraffic {
            packets: request.packets + reply.packets,
            bytes: request.bytes + reply.bytes,
        })
    }

    /// The time of the first packet.
    pub(super) fn began(&self) -> Now {
        Now(self.began)
    }

    /// The time of the last packet.
    pub(super) fn last(&self) -> Now {
        Now(self.began + u64::from(self.duration_ms) * 1_000_000)
    }

    /// Whether the flow was closed or reset; `None` if neither. Without pairs, only the client's packets are seen.
    pub(super) fn closed(&self, is_paired: bool) -> Option<EndReason> {
        let [client, server] = self.counts.map(|count| count.tcp_flags);
        if (client | server) & flags::RST != 0 {
            Some(EndReason::Reset)
        } else if client & flags::FIN != 0 && (server & flags::FIN != 0 || !is_paired)
            || self.state & ASSOCIATION_ENDED != 0
        {
            Some(EndReason::Closed)
        } else {
            None
        }
    }
}
