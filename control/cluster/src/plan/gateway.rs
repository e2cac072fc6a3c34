//! Computes this gateway's own status for its `GatewayStatus`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tidegate_model::objects::ObjectKey;
use tidegate_model::time::whole_seconds;
use tidegate_policy::reconcile::view::{BackendViewState, ServiceView};

use super::situation::{DrainPhase, Forwarding, Situation};
use crate::crd;
use crate::reasons::{ConditionReason, ConditionType, condition_reason, condition_type};

/// The maximum number of VIPs in the status: the limit of the schema.
pub(crate) const VIPS_MAX: usize = 1024;
/// The maximum number of the gateway's own addresses in the status.
pub(crate) const ADDRESSES_MAX: usize = 1024;

/// The maximum number of Services that are listed as not fully served or without backends: the limit of the schema.
pub(crate) const SERVICES_MAX: usize = 1024;

/// The status, except for the time of its heartbeat. `before` is the previous one, for the times of conditions.
pub(crate) fn gateway_status(
    situation: &Situation<'_>,
    before: &crd::GatewayStatusStatus,
) -> crd::GatewayStatusStatus {
    let Situation { observation, identity, leads, .. } = situation;
    let forwarding = &observation.forwarding;
    let services = &observation.outcome.services;
    let ports = || services.iter().flat_map(|service| &service.ports);
    let vips = services
        .iter()
        .flat_map(|service| &service.vips)
        .filter(|vip| vip.is_of_pool() && !vip.edge.outside_group);
    let vips: BTreeSet<IpAddr> = vips.map(|vip| vip.address).collect();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let generation = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let listed = |is_listed: &dyn Fn(&ServiceView) -> bool| {
        in_shares(
            services.iter().filter(|service| is_listed(service)).map(|service| key(service)),
            SERVICES_MAX,
        )
    };
    crd::GatewayStatusStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: identity.instance.clone(),
        node: identity.node.clone().unwrap_or_default(),
        labels: observation.own_labels.clone(),
        leader: *leads,
        generation_desired: generation(forwarding.generation_desired),
        generation_applied: generation(forwarding.generation_applied),
        services: count(services.len()),
        services_pending: count(services.iter().filter(|s| s.pending.is_some()).count()),
        backends_up: count(ports().map(|port| port.count(BackendViewState::Active)).sum()),
        backends: count(ports().map(|port| port.backends.len()).sum()),
        source_connected: observation.source_connected,
        last_heartbeat: before.last_heartbeat.clone(),
        vip_count: count(vips.len()),
        vips: vips.iter().take(VIPS_MAX).map(ToString::to_string).collect(),
        addresses: observation.own_addresses.iter().take(ADDRESSES_MAX).map(ToString::to_string).collect(),
        flow_sharing_address: observation
            .own_flow_sharing
            .map(|socket| socket.to_string())
            .unwrap_or_default(),
        // A gateway that forwards for Services unknown to the others can't report that it no longer serves released
        // addresses.
        applied_resource_version: match forwarding.keeps_services {
            false => forwarding.version_applied.to_string(),
            true => 0.to_string(),
        },
        not_programmed: listed(&|service| {
            service.is_refused_in_part() || forwarding.unapplied.contains(&key(service))
        }),
        without_backends: listed(&ServiceView::lacks_backends),
        stopped: false,
        conditions: conditions(situation, &before.conditions),
    }
}

/// At most `max` of these sorted Services. If there are more, namespaces get equal shares. A namespace with fewer
/// Services than its share is listed completely, so that the leader knows of each of them.
fn in_shares(services: impl Iterator<Item = ObjectKey>, max: usize) -> Vec<String> {
    let services: Vec<ObjectKey> = services.collect();
    if services.len() <= max {
        return services.iter().map(ToString::to_string).collect();
    }
    let mut namespaces: Vec<&[ObjectKey]> =
        services.chunk_by(|one, next| one.namespace == next.namespace).collect();
    namespaces.sort_by_key(|of_namespace| of_namespace.len());
    let (mut remaining, mut others) = (max, namespaces.len());
    let mut listed: Vec<&ObjectKey> = Vec::with_capacity(max);
    for of_namespace in namespaces {
        let share = of_namespace.len().min(remaining / others);
        listed.extend(&of_namespace[..share]);
        (remaining, others) = (remaining - share, others - 1);
    }
    listed.sort_unstable();
    listed.into_iter().map(ToString::to_string).collect()
}

fn key(service: &ServiceView) -> ObjectKey {
    ObjectKey::new(service.namespace.as_str(), service.name.as_str())
}

/// The conditions; `before` are the previous ones.
fn conditions(situation: &Situation<'_>, before: &[crd::Condition]) -> Vec<crd::Condition> {
    let Situation { observation, duplicate_name, cannot_lead, now, .. } = situation;
    let Forwarding { ready, publish_failure, links_lost, hung, drain, drain_message, .. } =
        &observation.forwarding;
    let lost = links_lost.join("; ");
    let problems = [links_lost.as_slice(), hung].concat().join("; ");
    let unique = match duplicate_name {
        Some(who) => format!("another process has the name of this gateway: {who}"),
        None => String::new(),
    };
    // The columns: type, whether it is true, the reasons for true and false, message.
    let not_ready = match drain {
        DrainPhase::Serving => condition_reason::NOT_READY,
        DrainPhase::Draining | DrainPhase::Drained => condition_reason::DRAINING,
    };
    let not_drained = match drain {
        DrainPhase::Serving => condition_reason::SERVING,
        DrainPhase::Draining | DrainPhase::Drained => condition_reason::DRAINING,
    };
    let rows: [(ConditionType, bool, [ConditionReason; 2], &str); 7] = [
        (condition_type::READY, *ready, [condition_reason::FORWARDING, not_ready], &problems),
        (
            condition_type::SOURCE_CONNECTED,
            observation.source_connected,
            [condition_reason::CONNECTED, condition_reason::DISCONNECTED],
            "",
        ),
        (
            condition_type::PUBLISHED,
            publish_failure.is_none(),
            [condition_reason::PUBLISHED, condition_reason::PUBLISH_FAILED],
            publish_failure.as_deref().unwrap_or_default(),
        ),
        (
            condition_type::NAME_UNIQUE,
            duplicate_name.is_none(),
            [condition_reason::UNIQUE, condition_reason::NAME_TAKEN],
            &unique,
        ),
        (
            condition_type::CAN_LEAD,
            cannot_lead.is_none(),
            [condition_reason::CANDIDATE, condition_reason::CANNOT_LEAD],
            cannot_lead.unwrap_or_default(),
        ),
        (
            condition_type::INTERFACES_UP,
            links_lost.is_empty(),
            [condition_reason::UP, condition_reason::LINK_LOST],
            &lost,
        ),
        (
            condition_type::DRAINED,
            *drain == DrainPhase::Drained,
            [condition_reason::DRAINED, not_drained],
            drain_message,
        ),
    ];
    // The generation of the object as of the last write.
    let generation = before.first().map_or(0, |condition| condition.observed_generation);
    let condition =
        |(kind, is_true, [yes, no], message): (ConditionType, bool, [ConditionReason; 2], &str)| {
            let kind = kind.as_str();
            let status = if is_true { "True" } else { "False" };
            let previous = before.iter().find(|c| c.kind == kind && c.status == status);
            let since = previous.map(|previous| previous.last_transition_time.clone());
            crd::Condition {
                kind: kind.to_owned(),
                status: status.to_owned(),
                reason: if is_true { yes } else { no }.as_str().to_owned(),
                message: message.to_owned(),
                observed_generation: generation,
                last_transition_time: since.unwrap_or_else(|| whole_seconds(*now).to_string()),
            }
        };
    rows.map(condition).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_many_unserved_services_hides_none_of_another() {
        let of = |namespace: &'static str, count: usize| {
            (0..count).map(move |n| ObjectKey::new(namespace, format!("s{n:05}")))
        };
        let listed =
            |many: usize| in_shares(of("aaa", many).chain(of("shop", 3)).chain(of("zoo", 600)), 1024);
        let few = listed(10);
        assert_eq!((few.len(), few[0].as_str(), few[10].as_str()), (613, "aaa/s00000", "shop/s00000"));
        let many = listed(5_000);
        let count = |namespace: &str| many.iter().filter(|name| name.starts_with(namespace)).count();
        assert_eq!((count("aaa/"), count("shop/"), count("zoo/"), many.len()), (511, 3, 510, 1024));
        assert!(many.is_sorted());
        assert_eq!(
            in_shares((0..2_000).map(|n| ObjectKey::new(format!("n{n:04}"), "web")), 1024).len(),
            1024
        );
    }
}
