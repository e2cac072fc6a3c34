//! A worker's state for the limits of Services: unspent tokens, reported flows, and drops not reported yet.

use std::sync::atomic::Ordering;

use tidegate_conntrack::FlowTables;
use tidegate_spec::limits::{LIMIT_REPORTS_AT_ONCE, SERVICES_MAX};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Refusal;

use super::bucket::{Refill, SharedBucket};
use super::limited_service::{LimitDrop, LimitedService};
use crate::Snapshot;
use crate::counters::Direction;

/// The words of a Service.
const WORDS: usize = 12;
/// [`LimitedService::since`] of the Service that the words belong to.
const SINCE: usize = 0;
/// The flows that this worker has added to the shared count.
const REPORTED: usize = 1;
/// Unspent bytes, for each direction.
const BYTES: usize = 2;
/// Unspent new flows.
const NEW: usize = 4;
/// When each of these three token buckets was last found empty; 0 for never.
const EMPTY: usize = 5;
/// Drops not reported yet, for each limit.
const DROPS: usize = 8;

const _: () = assert!(DROPS + LimitDrop::ALL.len() <= WORDS);

/// The limits of Services at one worker.
#[derive(Debug)]
pub struct WorkerLimits {
    /// By [`LimitedService::table_index`].
    services: Box<[[u32; WORDS]]>,
    /// The position of the first Service of the next report.
    next: usize,
}

impl Default for WorkerLimits {
    /// Capacity for the maximum number of Services.
    fn default() -> Self {
        // The system zeroes the memory, so unused words take none.
        Self { services: vec![[0; WORDS]; SERVICES_MAX].into_boxed_slice(), next: 0 }
    }
}

impl WorkerLimits {
    fn words(&mut self, service: &LimitedService) -> Option<&mut [u32; WORDS]> {
        let words = self.services.get_mut(service.table_index as usize)?;
        if words[SINCE] != service.since {
            *words = [0; WORDS];
            words[SINCE] = service.since;
        }
        Some(words)
    }

    /// Whether a packet of `bytes` is within the bandwidth of its direction; if so, its bytes are spent.
    pub fn passes(&mut self, service: &LimitedService, direction: Direction, bytes: usize, now: Now) -> bool {
        let (Some(refill), Some(words)) = (service.bandwidth(), self.words(service)) else { return true };
        let bucket = &service.shared.bandwidth[direction as usize];
        // An IP packet has at most 65,535 bytes.
        let spends = spend(words, BYTES + direction as usize, bucket, refill, bytes as u32, now);
        words[DROPS + LimitDrop::Bandwidth.index()] += u32::from(!spends);
        spends
    }

    /// Counts a new flow of a Service, if its limits allow one more.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit(
        &mut self,
        service: &LimitedService,
        snapshot: &Snapshot,
        flows: &FlowTables,
        now: Now,
    ) -> Result<(), Refusal> {
        let Some(words) = self.words(service) else { return Ok(()) };
        let rate_allows =
            service.rate().is_none_or(|rate| spend(words, NEW, &service.shared.new, rate, 1, now));
        let refused_by = match service.limits().connections {
            _ if !rate_allows => Some(LimitDrop::ConnectionRate),
            Some(max) if !reserve(words, service, own_flows(service, snapshot, flows), max.get()) => {
                Some(LimitDrop::Connections)
            }
            _ => None,
        };
        let Some(by) = refused_by else { return Ok(()) };
        words[DROPS + by.index()] += 1;
        Err(by.refusal())
    }

    /// Reports ended flows and drops of the next Services. Call it several times a second.
    pub fn report(&mut self, snapshot: &Snapshot, flows: &FlowTables) {
        let all = snapshot.limited_services();
        if all.is_empty() {
            return;
        }
        let first = if self.next < all.len() { self.next } else { 0 };
        self.next = first + LIMIT_REPORTS_AT_ONCE;
        for service in all.iter().skip(first).take(LIMIT_REPORTS_AT_ONCE) {
            let Some(words) = self.words(service) else { continue };
            if service.limits().connections.is_some() {
                let own = own_flows(service, snapshot, flows);
                service.shared.connections.fetch_add(difference(own, words[REPORTED]), Ordering::Relaxed);
                words[REPORTED] = own;
            }
            for (total, count) in service.shared.drops.iter().zip(&mut words[DROPS..]) {
                if *count > 0 {
                    total.fetch_add(u64::from(std::mem::take(count)), Ordering::Relaxed);
                }
            }
        }
    }
}

/// Spends units of this worker, and takes more from the shared token bucket if necessary.
fn spend(
    words: &mut [u32; WORDS],
    at: usize,
    bucket: &SharedBucket,
    refill: Refill,
    units: u32,
    now: Now,
) -> bool {
    if let Some(left) = words[at].checked_sub(units) {
        words[at] = left;
        return true;
    }
    // An empty token bucket is not accessed again for 131 µs, so that workers don't contend for it on each packet of a
    // flood.
    let moment = (now.0 >> 17) as u32 | 1 << 31;
    if words[EMPTY + at - BYTES] == moment {
        return false;
    }
    let missing = u64::from(units - words[at]);
    let taken = bucket.take(refill, missing, refill.share(), now);
    if taken == 0 {
        words[EMPTY + at - BYTES] = moment;
        return false;
    }
    // A share is below 2^24 units.
    words[at] = (u64::from(words[at]) + taken - u64::from(units)) as u32;
    true
}

/// Counts one more flow, if all workers together then have at most `max`. `own` is the number of this worker's flows.
fn reserve(words: &mut [u32; WORDS], service: &LimitedService, own: u32, max: u32) -> bool {
    let count = &service.shared.connections;
    let change = difference(own, words[REPORTED]);
    let before = count.fetch_add(change + 1, Ordering::Relaxed) + change;
    let fits = before < i64::from(max);
    if !fits {
        count.fetch_sub(1, Ordering::Relaxed);
    }
    words[REPORTED] = own + u32::from(fits);
    fits
}

fn difference(now: u32, before: u32) -> i64 {
    i64::from(now) - i64::from(before)
}

/// The flows of a Service in the tables of this worker.
fn own_flows(service: &LimitedService, snapshot: &Snapshot, flows: &FlowTables) -> u32 {
    let ports = service.ports().iter().filter_map(|id| snapshot.service_by_id(*id));
    ports.map(|port| flows.of_service(port.id, port.mode.is_dsr(), port.vip.family())).sum()
}
