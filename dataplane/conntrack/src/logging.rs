//! Counts packets in the accounts of logged flows (`accounts.rs`), and reports the begin and end of flows to the log
//! ([`FlowLog`]).
//!
//! An account is closed when the entry of its flow is removed, so every account has an end, and the bounds and fair
//! shares of the flow table are those of the accounts. The entry of a closed TCP connection stays in its table for a
//! while; its account is closed earlier, once it has had no packet for [`FLOW_LOG_CLOSED_MS`].
//!
//! Invariant: each counted packet is in exactly one account, and each account is reported once.

use std::sync::Arc;

use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::{FLOW_LOG_CLOSED_MS, FLOW_LOG_CLOSING_MAX};
use tidegate_spec::now::Now;

use super::accounts::Account;
use super::dsr::by_family;
use super::eviction_reason::EvictionReason;
use super::flow_log::{EndReason, FlowEvent, FlowLog, FlowLogLoss, LoggedFlow, LoggedPacket, endpoint};
use super::key::{FlowHash, FlowKey, PackedKey, addr_of};
use super::table::{Position, Table};
use super::walk::WalkStep;
use super::{FlowTables, each_table};

impl FlowTables {
    /// Reports the begin and the end of logged flows to this log.
    pub fn log_to(&mut self, log: &Arc<FlowLog>) {
        each_table!(self[&mut], |table| table.log_to(log));
    }

    /// The log, if there is one.
    #[must_use]
    pub fn log(&self) -> Option<&Arc<FlowLog>> {
        self.dsr.v4.accounts.log.as_ref()
    }

    /// Whether there is a log.
    #[inline]
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.dsr.v4.accounts.is_on()
    }

    /// Counts a packet in the account of its flow. `key` and `hash` are those of the client's side. A flow without an
    /// account gets one.
    pub fn count_logged(
        &mut self,
        is_dsr: bool,
        key: &FlowKey,
        hash: FlowHash,
        packet: &LoggedPacket,
        now: Now,
    ) {
        if is_dsr {
            let tables = &mut self.dsr;
            by_family!(mut tables, key, |table, packed| table.count_logged(&packed, hash, packet, now));
        } else {
            let tables = &mut self.nat;
            by_family!(mut tables, key, |table, packed| table.count_logged(&packed, hash, packet, now));
        }
    }

    /// Reports the end of closed connections that have had no packet for [`FLOW_LOG_CLOSED_MS`]. Call it several times
    /// a second.
    pub fn end_closed(&mut self, now: Now) {
        each_table!(self[&mut], |table| table.end_closed(now));
    }

    /// Reports the flows of up to `buckets` hash buckets from `cursor` on (0 at first) as ended because the gateway
    /// stops. Returns the next cursor, or `None` at the end.
    pub fn end_all(&mut self, cursor: u64, buckets: u64) -> Option<u64> {
        let mut step = WalkStep::new(cursor, buckets);
        each_table!(self[&mut], |table| {
            for bucket in step.part(table) {
                table.positions(bucket).into_iter().for_each(|position| table.end_stopped(position));
            }
        });
        step.next()
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    fn log_to(&mut self, log: &Arc<FlowLog>) {
        if self.accounts.is_on() {
            return;
        }
        self.accounts.enable(log, (self.buckets as usize * B).div_ceil(W));
        self.watch(self.journal.is_on);
    }

    fn count_logged(&mut self, key: &PackedKey<A>, hash: FlowHash, packet: &LoggedPacket, now: Now) {
        if !self.accounts.is_on() {
            return;
        }
        let Some(position) = self.find(key, hash) else {
            if packet.is_first
                && let Some(log) = &self.accounts.log
            {
                log.lose(FlowLogLoss::NoEntry);
            }
            return;
        };
        let index = self.entry_index(position);
        let mut account = self.accounts.get(index);
        if !account.is_open() {
            if !packet.is_first && !packet.is_sent {
                return;
            }
            account = Account::new(packet.is_first, now);
            if packet.is_first {
                self.report(position, &account, FlowEvent::Begin);
            }
        }
        if packet.is_sent {
            account.add(packet, now);
        }
        let closing = &mut self.accounts.closing;
        // If there are too many, the end is reported when the entry is removed.
        if !account.is_closing()
            && account.closed(Self::PAIRED).is_some()
            && closing.len() < FLOW_LOG_CLOSING_MAX
        {
            account.set_closing();
            closing.push_back((*key, now.millis().wrapping_add(FLOW_LOG_CLOSED_MS)));
        }
        self.accounts.set(index, &account);
    }

    fn end_closed(&mut self, now: Now) {
        while let Some(&(key, check_at)) = self.accounts.closing.front()
            && now.millis().wrapping_sub(check_at) < u32::MAX / 2
        {
            self.accounts.closing.pop_front();
            let Some(position) = self.find(&key, self.hash_of(&key)) else { continue };
            let account = self.accounts.get(self.entry_index(position));
            // The entry may be that of a later connection.
            if !account.is_closing() {
                continue;
            }
            let end_at = account.last().millis().wrapping_add(FLOW_LOG_CLOSED_MS);
            if now.millis().wrapping_sub(end_at) < u32::MAX / 2 {
                self.end_account(position, None);
            } else {
                self.accounts.closing.push_back((key, end_at));
            }
        }
    }

    fn end_stopped(&mut self, position: Position) {
        if !self.is_empty(position) && !self.is_reply(position) {
            self.end_account(position, None);
        }
    }

    /// Closes the account of an entry, if it has one. `why` the entry is removed; `None` if it stays.
    pub(super) fn end_account(&mut self, position: Position, why: Option<EvictionReason>) {
        let Some(account) = self.accounts.take(self.entry_index(position)) else { return };
        let reason = account.closed(Self::PAIRED).unwrap_or(match why {
            None => EndReason::Stopped,
            Some(EvictionReason::Expired) => EndReason::Idle,
            Some(EvictionReason::Removed) => EndReason::Removed,
            Some(
                EvictionReason::BucketFull
                | EvictionReason::TableFull
                | EvictionReason::Pressure
                | EvictionReason::LongestIdle
                | EvictionReason::ServiceShare
                | EvictionReason::PortReused,
            ) => EndReason::Evicted,
        });
        self.report(position, &account, FlowEvent::End(reason));
    }

    fn report(&self, position: Position, account: &Account, event: FlowEvent) {
        let Some(log) = &self.accounts.log else { return };
        let key = self.key(position);
        let source = Self::PAIRED.then(|| {
            let reply = self.peer_key(position);
            endpoint(addr_of(reply.addr), reply.tag)
        });
        log.push(LoggedFlow {
            event,
            service: ServiceId::from_raw(key.owner),
            client: endpoint(addr_of(key.addr), key.tag),
            backend: BackendId::from_raw(self.value(position)),
            source,
            began: account.began(),
            last: account.last(),
            begin_seen: account.begin_seen(),
            counts: account.counts,
        });
    }
}
