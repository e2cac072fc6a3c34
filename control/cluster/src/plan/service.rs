//! Plans the finalizer, status and events of one Service, from its first address until it has none.

use std::net::IpAddr;

use tidegate_model::objects::{Condition, FINALIZER, Ingress, IngressPort, Service, ServicePort};
use tidegate_policy::reconcile::Reason;
use tidegate_policy::reconcile::view::{PortRefusal, PortView, RefusalReason, ServiceView, VipKind};

use super::condition::{self, Circumstances, HEALTHY, OfServiceConditions, PROGRAMMED};
use super::memory::RequestState;
use super::owner::Owners;
use super::peer::{CONFIRM_MAX, Change, Peer, PeerSummary};
use super::planner::Planner;
use super::situation::{OfService, Situation};
use super::status_conflict::{self, StatusOwnership};
use super::stored_condition::{is_ours, same};
use super::write::Write;
use crate::event::Event;
use crate::reasons::{ConditionReason, EventReason, PortError, condition_reason, event_reason, port_error};

/// The reasons why a Service with an address is not served as requested.
const NOT_SERVED: [ConditionReason; 3] = [
    condition_reason::PORTS_NOT_PROGRAMMED,
    condition_reason::NOT_ON_EVERY_GATEWAY,
    condition_reason::GATEWAY_LAGGING,
];

impl Planner<'_> {
    /// Plans for one Service.
    pub(super) fn service(&mut self, of: &OfService<'_>) {
        for finding in of.findings {
            self.event(Event::of_finding(of.regarding(), finding));
        }
        let (service, stored) = (of.service, &of.service.stored);
        if service.meta.deletion_time.is_some() {
            self.deleted(of);
        } else if of.claimed
            && let Some(view) = of.view
        {
            let has_address = view.vips.iter().any(|vip| vip.kind == VipKind::LoadBalancer);
            match (has_address, stored.is_finalized_by_us()) {
                (true, false) => {
                    self.note(of, event_reason::ENSURING, "Ensuring load balancer");
                    self.finalizer(service, true);
                }
                (false, true) => self.lost(of, view),
                _ => self.status(of, view),
            }
        } else if stored.is_finalized_by_us() {
            self.released(of);
        } else if let Some(view) = of.view.filter(|_| !service.external_ips.is_empty()) {
            // Node ports and cluster IPs are served without writing to the status, because the Service may belong to
            // another controller.
            self.status(of, view);
        } else if of.is_written() {
            self.clear(of);
        } else if let Some(gateway) = &of.gateway {
            self.unserved_gateway(of, gateway);
        }
    }

    /// Handles a deleted Service: it is released when no gateway serves it anymore.
    fn deleted(&mut self, of: &OfService<'_>) {
        if !of.service.stored.is_finalized_by_us() {
            return;
        }
        if self.waits_for_others(of.service) {
            return;
        }
        // With a finalizer of another controller, the object stays. Its status must not show an address that another
        // Service may get.
        let stays = of.service.stored.finalizers.iter().any(|finalizer| finalizer != FINALIZER);
        if stays && of.is_written() {
            self.clear(of);
            return;
        }
        self.note(of, event_reason::DELETED, "Deleted load balancer");
        self.finalizer(of.service, false);
    }

    /// Handles a Service that is no longer ours, because its class or type changed. The status is cleared, and the
    /// Service is released when no gateway serves it anymore. External IPs stay.
    fn released(&mut self, of: &OfService<'_>) {
        if self.waits_for_others(of.service) {
            return;
        }
        match of.view {
            Some(view) => self.status(of, view),
            None if of.is_written() => self.clear(of),
            None => {}
        }
        // The finalizer is removed only after the status is correct, so that we are always responsible for an address
        // in a status.
        if !of.has_ingress_of_ours() && (of.view.is_some() || !of.is_written()) {
            self.finalizer(of.service, false);
        }
    }

    /// Handles a Service that requests an address but may no longer have one, because its pool or its namespace
    /// changed. The status shows this, and the Service is released when no gateway serves the address anymore.
    fn lost(&mut self, of: &OfService<'_>, view: &ServiceView) {
        self.status(of, view);
        if of.has_ingress_of_ours() {
            // The other gateways serve the address as long as it is in the status.
            return;
        }
        if !self.waits_for_others(of.service) {
            self.finalizer(of.service, false);
        }
    }

    /// Whether other gateways may still serve a Service that releases its addresses.
    fn waits_for_others(&mut self, service: &Service) -> bool {
        match self.serves_until(service) {
            Some(version) => {
                self.plan.waits_for_peers = true;
                self.waits(service, version);
                true
            }
            None => {
                self.memory.waiting.remove(&service.meta.key);
                false
            }
        }
    }

    /// Removes our part of a status.
    fn clear(&mut self, of: &OfService<'_>) {
        self.note(of, event_reason::CLEAR_ASSIGNMENT, "Released the address");
        if let Some(gateway) = &of.gateway {
            return self.cleared_gateway(of, gateway);
        }
        self.remove_times(&of.service.meta.key);
        self.plan.writes.push(Write::ServiceStatus {
            service: of.service.meta.key.clone(),
            uid: of.service.meta.uid.clone(),
            ingress: None,
            conditions: Vec::new(),
        });
    }

    /// Plans the status and conditions of a Service that requests an address.
    fn status(&mut self, of: &OfService<'_>, view: &ServiceView) {
        let (service, stored) = (of.service, &of.service.stored);
        let key = &service.meta.key;
        // The API allows ingress entries only with type LoadBalancer, and we write them only with our class.
        let knows_ip_mode = !self.memory.without_ip_mode;
        let wanted = if of.claimed { ingress(service, view, knows_ip_mode) } else { Vec::new() };
        let RequestState { what, change, .. } = *self.requests(service);
        let Situation { now, peers, polled, .. } = *self.situation;
        let mut contested = None;
        if !wanted.is_empty() {
            let conflicts = &mut self.memory.conflicts;
            let ownership = status_conflict::ownership(conflicts, service, &wanted, what, now);
            status_conflict::written_again(conflicts, service, &wanted);
            if let StatusOwnership::Yields { who, until } = ownership {
                self.plan_again_at(until);
                contested = Some(who);
            }
        }
        let contested = contested.as_deref();
        let of_group: Vec<Peer> =
            peers.iter().filter(|peer| self.groups.has(&peer.name, view)).cloned().collect();
        let is_member = self.groups.has(&self.situation.identity.name, view);
        let peer_summary = PeerSummary::new(&of_group, is_member, polled, key, change);
        if peer_summary.is_unconfirmed {
            self.confirm(change);
        }
        let owners = Owners::new(self.situation, view, &of_group, is_member);
        let lacking = self.groups.lacking(view).or(owners.lacking);
        if let Some(why) = &lacking {
            self.note(of, event_reason::NO_GATEWAY, why);
        }
        let failure = self.situation.observation.forwarding.publish_failure.as_deref();
        let waits_for = self.address_waits_for(of, view);
        let (waits_for, lacking) = (waits_for.as_deref(), lacking.as_deref());
        let owners = owners.shown.as_str();
        let circumstances =
            Circumstances { peer_summary: &peer_summary, failure, waits_for, lacking, owners };
        let new = condition::of_service(of, view, contested, &circumstances);
        let holdings = self.situation.observation.outcome.memory.allocations.by_service.get(key);
        let record = condition::allocation_record(holdings, view);
        self.record_events(of, view, &wanted, &new, contested);
        if let Some(gateway) = &of.gateway {
            return self.served_gateway(of, gateway, view, &wanted, new, record);
        }
        let OfServiceConditions { allocated, programmed, healthy, conflicted } = new;
        let conditions: Vec<Condition> = [allocated, programmed, healthy, conflicted]
            .into_iter()
            .chain(record)
            .map(|new| self.dated(key, &stored.conditions, new, stored.generation))
            .collect();
        let writes_ingress = contested.is_none() && !wanted.is_empty();
        let has_ingress_of_ours = of.has_ingress_of_ours() && !stored.ingress.is_empty();
        let ingress_differs = if writes_ingress {
            stored.ingress != wanted
        } else {
            contested.is_none() && has_ingress_of_ours
        };
        if ingress_differs || !same(&stored.conditions, &conditions, is_ours) {
            self.plan.writes.push(Write::ServiceStatus {
                service: key.clone(),
                uid: service.meta.uid.clone(),
                ingress: writes_ingress.then_some(wanted),
                conditions,
            });
        }
    }

    /// Polls the other gateways again once the time for confirming a change is over.
    fn confirm(&mut self, change: Change) {
        let due = change.since + CONFIRM_MAX;
        match due > self.situation.now {
            true => self.plan_again_at(due),
            false => self.plan.waits_for_peers = true,
        }
    }

    /// The gateways that a Service waits for because they may still serve the address that it will get.
    fn address_waits_for(&mut self, of: &OfService<'_>, view: &ServiceView) -> Option<String> {
        let observation = self.situation.observation;
        let failed = of.findings.iter().any(|f| f.reason == Reason::AllocationFailed);
        let version = observation.waits_for.filter(|_| of.claimed && view.pending.is_some() && !failed);
        match version {
            Some(version) => self.waits(of.service, version),
            None => {
                if view.pending.is_none() {
                    self.memory.waiting.remove(&of.service.meta.key);
                }
                None
            }
        }
    }

    /// Plans the events of pending changes. An event is planned again until the stored object shows the change, but
    /// written only once.
    fn record_events(
        &mut self,
        of: &OfService<'_>,
        view: &ServiceView,
        wanted: &[Ingress],
        new: &OfServiceConditions,
        contested: Option<&str>,
    ) {
        let stored = &of.service.stored;
        if let Some(who) = contested {
            let note = format!(
                "Field manager {who:?} also writes status.loadBalancer of this Service. The gateways leave it unchanged for \
                 now; only one controller should implement spec.loadBalancerClass {:?}",
                of.service.load_balancer_class.as_deref().unwrap_or_default()
            );
            return self.note(of, event_reason::CONFLICTING, &note);
        }
        let is_new = |ingress: &Ingress| !stored.ingress.iter().any(|old| old.ip == ingress.ip);
        for ip in wanted.iter().filter(|ingress| is_new(ingress)).filter_map(|ingress| ingress.ip) {
            let pool = view.vips.iter().find(|vip| vip.address == ip).map_or("", |vip| vip.pool.as_str());
            let note = format!("Assigned IP {ip} from pool {pool}");
            self.note(of, event_reason::IP_ALLOCATED, &note);
        }
        let ours = of.has_ingress_of_ours();
        if wanted.is_empty() && ours && !stored.ingress.is_empty() {
            let why = view.pending.as_deref().unwrap_or("the Service no longer requests one");
            let note = format!("Released the address: {why}");
            self.note(of, event_reason::CLEAR_ASSIGNMENT, &note);
        } else if ours {
            let assigned: Vec<String> = wanted.iter().filter_map(|w| w.ip).map(|ip| ip.to_string()).collect();
            let is_gone = |ip: &IpAddr| !wanted.iter().any(|ingress| ingress.ip == Some(*ip));
            for ip in stored.ingress.iter().filter_map(|old| old.ip).filter(is_gone) {
                let note =
                    format!("The address {ip} is released: the Service now has {}", assigned.join(", "));
                self.note(of, event_reason::CLEAR_ASSIGNMENT, &note);
            }
        }
        let was = |kind: &str| stored.condition(kind).map_or("", |condition| condition.status.as_str());
        let was_programmed = was(if of.gateway.is_some() { "Programmed" } else { PROGRAMMED });
        let OfServiceConditions { programmed, healthy, .. } = new;
        if programmed.status == "True" {
            let of_pools = view.vips.iter().filter(|vip| vip.is_of_pool());
            let ips: Vec<String> = of_pools.map(|vip| vip.address.to_string()).collect();
            let ips = ips.join(", ");
            if was_programmed != "True" {
                self.note(of, event_reason::ENSURED, &format!("Ensured load balancer: {ips}"));
            } else if self.requests(of.service).is_unreported {
                self.note(of, event_reason::UPDATED, &format!("Updated load balancer: {ips}"));
            }
            self.requests(of.service).is_unreported = false;
        } else if NOT_SERVED.contains(&programmed.reason) && was_programmed != "False" {
            self.note(of, event_reason::SYNC_FAILED, &programmed.message);
        }
        if healthy.status == "False" && was(HEALTHY) != "False" {
            self.note(of, event_reason::UNAVAILABLE, &healthy.message);
        }
    }

    fn finalizer(&mut self, service: &Service, present: bool) {
        let (key, uid) = (service.meta.key.clone(), service.meta.uid.clone());
        self.plan.writes.push(Write::Finalizer { service: key, uid, present });
    }

    fn note(&mut self, of: &OfService<'_>, reason: EventReason, note: &str) {
        self.event(Event::new(of.regarding(), reason, note));
    }
}

/// `status.loadBalancer.ingress`: one entry for each address. Ports are listed if one of them is not served.
fn ingress(service: &Service, view: &ServiceView, knows_ip_mode: bool) -> Vec<Ingress> {
    // dsr-dscp replaces the VIP with the address of the backend.
    let keeps_vip = view.mode.is_some_and(|mode| mode.is_dsr() && !mode.changes_addresses());
    let vips = view.vips.iter().filter(|vip| vip.kind == VipKind::LoadBalancer);
    vips.map(|vip| {
        let ports: Vec<_> = view.ports.iter().filter(|port| port.vip == vip.address).collect();
        let any_refused = ports.iter().any(|port| port.refused.is_some());
        let status = |port: &&PortView| IngressPort {
            port: port.port,
            protocol: port.protocol.to_string(),
            error: port.refused.as_ref().map(|refusal| error_of(refusal).as_str().to_owned()),
        };
        let not_programmed = |port: &ServicePort| IngressPort {
            port: port.port.get(),
            protocol: port.protocol.to_string(),
            error: Some(port_error::PORT_NOT_PROGRAMMED.as_str().to_owned()),
        };
        Ingress {
            ip: Some(vip.address),
            hostname: None,
            ip_mode: knows_ip_mode.then(|| if keeps_vip { "VIP" } else { "Proxy" }.to_owned()),
            // Either all ports of the Service have an entry, or none does.
            ports: match &view.refused {
                // The view of a Service that is refused as a whole has no ports.
                Some(_) => service.ports.iter().map(not_programmed).collect(),
                None if any_refused => ports.iter().map(status).collect(),
                None => Vec::new(),
            },
        }
    })
    .collect()
}

/// The error name for a port that is not served.
fn error_of(refusal: &PortRefusal) -> PortError {
    match refusal.reason {
        RefusalReason::NotSupported => port_error::NOT_SUPPORTED,
        RefusalReason::Conflict => port_error::CONFLICT,
        RefusalReason::NotProgrammed => port_error::PORT_NOT_PROGRAMMED,
    }
}
