//! The last decision about what is announced, and the routes that follow from it.
//!
//! Invariant: a decision is made again only if its inputs have changed, or when a VIP has waited long enough.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use tidegate_model::config::AnnounceConfig;

use crate::damping::Damping;
use crate::decide::{self, Gateway, Input, Vip, Withheld};
use crate::inputs::Round;
use crate::routes::{Routes, outside_of_pools, routes};
use crate::snat::{self, SnatRoutes};

/// How many of the VIPs that are withdrawn at once are named in the log.
const NAMED_IN_LOG: usize = 10;

/// The last decision.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    damping: Damping,
    /// The VIPs that were announced last.
    pub(crate) announced: BTreeSet<IpAddr>,
    /// What the last decision was made from: the number of changes, and the gateway's state.
    made_from: Option<(u64, Gateway)>,
    /// When the decision changes by itself, because a VIP has waited long enough.
    due: Option<Instant>,
    pub(crate) vips: BTreeMap<IpAddr, Vip>,
    /// The routes for BIRD.
    pub(crate) routes: Routes,
    /// Those of them that are the last resort.
    pub(crate) last_resort: BTreeSet<IpNet>,
    /// The aggregates that are not announced, because no pool has an address of them.
    pub(crate) outside: BTreeSet<IpNet>,
    /// The routes for the kernel.
    pub(crate) kernel_routes: Routes,
    /// Counts decisions.
    pub(crate) number: u64,
}

impl Decision {
    /// Announces nothing: the configuration says so.
    pub(crate) fn clear(&mut self) {
        self.announced.clear();
        self.vips.clear();
        self.routes.clear();
        self.kernel_routes.clear();
        (self.made_from, self.due) = (None, None);
    }

    /// Decides again, if something has changed since the last decision or a VIP has waited long enough.
    pub(crate) fn decide(
        &mut self,
        config: &AnnounceConfig,
        (round, snat): (&Round, &SnatRoutes),
        gateway: Gateway,
        changes: u64,
        now: Instant,
    ) {
        let is_due = self.due.is_some_and(|at| at <= now);
        if self.made_from == Some((changes, gateway)) && !is_due {
            return;
        }
        if let Some((_, before)) = self.made_from
            && before.withheld() != gateway.withheld()
        {
            match gateway.withheld() {
                Some(_) if self.announced.is_empty() => {}
                Some(reason) => {
                    tracing::warn!(%reason, vips = self.announced.len(), "all VIPs are withdrawn");
                }
                None => tracing::info!("VIPs are announced again"),
            }
        }
        self.made_from = Some((changes, gateway));
        let announced = &self.announced;
        let mut vips = decide::decide(&Input {
            services: &round.outcome.services,
            unapplied: &round.unapplied,
            serves: &*round.serves,
            gateway,
            announced: &|vip| announced.contains(&vip),
            pools: &round.outcome.pools,
        });
        self.due = None;
        for (&address, vip) in &mut vips {
            if vip.withheld.is_none()
                && !self.announced.contains(&address)
                && let Some(until) = self.damping.until(address, now)
            {
                vip.withheld = Some(Withheld::Flapping);
                self.due = Some(self.due.map_or(until, |at| at.min(until)));
            }
        }
        let announces = |vip: &Vip| vip.withheld.is_none();
        let next: BTreeSet<IpAddr> =
            vips.iter().filter(|(_, vip)| announces(vip)).map(|(&address, _)| address).collect();
        for (n, &vip) in self.announced.difference(&next).enumerate() {
            self.damping.withdrawn(vip, now);
            if gateway.withheld().is_none() && n < NAMED_IN_LOG {
                let reason = vips.get(&vip).and_then(|vip| vip.withheld).map_or("released", Withheld::as_str);
                tracing::info!(%vip, reason, "the VIP is withdrawn");
            }
        }
        let withdrawn = self.announced.difference(&next).count();
        if gateway.withheld().is_none() && withdrawn > NAMED_IN_LOG {
            tracing::info!(vips = withdrawn - NAMED_IN_LOG, "more VIPs are withdrawn");
        }
        for &vip in next.difference(&self.announced) {
            self.damping.announced(vip, now);
            tracing::debug!(%vip, "the VIP is announced");
        }
        self.damping.forget(now);
        self.announced = next;
        self.number += 1;
        let outside = outside_of_pools(config, &round.outcome.pools);
        if outside != self.outside {
            for aggregate in &outside {
                tracing::warn!(%aggregate, "the aggregate is not announced: no pool has an address of it");
            }
            self.outside = outside;
        }
        self.routes = routes(&vips, config, &round.outcome.pools, &self.outside);
        self.kernel_routes = if config.kernel_routes.is_some() { self.routes.clone() } else { Routes::new() };
        self.add_snat(snat, gateway);
        self.vips = vips;
    }

    /// Adds the routes to SNAT addresses.
    pub(crate) fn add_snat(&mut self, snat: &SnatRoutes, gateway: Gateway) {
        snat::add(snat, gateway, &mut self.routes, &mut self.kernel_routes);
        self.last_resort = snat::last_resort(snat);
    }
}
