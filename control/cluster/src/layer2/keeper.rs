//! Keeps the Leases: polls all of them each second, sends the writes that the claims request, and publishes until when
//! this gateway owns the VIPs.
//!
//! Ownership is granted only after the API server has responded, and revoked before a Lease is released. A poll or a
//! write that hangs delays other writes by at most [`RESPONSE_TIMEOUT`], which is shorter than the slack of a renewal.
//! [`WRITES_MAX`] writes are sent at a time, so a gateway with more Leases needs an API server that responds faster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams, PostParams};
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_model::objects::{Labels, ObjectKey};
use tidegate_policy::reconcile::{OwnerGroup, owner_key};
use tidegate_source::kubernetes::Connector;
use tidegate_spec::ownership::{BootTime, Ownership};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::claim::{Claim, Context, LABEL, LeaseWrite};
use super::rank::{Ranked, ranked};
use crate::lease::gateway_of;
use crate::plan::LeaseHolders;
use crate::releases::{LiveGateway, PeerReleases};
use crate::request::{RequestError, with_client};

/// The interval of polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Each iteration lists all Leases, so renewals that are due at almost the same time share one.
const ITERATION_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// The response timeout.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1500);
/// The maximum number of concurrent writes.
const WRITES_MAX: usize = 16;
/// The maximum time to release Leases at shutdown.
const SHUTDOWN_MAX: Duration = Duration::from_millis(1500);
/// The maximum number of groups of one gateway: 16 for each selector of pools, and one for each VIP of a Service with
/// `externalTrafficPolicy: Local`.
const GROUPS_MAX: usize = 512;

/// The configured times of Leases.
#[derive(Debug, Clone)]
pub struct LeaseTimes {
    /// The duration that Leases state.
    pub duration: Duration,
    /// How long another gateway must be preferred before it gets a Lease.
    pub hand_back_delay: Duration,
}

/// Whether this gateway was cut off and has not yet imported the flows of other gateways.
type IsCutOff = Box<dyn Fn() -> bool + Send + Sync>;

/// The groups of VIPs that this gateway may own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The group of each Lease.
    pub groups: BTreeMap<String, OwnerGroup>,
    /// The labels of this gateway.
    pub own_labels: Labels,
    /// Whether this gateway can forward and isn't shutting down. If false, it owns nothing.
    pub eligible: bool,
}

/// The last known owner of each group, and counters.
#[derive(Debug, Default)]
pub struct Owners {
    holders: watch::Sender<Arc<LeaseHolders>>,
    /// Why VIPs may have no owner.
    failure: watch::Sender<Option<String>>,
    /// How often this gateway has become the owner of a group.
    pub taken: AtomicU64,
    /// The number of failed requests for Leases.
    pub failures: AtomicU64,
}

impl Owners {
    /// The last known holder of each Lease.
    #[must_use]
    pub fn holders(&self) -> Arc<LeaseHolders> {
        Arc::clone(&self.holders.borrow())
    }

    /// Notifies of each change of a holder.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<LeaseHolders>> {
        self.holders.subscribe()
    }

    /// Why VIPs may have no owner.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }
}

/// Keeps Leases until it is dropped or [shut down](Keeper::shut_down).
#[derive(Debug)]
pub struct Keeper {
    wanted: watch::Sender<Wanted>,
    ends: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    owners: Arc<Owners>,
    task: AbortHandle,
}

impl Keeper {
    /// Starts on the runtime of the caller. `identity` is the gateway's name, `_` and an identifier of this run.
    /// `is_cut_off` returns whether this gateway was cut off and has not yet imported the flows of other gateways.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with time and I/O.
    #[must_use]
    pub fn start(
        connector: Arc<Connector>,
        namespace: &str,
        identity: &str,
        times: LeaseTimes,
        peers: watch::Receiver<PeerReleases>,
        ownership: Arc<Ownership>,
        is_cut_off: IsCutOff,
    ) -> Self {
        let (wanted, wants) = watch::channel(Wanted::default());
        let (ends, shutdown) = watch::channel(false);
        let (is_over, ended) = watch::channel(false);
        let owners = Arc::<Owners>::default();
        let task = Task {
            connector,
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            times,
            peers,
            ownership,
            is_cut_off,
            wants,
            shutdown,
            owners: Arc::clone(&owners),
            claims: BTreeMap::new(),
            reported: None,
        };
        let run = async move {
            task.run().await;
            is_over.send_replace(true);
        };
        Self { wanted, ends, ended, owners, task: tokio::spawn(run).abort_handle() }
    }

    /// Sets which groups this gateway may own. Never waits.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|before| {
            let is_new = *before != wanted;
            *before = wanted;
            is_new
        });
    }

    /// The background task, to detect whether it has ended.
    #[must_use]
    pub fn task(&self) -> AbortHandle {
        self.task.clone()
    }

    /// The owners of the groups.
    #[must_use]
    pub fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    /// Gives up all ownership and releases the Leases. It ends within 1.5 s, whatever the API server does.
    pub async fn shut_down(&self) {
        self.ends.send_replace(true);
        let mut ended = self.ended.clone();
        // If it takes longer, the Leases expire.
        let _ = timeout(SHUTDOWN_MAX, ended.wait_for(|over| *over)).await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    connector: Arc<Connector>,
    namespace: String,
    identity: String,
    times: LeaseTimes,
    peers: watch::Receiver<PeerReleases>,
    ownership: Arc<Ownership>,
    is_cut_off: IsCutOff,
    wants: watch::Receiver<Wanted>,
    shutdown: watch::Receiver<bool>,
    owners: Arc<Owners>,
    claims: BTreeMap<String, Claim>,
    /// The last reported error.
    reported: Option<String>,
}

/// A write and the time of its start.
struct Written {
    group: String,
    started: (Instant, BootTime),
    result: Result<Lease, RequestError>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let started = Instant::now();
            let is_shutting_down = *self.shutdown.borrow_and_update();
            let wanted = match is_shutting_down {
                true => Wanted::default(),
                false => self.wants.borrow_and_update().clone(),
            };
            self.iterate(&wanted).await;
            if is_shutting_down {
                return;
            }
            let due = self.claims.values().filter_map(|claim| claim.due(&self.identity, self.times.duration));
            let soon = Instant::now() + ITERATION_INTERVAL_MIN;
            let next = due.map(|at| at.max(soon)).chain([started + POLL_INTERVAL]).min();
            tokio::select! {
                () = sleep_until(next.unwrap_or(soon)) => {}
                // Once it has caught up, it acquires the Leases that it left to others.
                () = caught_up(&self.is_cut_off), if (self.is_cut_off)() => {}
                Ok(()) = self.wants.changed() => {}
                Ok(()) = self.shutdown.changed() => {}
            }
        }
    }

    /// Sends the writes that are due, polls the Leases, and sends the writes that are due after that.
    async fn iterate(&mut self, wanted: &Wanted) {
        // A claim on a group that is no longer wanted stays only until our Lease is released.
        self.claims.retain(|group, claim| wanted.groups.contains_key(group) || claim.until > BootTime(0));
        // Groups of many VIPs first.
        let (of_one, of_many): (Vec<_>, Vec<_>) = wanted.groups.iter().partition(|(_, of)| of.is_of_one_vip);
        for (group, _) in of_many.into_iter().chain(of_one).take(GROUPS_MAX) {
            self.claims.entry(group.clone()).or_default();
        }
        let left_out = wanted.groups.len().saturating_sub(GROUPS_MAX);
        let too_many = (left_out > 0).then(|| {
            format!(
                "this gateway does not answer for the VIPs of {left_out} Leases, because it can own at most \
                 {GROUPS_MAX} Leases; accepted: fewer pool selectors (16 Leases each), or fewer VIPs of Services with \
                 externalTrafficPolicy Local (one Lease each)"
            )
        });
        if self.claims.is_empty() {
            self.publish();
            return self.report(None);
        }
        // Renewals first: they don't depend on the poll and must not wait for it.
        let mut error = self.write(wanted).await;
        match self.poll().await {
            Ok(mut leases) => {
                let now = Instant::now();
                for (group, claim) in &mut self.claims {
                    claim.observe(leases.remove(group), &self.identity, now);
                }
                error = self.write(wanted).await.or(error);
            }
            Err(why) => error = Some(format!("cannot list the Leases: {why}")),
        }
        self.publish();
        if error.is_some() {
            self.owners.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.report(error.or(too_many));
    }

    async fn poll(&self) -> Result<BTreeMap<String, Lease>, RequestError> {
        let params = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
        let list = with_client(&self.connector, |client| async move {
            let api: Api<Lease> = Api::namespaced(client, &self.namespace);
            Ok(api.list(&params).await?)
        });
        let named = |lease: Lease| Some((lease.metadata.name.clone()?, lease));
        Ok(within_max(list).await?.items.into_iter().filter_map(named).collect())
    }

    /// Sends the writes that are due, and grants the resulting ownership. Returns an error if any failed.
    async fn write(&mut self, wanted: &Wanted) -> Option<String> {
        let mut writes: JoinSet<Written> = JoinSet::new();
        let (mut error, wall) = (None, Timestamp::now());
        let (live, is_cut_off) = (Arc::clone(&self.peers.borrow().live), (self.is_cut_off)());
        let writes_due: Vec<(String, LeaseWrite)> = self
            .claims
            .iter_mut()
            .filter_map(|(group, claim)| {
                let own = gateway_of(&self.identity);
                let of = wanted.groups.get(group);
                let ranked = of.map_or_else(Vec::new, |of| order(group, of, own, wanted, &live));
                let context = Context {
                    identity: &self.identity,
                    ranked: &ranked,
                    duration: self.times.duration,
                    hand_back_delay: self.times.hand_back_delay,
                    is_cut_off,
                    services: of.map_or(0, |of| of.services.len()),
                    wall,
                };
                Some((group.clone(), claim.next_write(&context, Instant::now())?))
            })
            .collect();
        // Revoke ownership from the workers before releasing Leases.
        self.publish();
        for (group, write) in writes_due {
            if writes.len() >= WRITES_MAX
                && let Some(done) = writes.join_next().await
            {
                error = self.written(done.ok()).or(error);
            }
            let (connector, namespace) = (Arc::clone(&self.connector), self.namespace.clone());
            let started = (Instant::now(), self.ownership.now().unwrap_or_default());
            writes.spawn(async move {
                let result = within_max(send(&connector, &namespace, &group, write)).await;
                Written { group, started, result }
            });
        }
        while let Some(done) = writes.join_next().await {
            error = self.written(done.ok()).or(error);
        }
        error
    }

    fn written(&mut self, done: Option<Written>) -> Option<String> {
        let Written { group, started, result } = done?;
        match result {
            Ok(lease) => {
                let claim = self.claims.get_mut(&group)?;
                let is_new = claim.written(lease, &self.identity, started, self.times.duration);
                // Grant ownership immediately, because other writes may still take long.
                if !self.ownership.grant(owner_key(&group), claim.until) {
                    claim.reject(Instant::now());
                    return Some(format!(
                        "this gateway cannot own more Leases of VIPs, so it releases the Lease {group}"
                    ));
                }
                if is_new {
                    self.owners.taken.fetch_add(1, Ordering::Relaxed);
                    let message = "this gateway owns the VIPs of the Lease";
                    tidegate_events::record(Event::new(Reason::VipOwned, ObjectKind::Group, &group, message));
                }
                None
            }
            // Another gateway was first, as the next poll will show.
            Err(error) if matches!(error.code(), Some(404 | 409)) => None,
            Err(error) => Some(format!("cannot write the Lease {group}: {error}")),
        }
    }

    /// Updates the ownership and the display.
    fn publish(&self) {
        for (group, claim) in &self.claims {
            // This can't fail: a nonzero time was granted before.
            self.ownership.grant(owner_key(group), claim.until);
        }
        let holders =
            || self.claims.iter().map(|(group, claim)| (group.clone(), claim.holder().map(str::to_owned)));
        self.owners.holders.send_if_modified(|before| {
            let now: BTreeMap<_, _> = holders().collect();
            let gone: BTreeSet<&String> = before.keys().filter(|group| !now.contains_key(*group)).collect();
            gone.into_iter().for_each(|group| {
                self.ownership.grant(owner_key(group), BootTime(0));
            });
            let own = gateway_of(&self.identity);
            for (group, _) in before.iter().filter(|(_, holder)| holder.as_deref() == Some(own)) {
                let holder = now.get(group).and_then(Option::as_deref);
                if holder != Some(own) {
                    let message = "this gateway no longer owns the VIPs of the Lease";
                    let event = Event::new(Reason::VipReleased, ObjectKind::Group, group, message);
                    tidegate_events::record(event.text(Field::By, holder.unwrap_or_default()));
                }
            }
            let is_new = **before != now;
            if is_new {
                *before = Arc::new(now);
            }
            is_new
        });
    }

    /// Publishes an error, and logs once that it occurred and once that it ended.
    fn report(&mut self, error: Option<String>) {
        if error == self.reported {
            return;
        }
        self.owners.failure.send_replace(error.clone());
        match &error {
            Some(error) => tracing::warn!(
                namespace = self.namespace,
                error,
                "cannot maintain the Leases of VIPs; this gateway does not answer for a VIP without a valid Lease"
            ),
            None => tracing::info!(namespace = self.namespace, "maintaining the Leases of VIPs works again"),
        }
        self.reported = error;
    }
}

async fn caught_up(is_cut_off: &IsCutOff) {
    while is_cut_off() {
        sleep(ITERATION_INTERVAL_MIN).await;
    }
}

/// The gateways that may own a group, the preferred one first. This gateway, `own`, is included only if it can serve
/// one of the VIPs.
fn order(
    group: &str,
    of: &OwnerGroup,
    own: &str,
    wanted: &Wanted,
    live: &BTreeMap<String, LiveGateway>,
) -> Vec<Ranked> {
    let is_own = wanted.eligible && of.is_servable && of.selector.matches(&wanted.own_labels);
    let others = live.iter().filter(|(name, one)| *name != own && of.selector.matches(&one.labels));
    let others = others.map(|(name, one)| {
        let lacks = |service: &&ObjectKey| one.lacking.contains(&service.to_string());
        let lacking = match one.lacking.is_empty() {
            // A gateway whose list is truncated may lack any Service.
            _ if one.lacks_more => of.services.len(),
            // Most gateways serve everything.
            true => 0,
            false => of.services.iter().filter(lacks).count(),
        };
        (name.as_str(), lacking)
    });
    ranked(group, others.chain(is_own.then_some((own, of.lacking.len()))))
}

async fn send(
    connector: &Connector,
    namespace: &str,
    group: &str,
    write: LeaseWrite,
) -> Result<Lease, RequestError> {
    with_client(connector, |client| async move {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let params = PostParams::default();
        Ok(match write {
            LeaseWrite::Create(mut lease) => {
                lease.metadata.name = Some(group.to_owned());
                api.create(&params, &lease).await?
            }
            LeaseWrite::Update(lease) | LeaseWrite::Release(lease) => {
                api.replace(group, &params, &lease).await?
            }
        })
    })
    .await
}

async fn within_max<T>(request: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    timeout(RESPONSE_TIMEOUT, request).await.unwrap_or(Err(RequestError::Timeout))
}
