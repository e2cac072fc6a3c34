//! Which VIPs this gateway answers for on layer 2, where several gateways are on one link: by Leases, or by VRRP.
//!
//! The controller passes each round; `announce.l2.mode` selects what updates the ownership in the dataplane. With
//! `always` and `off`, nothing updates it, because no VIP has an owner.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Context;
use tidegate_cluster::ClusterWriter;
use tidegate_cluster::layer2::{Keeper, LeaseTimes, Owners, Wanted};
use tidegate_cluster::plan::LeaseHolders;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_model::config::{GatewayConfig, Layer2Mode};
use tidegate_model::objects::Labels;
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_policy::reconcile::{Outcome, owner_groups, owner_key};
use tidegate_source::kubernetes::Connector;
use tidegate_spec::ownership::{BootTime, Ownership};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::vrrp::Vrrp;
use crate::telemetry::Layer2Counts;

/// How much shorter a Lease is than the time within which another gateway takes over: that gateway checks only once a
/// second, and needs a moment for its first answer.
const TAKEOVER_ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(2);

/// The keeper of the ownership, if any.
pub(super) enum Layer2 {
    /// No VIP has an owner.
    None,
    /// By Leases.
    Lease(Keeper),
    /// By keepalived.
    Vrrp(Arc<Vrrp>),
}

/// The VIPs that this gateway cannot serve and so does not answer for, kept to log each change once.
#[derive(Debug, Default)]
pub(super) struct Unable(BTreeMap<IpAddr, String>);

impl Unable {
    /// Logs the changes of a round. With Leases, another gateway answers for these VIPs instead.
    pub(super) fn log(&mut self, outcome: &Outcome, mode: Layer2Mode) {
        let mut able: BTreeSet<IpAddr> = BTreeSet::new();
        let mut unable: BTreeMap<IpAddr, String> = BTreeMap::new();
        for service in &outcome.services {
            for vip in service.vips.iter().filter(|vip| vip.edge.layer2) {
                match &vip.edge.unable {
                    Some(why) => unable.insert(vip.address, why.clone()).is_some(),
                    None => able.insert(vip.address),
                };
            }
        }
        // One Service that can be served is enough.
        unable.retain(|vip, _| !able.contains(vip));
        for (vip, reason) in unable.iter().filter(|(vip, _)| !self.0.contains_key(*vip)) {
            let what = "this gateway cannot serve a VIP and does not answer for it on layer 2";
            match mode {
                Layer2Mode::Lease => tracing::info!(%vip, reason, "{what}"),
                _ => tracing::warn!(%vip, reason, "{what}"),
            }
        }
        for vip in self.0.keys().filter(|vip| !unable.contains_key(*vip)) {
            tracing::info!(%vip, "this gateway can serve the VIP again, or the VIP is no longer announced on layer 2");
        }
        self.0 = unable;
    }
}

/// What other tasks read and call.
#[derive(Debug, Clone)]
pub(super) struct Layer2View {
    ownership: Arc<Ownership>,
    owners: Option<Arc<Owners>>,
    vrrp: Option<Arc<Vrrp>>,
}

impl Layer2 {
    /// Starts the configured keeper. `is_cut_off` returns whether other gateways may serve the VIPs and this one has
    /// not received their flows yet.
    ///
    /// # Errors
    /// If the FIFO of keepalived cannot be created.
    pub(super) fn start(
        config: &GatewayConfig,
        cluster: Option<(&ClusterWriter, Arc<Connector>)>,
        ownership: &Arc<Ownership>,
        is_cut_off: impl Fn() -> bool + Send + Sync + 'static,
    ) -> anyhow::Result<(Self, Layer2View)> {
        let l2 = &config.announce.l2;
        let mut view = Layer2View { ownership: Arc::clone(ownership), owners: None, vrrp: None };
        let keeper = match (l2.mode, cluster) {
            (Layer2Mode::Vrrp, _) => {
                let started = Vrrp::start(&l2.vrrp, Arc::clone(ownership));
                let fifo = l2.vrrp.fifo.display();
                let vrrp = started.with_context(|| format!("announce.l2.vrrp.fifo: cannot use {fifo}"))?;
                let vrrp = Arc::new(vrrp);
                view.vrrp = Some(Arc::clone(&vrrp));
                Self::Vrrp(vrrp)
            }
            (Layer2Mode::Lease, Some((cluster, connector))) => {
                let lasts = l2.lease.takeover.saturating_sub(TAKEOVER_ALLOWANCE);
                // A Lease has whole seconds.
                let lasts = std::time::Duration::from_secs(lasts.as_secs().max(1));
                let times = LeaseTimes { duration: lasts, hand_back_delay: l2.lease.hand_back_delay };
                let keeper = Keeper::start(
                    connector,
                    &l2.lease.namespace,
                    cluster.holder(),
                    times,
                    cluster.peer_releases(),
                    Arc::clone(ownership),
                    Box::new(is_cut_off),
                );
                view.owners = Some(Arc::clone(keeper.owners()));
                Self::Lease(keeper)
            }
            // A configuration with Leases but without an API server is refused.
            _ => Self::None,
        };
        Ok((keeper, view))
    }

    /// The task that keeps the ownership, to check whether it has ended.
    pub(super) fn task(&self) -> Option<AbortHandle> {
        match self {
            Self::None => None,
            Self::Lease(keeper) => Some(keeper.task()),
            Self::Vrrp(vrrp) => Some(vrrp.task()),
        }
    }

    /// Passes a round that the workers have applied or will apply soon. `can_forward`: whether this gateway may own
    /// VIPs.
    pub(super) fn round(&self, outcome: &Outcome, own_labels: &Labels, can_forward: bool) {
        if let Self::Lease(keeper) = self {
            let groups = owner_groups(outcome);
            keeper.want(Wanted { groups, own_labels: own_labels.clone(), eligible: can_forward });
        }
    }

    /// The holders of Leases as last seen.
    pub(super) fn holders(&self) -> watch::Receiver<Arc<LeaseHolders>> {
        match self {
            Self::Lease(keeper) => keeper.owners().changes(),
            Self::None | Self::Vrrp(_) => watch::Sender::new(Arc::default()).subscribe(),
        }
    }

    /// Releases all VIPs for good, and lets other gateways know.
    pub(super) async fn leave(&self) {
        match self {
            Self::None => {}
            Self::Lease(keeper) => keeper.shut_down().await,
            Self::Vrrp(vrrp) => vrrp.leave(),
        }
    }
}

impl Layer2View {
    /// Records a check of keepalived. Returns why it fails, if it does.
    pub(super) fn vrrp_check(
        &self,
        began: BootTime,
        not_ready: Option<String>,
        is_cut_off: bool,
    ) -> Result<(), String> {
        let Some(vrrp) = &self.vrrp else {
            return Err("the gateway does not use VRRP; accepted: announce.l2.mode: vrrp".to_owned());
        };
        vrrp.check(began, not_ready, is_cut_off).map_or(Ok(()), Err)
    }

    /// Adds the current owner of each address to a Service.
    pub(super) fn complete(&self, service: &mut ServiceView) {
        let holders = self.owners.as_ref().map(|owners| owners.holders());
        for vip in &mut service.vips {
            let Some(group) = &vip.edge.owner else { continue };
            let is_own = self.ownership.owns(owner_key(group));
            let holder = holders.as_ref().and_then(|holders| holders.get(group).cloned().flatten());
            vip.edge.owned_by = match (is_own, holder) {
                (true, _) => Some("this gateway".to_owned()),
                (false, Some(holder)) => Some(holder),
                (false, None) if self.vrrp.is_some() => Some("another gateway".to_owned()),
                (false, None) => None,
            };
        }
    }

    /// The groups with their owners or states, for `tidegate status`.
    pub(super) fn groups(&self) -> BTreeMap<String, String> {
        let holders = self.owners.as_ref().map(|owners| owners.holders()).unwrap_or_default();
        let is_old = self.owners.as_ref().is_some_and(|owners| owners.failure().is_some());
        let by_lease = holders.iter().map(|(group, holder)| {
            let holder = holder.clone().unwrap_or_else(|| "nobody".to_owned());
            let is_seen = is_old && !self.ownership.owns(owner_key(group));
            (group.clone(), if is_seen { format!("{holder} (as last seen)") } else { holder })
        });
        let states = self.vrrp.iter().flat_map(|vrrp| vrrp.states());
        by_lease.chain(states.map(|(group, state)| (group, state.to_owned()))).collect()
    }

    /// Why VIPs may have no owner, as text for display.
    pub(super) fn troubles(&self, dataplane: &Dataplane) -> Vec<String> {
        let lease = self.owners.iter().filter_map(|owners| owners.failure());
        let lease = lease.map(|why| format!("layer 2: {why}"));
        let states = self.vrrp.iter().flat_map(|vrrp| vrrp.states());
        let silent =
            states.filter(|(group, state)| *state == "master" && !self.ownership.owns(owner_key(group)));
        let vrrp = silent.map(|(group, _)| {
            format!(
                "layer 2: VRRP group {group}: keepalived reports master here but has not run `tidegate vrrp-check` \
                 within announce.l2.vrrp.heartbeatTimeout, so the gateway does not answer for its VIPs"
            )
        });
        let faults = self.vrrp.iter().flat_map(|vrrp| vrrp.faults(&dataplane.advertised()));
        lease.chain(vrrp).chain(faults).collect()
    }

    /// Counts for metrics; `None` if no VIP has an owner.
    pub(super) fn counts(&self) -> Option<Layer2Counts> {
        if self.owners.is_none() && self.vrrp.is_none() {
            return None;
        }
        let groups = self.groups();
        let owned = groups.keys().filter(|group| self.ownership.owns(owner_key(group))).count();
        let count = |read: fn(&Owners) -> u64| self.owners.as_ref().map_or(0, |owners| read(owners));
        Some(Layer2Counts {
            owned: owned as u64,
            groups: groups.len() as u64,
            taken: count(|owners| owners.taken.load(Ordering::Relaxed)),
            failures: count(|owners| owners.failures.load(Ordering::Relaxed)),
        })
    }
}
