//! The latest announcement decision and the routes that result from it.
//!
//! Invariant: the decision is recomputed only when its inputs have changed or a damping delay has expired.

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

/// How many of the VIPs that are withdrawn together are named in the log.
const NAMED_IN_LOG: usize = 10;

/// The latest decision.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    damping: Damping,
    /// The VIPs that are announced.
    pub(crate) announced: BTreeSet<IpAddr>,
    /// The inputs of the latest decision: the change counter and the gateway's state.
    made_from: Option<(u64, Gateway)>,
    /// When the next damping delay expires, which changes the decision without any new input.
    due: Option<Instant>,
    pub(crate) vips: BTreeMap<IpAddr, Vip>,
    /// The routes for BIRD.
    pub(crate) routes: Routes,
    /// The routes among them that are a last resort.
    pub(crate) last_resort: BTreeSet<IpNet>,
    /// The aggregates that are not announced because they contain no address of any pool.
    pub(crate) outside: BTreeSet<IpNet>,
    /// The routes for the kernel.
    pub(crate) kernel_routes: Routes,
    /// Counts decisions.
    pub(crate) number: u64,
}

impl Decision {
    /// Announces nothing: no announcements are configured.
    pub(crate) fn clear(&mut self) {
        self.announced.clear();
        self.vips.clear();
        self.routes.clear();
        self.kernel_routes.clear();
        (self.made_from, self.due) = (None, None);
    }

    /// Recomputes the decision if an input has changed or a damping delay has expired.
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
                    tracing::warn!(%reason, vips = self.announced.len(), "withdrew all VIPs");
                }
                None => tracing::info!("announcing VIPs again"),
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
                tracing::info!(%vip, reason, "withdrew the VIP");
            }
        }
        let withdrawn = self.announced.difference(&next).count();
        if gateway.withheld().is_none() && withdrawn > NAMED_IN_LOG {
            tracing::info!(
                vips = withdrawn - NAMED_IN_LOG,
                "withdrew further VIPs; not logging each of them"
            );
        }
        for &vip in next.difference(&self.announced) {
            self.damping.announced(vip, now);
            tracing::debug!(%vip, "announced the VIP");
        }
        self.damping.forget(now);
        self.announced = next;
        self.number += 1;
        let outside = outside_of_pools(config, &round.outcome.pools);
        if outside != self.outside {
            for aggregate in &outside {
                tracing::warn!(%aggregate, "not announcing the aggregate: it contains no address of any pool");
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
