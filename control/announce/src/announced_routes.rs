//! The latest announcement decision and the routes that result from it.
//!
//! Invariant: the decision is recomputed only when its inputs have changed or a damping delay has expired.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_model::config::AnnounceConfig;
use tidegate_policy::reconcile::view::ServiceView;

use crate::damping::Damping;
use crate::decide::{self, Gateway, Input, Vip, Withheld};
use crate::inputs::Round;
use crate::routes::{Routes, outside_of_pools, routes};
use crate::snat::{self, SnatRoutes};

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
            record_gateway(gateway, self.announced.len());
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
        for &vip in self.announced.difference(&next) {
            self.damping.withdrawn(vip, now);
            if gateway.withheld().is_none() {
                record_withdrawn(vip, vips.get(&vip).and_then(|vip| vip.withheld), round);
            }
        }
        for &vip in next.difference(&self.announced) {
            self.damping.announced(vip, now);
            if self.vips.get(&vip).is_some_and(|vip| vip.withheld.is_some()) && gateway.withheld().is_none() {
                record(Reason::VipAnnounced, vip, "announced the VIP", "", round);
            }
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

/// Records that all of these VIPs are withdrawn because of the gateway, or announced again.
fn record_gateway(gateway: Gateway, vips: usize) {
    match gateway.withheld() {
        Some(_) if vips == 0 => {}
        Some(reason) => {
            let event = Event::of_gateway(Reason::VipsWithdrawn, "withdrew all VIPs");
            tidegate_events::record(
                event.text(Field::Reason, reason.as_str()).number(Field::Vips, vips as u64),
            );
        }
        None => tidegate_events::record(Event::of_gateway(Reason::VipsAnnounced, "announcing VIPs again")),
    }
}

/// Records that a VIP is withdrawn. If its Service no longer has it, the event of the Service says so.
fn record_withdrawn(vip: IpAddr, why: Option<Withheld>, round: &Round) {
    match why {
        Some(why) => record(Reason::VipWithdrawn, vip, "withdrew the VIP", why.as_str(), round),
        None => tracing::debug!(%vip, "withdrew the released VIP"),
    }
}

fn record(reason: Reason, vip: IpAddr, message: &str, why: &str, round: &Round) {
    let event = Event::new(reason, ObjectKind::Vip, &vip.to_string(), message).text(Field::Reason, why);
    let has_vip = |service: &ServiceView| service.vips.iter().any(|one| one.address == vip);
    tidegate_events::record(match round.outcome.services.iter().find(|service| has_vip(service)) {
        Some(service) => event.of_service(&service.namespace, &service.name),
        None => event,
    });
}
