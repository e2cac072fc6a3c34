//! Queries that the workers answer between bursts: lists of flows, and copies of packets.
//!
//! Promises: no worker waits for the one who asks. A worker that does not answer in time is left out, and counted.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tidegate_conntrack::FlowView;

use super::WorkerPool;
use crate::worker::watch::{PacketWatch, Watch, WatchFilter};
use crate::worker::{FlowFilter, FlowQuestion, Question};

impl<F> WorkerPool<F> {
    /// Lists up to `limit` flows that pass the filter, over all workers. Workers answer between bursts. Those that have
    /// not answered within `timeout` are left out, and the second value is their number.
    #[must_use]
    pub fn flows(&self, filter: &FlowFilter, limit: usize, timeout: Duration) -> (Vec<FlowView>, usize) {
        let deadline = Instant::now() + timeout;
        let asked: Vec<_> = self
            .exchange
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (reply, answer) = sync_channel(1);
                let question = FlowQuestion::new(filter.clone(), limit, reply);
                mailbox.ask(Question::Flows(question)).ok().map(|()| answer)
            })
            .collect();
        let (mut flows, mut silent) = (Vec::new(), 0);
        for answer in asked {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.and_then(|answer| answer.recv_timeout(left).ok()) {
                Some(found) => flows.extend(found),
                None => silent += 1,
            }
        }
        flows.truncate(limit);
        (flows, silent)
    }

    /// Begins to copy the packets that pass the filter, at every worker. Each worker keeps up to `records` packets that were
    /// not taken yet, with `snap` bytes of each frame. The caller has at most
    /// [`WATCHES_MAX`](crate::worker::watch::WATCHES_MAX) of them at a time.
    ///
    /// # Errors
    /// The first worker that has too many queries waiting.
    pub fn watch(&self, filter: &WatchFilter, records: usize, snap: usize) -> Result<PacketWatch, usize> {
        let mailboxes = self.exchange.mailboxes.iter();
        let watches: Vec<_> =
            mailboxes.map(|_| Arc::new(Watch::new(filter.clone(), records, snap))).collect();
        let watch = PacketWatch::new(watches.clone());
        for (n, (mailbox, one)) in self.exchange.mailboxes.iter().zip(watches).enumerate() {
            mailbox.ask(Question::Watch(one)).map_err(|_| n)?;
        }
        Ok(watch)
    }
}
