//! Keeps the Leases: one look at all of them each second, the writes that the claims ask for, and the times in the
//! ownership.
//!
//! A time is granted only after the API server has answered, and taken back before a Lease is given back. A look or a
//! write that hangs delays other writes at most for [`ANSWER_MAX`], which is shorter than the time for which a renewal may
//! be late. [`WRITES_MAX`] are sent at a time, so a gateway with more Leases needs an API server that answers sooner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams, PostParams};
use tidegate_model::objects::{Labels, ObjectKey};
use tidegate_policy::reconcile::{OwnerGroup, owner_key};
use tidegate_source::kubernetes::Connector;
use tidegate_spec::ownership::{BootTime, Ownership};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::claim::{Ask, Beside, Claim, LABEL};
use super::rank::{Ranked, ranked};
use crate::plan::LeaseHolders;
use crate::releases::{LiveGateway, PeerReleases};
use crate::request::{RequestError, with_client};

/// The pause between two looks at the Leases.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Each turn lists all Leases, so renewals that are due at almost the same time share one.
const TURNS_APART: Duration = Duration::from_millis(200);
/// The maximum wait for an answer.
const ANSWER_MAX: Duration = Duration::from_millis(1500);
/// The maximum number of writes at a time.
const WRITES_MAX: usize = 16;
/// The maximum time to give Leases back at the end.
const LEAVE_MAX: Duration = Duration::from_millis(1500);
/// The maximum number of groups of one gateway: for each selector of pools 16, and one for each VIP of a Service with
/// `externalTrafficPolicy: Local`.
const GROUPS_MAX: usize = 512;

/// The part of a Lease's life that is configured.
#[derive(Debug, Clone)]
pub struct LeaseTimes {
    /// The duration that Leases state.
    pub lasts: Duration,
    /// How long another gateway must be preferred before it gets a Lease.
    pub hand_back_delay: Duration,
}

/// Whether this gateway was cut off and does not have the flows of other gateways yet.
type IsCutOff = Box<dyn Fn() -> bool + Send + Sync>;

/// The groups of VIPs that this gateway may own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The group of each Lease.
    pub groups: BTreeMap<String, OwnerGroup>,
    /// The labels of this gateway.
    pub own_labels: Labels,
    /// Whether this gateway can forward and does not leave. If not, it owns nothing.
    pub eligible: bool,
}

/// The gateway that owns each group, as last seen, and counts.
#[derive(Debug, Default)]
pub struct Owners {
    holders: watch::Sender<Arc<LeaseHolders>>,
    /// Why VIPs may have no owner, if so.
    trouble: watch::Sender<Option<String>>,
    /// How often this gateway has become an owner of a group.
    pub taken: AtomicU64,
    /// Requests for Leases that failed.
    pub failures: AtomicU64,
}

impl Owners {
    /// The holder of each Lease, as last seen.
    #[must_use]
    pub fn holders(&self) -> Arc<LeaseHolders> {
        Arc::clone(&self.holders.borrow())
    }

    /// Changes with a holder.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<LeaseHolders>> {
        self.holders.subscribe()
    }

    /// Why VIPs may have no owner, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }
}

/// Keeps Leases until it is dropped or [left](Keeper::leave).
#[derive(Debug)]
pub struct Keeper {
    wanted: watch::Sender<Wanted>,
    ends: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    owners: Arc<Owners>,
    task: AbortHandle,
}

impl Keeper {
    /// Begins, on the runtime of the caller. `identity` is the gateway's name, `_` and an identifier of this run; `times`
    /// are the duration of Leases and the delay of a hand-back; `is_cut_off` says whether this gateway was cut off and does
    /// not have the flows of other gateways yet.
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
        let (ends, leaves) = watch::channel(false);
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
            leaves,
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

    /// The task, to see whether it has ended.
    #[must_use]
    pub fn task(&self) -> AbortHandle {
        self.task.clone()
    }

    /// Who owns what.
    #[must_use]
    pub fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    /// Owns nothing from now on, and gives the Leases back. It ends within 1.5 s, whatever the API server does.
    pub async fn leave(&self) {
        self.ends.send_replace(true);
        let mut ended = self.ended.clone();
        // If it takes longer, the Leases expire by themselves.
        let _ = timeout(LEAVE_MAX, ended.wait_for(|over| *over)).await;
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
    leaves: watch::Receiver<bool>,
    owners: Arc<Owners>,
    claims: BTreeMap<String, Claim>,
    /// The last reported error.
    reported: Option<String>,
}

/// A write with the times of its start.
struct Written {
    group: String,
    began: (Instant, BootTime),
    result: Result<Lease, RequestError>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let began = Instant::now();
            let is_leaving = *self.leaves.borrow_and_update();
            let wanted = match is_leaving {
                true => Wanted::default(),
                false => self.wants.borrow_and_update().clone(),
            };
            self.turn(&wanted).await;
            if is_leaving {
                return;
            }
            let due = self.claims.values().filter_map(|claim| claim.due(&self.identity, self.times.lasts));
            let soon = Instant::now() + TURNS_APART;
            let next = due.map(|at| at.max(soon)).chain([began + LOOK_EVERY]).min();
            tokio::select! {
                () = sleep_until(next.unwrap_or(soon)) => {}
                // As soon as it has caught up, it takes what it left to others.
                () = caught_up(&self.is_cut_off), if (self.is_cut_off)() => {}
                Ok(()) = self.wants.changed() => {}
                Ok(()) = self.leaves.changed() => {}
            }
        }
    }

    /// One look and the writes before and after it.
    async fn turn(&mut self, wanted: &Wanted) {
        // A Lease that is not ours needs no claim; one that is ours is given back first.
        self.claims.retain(|group, claim| wanted.groups.contains_key(group) || claim.until > BootTime(0));
        // Those of many VIPs first.
        let (of_one, of_many): (Vec<_>, Vec<_>) = wanted.groups.iter().partition(|(_, of)| of.is_of_one_vip);
        for (group, _) in of_many.into_iter().chain(of_one).take(GROUPS_MAX) {
            self.claims.entry(group.clone()).or_default();
        }
        let left_out = wanted.groups.len().saturating_sub(GROUPS_MAX);
        let too_many = (left_out > 0).then(|| {
            format!(
                "{left_out} Leases exceed the limit, so nobody answers for their VIPs; accepted: {GROUPS_MAX} for a gateway, 16 for \
                 each selector of pools and one for each VIP that a Service with externalTrafficPolicy Local has or may share"
            )
        });
        if self.claims.is_empty() {
            self.publish();
            return self.report(None);
        }
        // Renewals first: they need no look, and must not wait for one.
        let mut error = self.write(wanted).await;
        match self.look().await {
            Ok(mut leases) => {
                let now = Instant::now();
                for (group, claim) in &mut self.claims {
                    claim.look(leases.remove(group), &self.identity, now);
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

    async fn look(&self) -> Result<BTreeMap<String, Lease>, RequestError> {
        let params = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
        let list = with_client(&self.connector, |client| async move {
            let api: Api<Lease> = Api::namespaced(client, &self.namespace);
            answered(api.list(&params)).await
        });
        let named = |lease: Lease| Some((lease.metadata.name.clone()?, lease));
        Ok(within_max(list).await?.items.into_iter().filter_map(named).collect())
    }

    /// Sends the writes that are due, and grants what they gave. Returns an error, if any failed.
    async fn write(&mut self, wanted: &Wanted) -> Option<String> {
        let mut writes: JoinSet<Written> = JoinSet::new();
        let (mut error, wall) = (None, Timestamp::now());
        let (live, is_cut_off) = (Arc::clone(&self.peers.borrow().live), (self.is_cut_off)());
        let asks: Vec<(String, Ask)> = self
            .claims
            .iter_mut()
            .filter_map(|(group, claim)| {
                let own = self.identity.rsplit_once('_').map_or(self.identity.as_str(), |(name, _)| name);
                let of = wanted.groups.get(group);
                let ranked = of.map_or_else(Vec::new, |of| order(group, of, own, wanted, &live));
                let beside = Beside {
                    identity: &self.identity,
                    ranked: &ranked,
                    lasts: self.times.lasts,
                    hand_back_delay: self.times.hand_back_delay,
                    is_cut_off,
                    services: of.map_or(0, |of| of.services.len()),
                    wall,
                };
                Some((group.clone(), claim.ask(&beside, Instant::now())?))
            })
            .collect();
        // What is given back is taken back from the workers first.
        self.publish();
        for (group, ask) in asks {
            if writes.len() >= WRITES_MAX
                && let Some(done) = writes.join_next().await
            {
                error = self.written(done.ok()).or(error);
            }
            let (connector, namespace) = (Arc::clone(&self.connector), self.namespace.clone());
            let began = (Instant::now(), self.ownership.now().unwrap_or_default());
            writes.spawn(async move {
                let result = within_max(send(&connector, &namespace, &group, ask)).await;
                Written { group, began, result }
            });
        }
        while let Some(done) = writes.join_next().await {
            error = self.written(done.ok()).or(error);
        }
        error
    }

    fn written(&mut self, done: Option<Written>) -> Option<String> {
        let Written { group, began, result } = done?;
        match result {
            Ok(lease) => {
                let claim = self.claims.get_mut(&group)?;
                let is_new = claim.written(lease, &self.identity, began, self.times.lasts);
                // At once: another write may still take long.
                if !self.ownership.grant(owner_key(&group), claim.until) {
                    claim.refuse(Instant::now());
                    return Some(format!("no room for the VIPs of the Lease {group}: it is given back"));
                }
                if is_new {
                    self.owners.taken.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(lease = group, "this gateway owns the VIPs of the Lease");
                }
                None
            }
            // Another gateway was first. The next look shows it.
            Err(error) if matches!(error.code(), Some(404 | 409)) => None,
            Err(error) => Some(format!("cannot write the Lease {group}: {error}")),
        }
    }

    /// Brings the ownership and the display up to date.
    fn publish(&self) {
        for (group, claim) in &self.claims {
            // There is room: a time that isn't 0 was granted before.
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
            let is_new = **before != now;
            if is_new {
                *before = Arc::new(now);
            }
            is_new
        });
    }

    /// Shows an error, and logs it and its end once.
    fn report(&mut self, error: Option<String>) {
        if error == self.reported {
            return;
        }
        self.owners.trouble.send_replace(error.clone());
        match &error {
            Some(error) => tracing::warn!(
                namespace = self.namespace,
                error,
                "the Leases of VIPs cannot be kept: this gateway stops answering for VIPs when its Leases end"
            ),
            None => tracing::info!(namespace = self.namespace, "the Leases of VIPs can be kept again"),
        }
        self.reported = error;
    }
}

async fn caught_up(is_cut_off: &IsCutOff) {
    while is_cut_off() {
        sleep(TURNS_APART).await;
    }
}

/// The gateways that may own a group, the preferred one first; this gateway, `own`, only if it can serve one of the VIPs.
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
            // One whose list is cut off may lack any.
            _ if one.lacks_more => of.services.len(),
            // Most gateways serve everything.
            true => 0,
            false => of.services.iter().filter(lacks).count(),
        };
        (name.as_str(), lacking)
    });
    ranked(group, others.chain(is_own.then_some((own, of.lacking.len()))))
}

async fn send(connector: &Connector, namespace: &str, group: &str, ask: Ask) -> Result<Lease, RequestError> {
    with_client(connector, |client| async move {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let params = PostParams::default();
        match ask {
            Ask::Create(mut lease) => {
                lease.metadata.name = Some(group.to_owned());
                answered(api.create(&params, &lease)).await
            }
            Ask::Hold(lease) | Ask::GiveBack(lease) => answered(api.replace(group, &params, &lease)).await,
        }
    })
    .await
}

async fn answered<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, RequestError> {
    Ok(request.await?)
}

async fn within_max<T>(request: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    timeout(ANSWER_MAX, request).await.unwrap_or(Err(RequestError::Timeout))
}
