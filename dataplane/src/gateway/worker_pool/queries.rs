//! Queries that workers answer between bursts: listings and removals of flows, and copies of packets.
//!
//! Promises: no worker waits for the caller. A worker that doesn't answer in time is left out and counted.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tidegate_conntrack::FlowView;

use super::WorkerPool;
use crate::worker::watch::{PacketWatch, Watch, WatchFilter};
use crate::worker::{FlowFilter, FlowQuery, FlowRemoval, LogEnd, Query};

impl<F> WorkerPool<F> {
    /// Lists up to `limit` flows that pass the filter, over all workers. Workers that don't answer within `timeout` are
    /// left out; the second value is their number.
    #[must_use]
    pub fn flows(&self, filter: &FlowFilter, limit: usize, timeout: Duration) -> (Vec<FlowView>, usize) {
        let (answers, silent) =
            self.query_all(timeout, |reply| Query::Flows(FlowQuery::new(filter.clone(), limit, reply)));
        let mut flows = answers.concat();
        flows.truncate(limit);
        (flows, silent)
    }

    /// Like [`Self::flows`], but lists the flows with the most bytes, sorted by them. Flows that aren't in the flow log are
    /// last.
    #[must_use]
    pub fn flows_with_most_bytes(
        &self,
        filter: &FlowFilter,
        limit: usize,
        timeout: Duration,
    ) -> (Vec<FlowView>, usize) {
        let (answers, silent) = self.query_all(timeout, |reply| {
            Query::Flows(FlowQuery::new(filter.clone(), limit, reply).with_most_bytes())
        });
        let mut flows = answers.concat();
        flows.sort_by_key(|flow| Reverse(flow.bytes()));
        flows.truncate(limit);
        (flows, silent)
    }

    /// Removes the flows that pass the filter, except masqueraded ones, from all workers. Returns the number of removed
    /// flows and of workers that didn't answer within `timeout`; these remove their flows later.
    #[must_use]
    pub fn remove_flows(&self, filter: &FlowFilter, timeout: Duration) -> (u64, usize) {
        let (answers, silent) =
            self.query_all(timeout, |reply| Query::Remove(FlowRemoval::new(filter.clone(), reply)));
        (answers.iter().sum(), silent)
    }

    /// Reports all logged flows as ended, because the gateway stops. Returns the number of workers that haven't done so
    /// within `timeout`.
    #[must_use]
    pub fn end_logged_flows(&self, timeout: Duration) -> usize {
        self.query_all(timeout, |reply| Query::EndLogged(LogEnd::new(reply))).1
    }

    /// Sends a query to each worker. Returns the answers within `timeout`, and the number of workers without one.
    fn query_all<T>(&self, timeout: Duration, query: impl Fn(SyncSender<T>) -> Query) -> (Vec<T>, usize) {
        let deadline = Instant::now() + timeout;
        let sent = self.exchange.mailboxes.iter().map(|mailbox| {
            let (reply, answer) = sync_channel(1);
            mailbox.query(query(reply)).ok().map(|()| answer)
        });
        let sent: Vec<_> = sent.collect();
        let (mut answers, mut silent) = (Vec::new(), 0);
        for answer in sent {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.and_then(|answer| answer.recv_timeout(left).ok()) {
                Some(found) => answers.push(found),
                None => silent += 1,
            }
        }
        (answers, silent)
    }

    /// Starts copying packets that pass the filter at every worker. Each worker keeps up to `records` unread packets,
    /// with `snap` bytes of each frame. The caller may have up to [`WATCHES_MAX`](crate::worker::watch::WATCHES_MAX)
    /// watches at a time.
    ///
    /// # Errors
    /// The first worker whose query queue is full.
    pub fn watch(&self, filter: &WatchFilter, records: usize, snap: usize) -> Result<PacketWatch, usize> {
        let mailboxes = self.exchange.mailboxes.iter();
        let watches: Vec<_> =
            mailboxes.map(|_| Arc::new(Watch::new(filter.clone(), records, snap))).collect();
        let watch = PacketWatch::new(watches.clone());
        for (n, (mailbox, one)) in self.exchange.mailboxes.iter().zip(watches).enumerate() {
            mailbox.query(Query::Watch(one)).map_err(|_| n)?;
        }
        Ok(watch)
    }
}
