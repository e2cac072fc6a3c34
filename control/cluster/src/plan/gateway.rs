//! Computes this gateway's own status for its `GatewayStatus`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_model::objects::{Condition, ObjectKey};
use tidegate_model::time::whole_seconds;
use tidegate_policy::reconcile::view::{BackendViewState, ServiceView};

use super::pool::of_model;
use super::situation::Situation;
use crate::crd;
use crate::words::{ConditionReason, ConditionType, condition_reason, condition_type};

/// VIPs that are listed at most, for people to look at: as many as the schema takes.
pub const VIPS_MAX: usize = 1024;
/// Own addresses that are listed at most.
pub const ADDRESSES_MAX: usize = 1024;

/// Services of which something is not served, or without backends, that are listed at most: as many as the schema takes.
pub const SERVICES_MAX: usize = 1024;

/// The status, except for the time of its heartbeat. `before` is the previous one, for the times of conditions.
#[must_use]
pub fn gateway_status(
    situation: &Situation<'_>,
    before: &crd::GatewayStatusStatus,
) -> crd::GatewayStatusStatus {
    let Situation { observation, identity, leads, now, namesake, hindrance, .. } = situation;
    let outcome = &observation.outcome;
    let ports = || outcome.services.iter().flat_map(|service| &service.ports);
    let vips = outcome.services.iter().flat_map(|service| &service.vips).filter(|vip| vip.is_of_pool());
    let vips: BTreeSet<IpAddr> = vips.map(|vip| vip.address).collect();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let generation = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let lost = observation.links_lost.join("; ");
    let condition = |kind: ConditionType, holds: bool, [yes, no]: [ConditionReason; 2], message: &str| {
        let kind = kind.as_str();
        let status = if holds { "True" } else { "False" };
        let had = before.conditions.iter().find(|c| c.kind == kind && c.status == status);
        let mut condition = of_model(&Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: if holds { yes } else { no }.as_str().to_owned(),
            message: message.to_owned(),
            observed_generation: 0,
            last_transition: Some(whole_seconds(*now)),
        });
        if let Some(had) = had {
            condition.last_transition_time.clone_from(&had.last_transition_time);
        }
        condition
    };
    let key = |service: &ServiceView| ObjectKey::new(service.namespace.as_str(), service.name.as_str());
    let is_unserved = |service: &ServiceView| {
        service.refused.is_some()
            || service.ports.iter().any(|port| port.refused.is_some())
            || observation.unapplied.contains(&key(service))
    };
    let lacks_backends = |service: &ServiceView| {
        let served = service.ports.iter().filter(|port| port.refused.is_none());
        // Per port, whatever its addresses.
        let mut up: BTreeMap<(u16, _), bool> = BTreeMap::new();
        for port in served {
            *up.entry((port.port, port.protocol)).or_default() |= port.count(BackendViewState::Active) > 0;
        }
        up.values().any(|up| !up)
    };
    let listed = |is: &dyn Fn(&ServiceView) -> bool| {
        let services = outcome.services.iter().filter(|service| is(service));
        services.map(|service| key(service).to_string()).take(SERVICES_MAX).collect::<Vec<_>>()
    };
    let failure = observation.publish_failure.as_deref();
    let unique = match namesake {
        Some(who) => format!("another process has the name of this gateway: {who}"),
        None => String::new(),
    };
    crd::GatewayStatusStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: identity.instance.clone(),
        node: identity.node.clone().unwrap_or_default(),
        leader: *leads,
        generation_desired: generation(observation.generation_desired),
        generation_applied: generation(observation.generation_applied),
        services: count(outcome.services.len()),
        services_pending: count(outcome.services.iter().filter(|s| s.pending.is_some()).count()),
        backends_up: count(ports().map(|port| port.count(BackendViewState::Active)).sum()),
        backends: count(ports().map(|port| port.backends.len()).sum()),
        source_connected: observation.source_connected,
        last_heartbeat: before.last_heartbeat.clone(),
        vip_count: count(vips.len()),
        vips: vips.iter().take(VIPS_MAX).map(ToString::to_string).collect(),
        addresses: observation.own_addresses.iter().take(ADDRESSES_MAX).map(ToString::to_string).collect(),
        // Who forwards by what nobody else may know of cannot say that it serves nothing that was given back.
        applied_resource_version: match observation.keeps_services {
            false => observation.version_applied.to_string(),
            true => 0.to_string(),
        },
        not_programmed: listed(&is_unserved),
        without_backends: listed(&lacks_backends),
        stopped: false,
        conditions: vec![
            condition(
                condition_type::READY,
                observation.ready,
                [condition_reason::FORWARDING, condition_reason::NOT_READY],
                &lost,
            ),
            condition(
                condition_type::SOURCE_CONNECTED,
                observation.source_connected,
                [condition_reason::CONNECTED, condition_reason::DISCONNECTED],
                "",
            ),
            condition(
                condition_type::PUBLISHED,
                failure.is_none(),
                [condition_reason::PUBLISHED, condition_reason::PUBLISH_FAILED],
                failure.unwrap_or_default(),
            ),
            condition(
                condition_type::NAME_UNIQUE,
                namesake.is_none(),
                [condition_reason::UNIQUE, condition_reason::NAME_TAKEN],
                &unique,
            ),
            condition(
                condition_type::CAN_LEAD,
                hindrance.is_none(),
                [condition_reason::CANDIDATE, condition_reason::CANNOT_LEAD],
                hindrance.unwrap_or_default(),
            ),
            condition(
                condition_type::INTERFACES_UP,
                observation.links_lost.is_empty(),
                [condition_reason::UP, condition_reason::LINK_LOST],
                &lost,
            ),
        ],
    }
}
