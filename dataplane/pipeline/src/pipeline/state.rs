//! The state of a worker's pipeline between bursts.

use std::sync::Arc;

use tidegate_conntrack::affinities::Affinities;
use tidegate_conntrack::associations::{Associations, EndedPaths};
use tidegate_conntrack::flow_copies::FlowCopies;
use tidegate_conntrack::{FlowTables, HeapMemory, TableMemory};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_snapshot::service_limits::WorkerLimits;
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::limits::{
    AGEING_BUCKETS_PER_BURST, AGEING_BUCKETS_PER_SECOND, AGEING_GAP_MAX, COPIES_TABLE_SHARE, FAST_PATH_SHARE,
    FAST_PATH_SKIPPED_BURSTS,
};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::AnswerKind;

use super::admission::Recheck;
use super::cookie_state::Cookies;
use super::fast_path::Items;
use super::output::BurstOutput;
use super::passive::Passive;
use super::schedule::Schedule;
use super::sharing_walks::Sharing;
use crate::forward::snat_ports::{SnatPorts, Steering};
use crate::forward::tunnel::Identifications;
use crate::fragments::Fragments;
use crate::reply_limit::ReplyLimit;
use crate::set_aside::SetAsideCounts;

/// The settings of a worker's pipeline.
#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// Which worker this is.
    pub worker: WorkerIndex,
    /// How many workers the gateway has.
    pub workers: u8,
    /// The capacity of each kind of flow table.
    pub entries: usize,
    /// The secret of the flow tables' hash. It also determines the start of the rotation of SNAT ports.
    pub seed: u64,
    /// How replies reach the worker that owns their flow.
    pub steering: Steering,
}

/// The state of one worker: its flows, and everything else that persists between bursts.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) worker: WorkerIndex,
    pub(super) workers: u8,
    pub(super) seed: u64,
    pub(super) snat_ports: SnatPorts,
    pub(super) flows: FlowTables,
    pub(super) copies: FlowCopies,
    pub(super) fragments: Fragments,
    pub(super) reply_limit: ReplyLimit,
    pub(super) path_mtu_updates: u64,
    /// The rate limit of packets that are fragmented.
    pub(super) fragmenting: u64,
    pub(super) outer_identifications: Identifications,
    pub(super) schedule: Schedule,
    pub(super) limits: WorkerLimits,
    /// The table of clients' backends that all workers share; `None` for a single worker.
    pub(super) affinities: Option<Arc<Affinities>>,
    /// The SCTP associations of all workers.
    pub(super) associations: Arc<Associations>,
    pub(super) ended_paths: EndedPaths,
    pub(super) passive: Passive,
    pub(super) cookies: Cookies,
    /// The output for packets from tunnels of peers; `None` while one is processed.
    pub(super) opened: Option<Box<BurstOutput>>,
    /// The next echo identifier of masqueraded flows.
    pub(super) next_echo_id: u16,
    pub(super) sharing: Sharing,
    pub(super) items: Items,
    /// Whether plain packets of established flows take the fast path. False only in tests that compare it with the
    /// stages.
    fast_path_is_on: bool,
    /// Whether the fast path is skipped after bursts with few plain packets. False only in tests.
    may_skip_fast_path: bool,
    /// How many more bursts skip the fast path, because it took few packets of the last one.
    bursts_without_fast_path: u8,
    recheck: Recheck,
}

impl Pipeline {
    /// A pipeline without flows. It allocates all memory that it will ever use.
    #[must_use]
    pub fn new(config: &PipelineConfig) -> Self {
        Self::in_memory(config, &mut HeapMemory)
    }

    /// Like [`Self::new`], with the flow tables in memory that the caller provides.
    #[must_use]
    pub fn in_memory(config: &PipelineConfig, memory: &mut dyn TableMemory) -> Self {
        Self {
            worker: config.worker,
            workers: config.workers.max(1),
            seed: config.seed,
            snat_ports: SnatPorts::new(config.steering.clone(), config.worker, config.workers, config.seed),
            flows: FlowTables::in_memory(config.entries, config.seed, memory),
            copies: FlowCopies::new(if config.workers > 1 { config.entries / COPIES_TABLE_SHARE } else { 0 }),
            fragments: Fragments::new(config.seed),
            reply_limit: ReplyLimit::new(config.seed),
            path_mtu_updates: 0,
            fragmenting: 0,
            outer_identifications: Identifications::new(config.worker, config.workers, config.seed),
            schedule: Schedule::new(config.worker, config.workers, config.seed),
            limits: WorkerLimits::default(),
            affinities: None,
            associations: Arc::new(Associations::new(config.entries, config.seed)),
            ended_paths: EndedPaths::new(),
            passive: Passive::new(),
            cookies: Cookies::new(config.seed, config.entries),
            opened: Some(Box::default()),
            next_echo_id: 0,
            sharing: Sharing::default(),
            items: Items::default(),
            fast_path_is_on: true,
            may_skip_fast_path: true,
            bursts_without_fast_path: 0,
            recheck: Recheck::default(),
        }
    }

    /// Uses this table to share the backends of clients with affinity with the other workers.
    #[must_use]
    pub fn with_affinities(mut self, affinities: Arc<Affinities>) -> Self {
        self.affinities = Some(affinities);
        self
    }

    /// Uses this table to share the SCTP associations with the other workers.
    #[must_use]
    pub fn with_associations(mut self, associations: Arc<Associations>) -> Self {
        self.associations = associations;
        self
    }

    /// The SCTP associations. The table must be prepared for a snapshot with SCTP services.
    #[must_use]
    pub fn associations(&self) -> &Arc<Associations> {
        &self.associations
    }

    /// Whether the next burst tries the fast path.
    #[inline]
    pub(super) fn tries_fast_path(&mut self) -> bool {
        let rests = self.bursts_without_fast_path > 0;
        self.bursts_without_fast_path = self.bursts_without_fast_path.saturating_sub(1);
        !rests & self.fast_path_is_on
    }

    /// Records how many frames of a burst took the fast path. If most didn't, as in a flood of new flows, the next
    /// bursts skip it: a packet that fails its checks costs 12.5 % more.
    #[inline]
    pub(super) fn note_fast_path(&mut self, taken: u32, frames: usize) {
        if taken.count_ones() as usize * FAST_PATH_SHARE < frames && self.may_skip_fast_path {
            self.bursts_without_fast_path = FAST_PATH_SKIPPED_BURSTS;
        }
    }

    /// Enables the fast path for every burst, or disables it, for tests that compare it with the stages.
    #[cfg(test)]
    pub(crate) fn set_fast_path(&mut self, is_on: bool) {
        (self.fast_path_is_on, self.may_skip_fast_path) = (is_on, false);
    }

    /// Removes some of the expired flows. Call it with every burst, and when there is none.
    #[inline]
    pub fn age(&mut self, now: Now) {
        self.flows.age(now, AGEING_BUCKETS_PER_BURST);
        self.flows.age_masquerades(now, AGEING_BUCKETS_PER_BURST);
        self.copies.age(now);
    }

    /// Removes the expired flows that a running worker would have removed from `before` to `now`, for a replay, where
    /// the pipeline doesn't run between packets. It walks at most twice through each table.
    pub fn age_between(&mut self, before: Now, now: Now) {
        if now.since(before) > AGEING_GAP_MAX {
            self.flows.age_each(before.plus(AGEING_GAP_MAX), usize::MAX);
        }
        let buckets = now.since(before).as_nanos() * u128::from(AGEING_BUCKETS_PER_SECOND) / 1_000_000_000;
        let buckets = usize::try_from(buckets).unwrap_or(usize::MAX);
        self.flows.age_each(now, buckets.saturating_add(AGEING_BUCKETS_PER_BURST));
    }

    /// The flows of this worker, for counts.
    #[must_use]
    pub fn flows(&self) -> &FlowTables {
        &self.flows
    }

    /// The flows of this worker, for listings and drains between bursts.
    pub fn flows_mut(&mut self) -> &mut FlowTables {
        &mut self.flows
    }

    /// The number of answers that were not sent because of a limit, by [`AnswerKind`].
    #[must_use]
    pub fn suppressed_answers(&self) -> &[u64; AnswerKind::COUNT] {
        self.reply_limit.suppressed()
    }

    /// Shares the loads of backends with the other workers at intervals, if the snapshot has services that choose
    /// backends by load. `tallies` has the tallies of all workers. Call it in each iteration of the worker's loop.
    #[inline]
    pub fn share_loads(&mut self, snapshot: &Snapshot, tallies: &[Arc<Tallies>], now: Now) {
        if !snapshot.compared().is_empty() {
            self.schedule.share(snapshot, tallies, &mut self.flows, now);
        }
    }

    /// Reports ended flows to the counts of Services with limits, and the packets that the limits dropped. Call it
    /// several times a second, even without packets.
    pub fn report_limits(&mut self, snapshot: &Snapshot) {
        self.limits.report(snapshot, &self.flows);
    }

    /// Reports the backends that this worker has set aside, and removes those that get no new flows anyway. Call it
    /// several times a second, even without packets. `tallies` belongs to this worker.
    pub fn report_set_aside(&mut self, snapshot: &Snapshot, tallies: &Tallies) {
        self.passive.report(snapshot, tallies);
    }

    /// How often this worker set a backend aside, and how often a backend returned.
    #[must_use]
    pub fn set_aside_counts(&self) -> SetAsideCounts {
        self.passive.aside.counts()
    }

    /// Checks some of the known flows after a change of source ranges, and returns whether there are more to check.
    /// Call it with a new snapshot, and then in each iteration until it returns false.
    pub fn recheck(&mut self, snapshot: &Snapshot, now: Now) -> bool {
        self.recheck.step(&mut self.flows, snapshot, now)
    }
}
