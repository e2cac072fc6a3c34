//! Computes the conditions of a Service from the Service and its view.
//!
//! Reasons are for programs, messages for users. Both remain unchanged while nothing relevant changes; for example, a
//! changing number of backends causes no write.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_policy::pools::{Holdings, OwnedAddress, record};
use tidegate_policy::reconcile::Reason;
use tidegate_policy::reconcile::view::{BackendViewState, PortView, ServiceView, VipKind, VipView};

use super::peer::PeerSummary;
use super::situation::OfService;
use crate::reasons::{ConditionReason, ConditionType, condition_reason, condition_type};
pub(super) use tidegate_policy::pools::ALLOCATED;

pub(super) const PROGRAMMED: &str = condition_type::PROGRAMMED.as_str();
pub(super) const HEALTHY: &str = condition_type::HEALTHY.as_str();

/// The content of a condition, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewCondition {
    pub(super) kind: ConditionType,
    pub(super) status: &'static str,
    pub(super) reason: ConditionReason,
    pub(super) message: String,
}

pub(super) fn condition(
    kind: ConditionType,
    is: Option<bool>,
    reason: ConditionReason,
    message: impl Into<String>,
) -> NewCondition {
    let status = match is {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    NewCondition { kind, status, reason, message: message.into() }
}

/// The inputs besides the Service and its view.
pub(super) struct Circumstances<'a> {
    pub(super) peer_summary: &'a PeerSummary,
    /// Why the workers cannot get the newest state.
    pub(super) failure: Option<&'a str>,
    /// The gateways that may still serve the address that the Service will get.
    pub(super) waits_for: Option<&'a str>,
    /// Why no gateway announces some of its addresses.
    pub(super) lacking: Option<&'a str>,
    /// Which gateways own its addresses on layer 2, and why; empty if none does.
    pub(super) owners: &'a str,
}

/// The conditions of a Service that requests an address.
#[derive(Debug, Clone)]
pub(super) struct OfServiceConditions {
    pub(super) allocated: NewCondition,
    pub(super) programmed: NewCondition,
    pub(super) healthy: NewCondition,
    pub(super) conflicted: NewCondition,
}

/// All conditions of a Service that requests an address; `contested` is another writer of its status.
pub(super) fn of_service(
    of: &OfService<'_>,
    view: &ServiceView,
    contested: Option<&str>,
    context: &Circumstances<'_>,
) -> OfServiceConditions {
    let mut programmed = programmed(of, view, context);
    if !context.owners.is_empty() {
        programmed.message = format!("{}; {}", programmed.message, context.owners);
    }
    OfServiceConditions {
        allocated: allocated(of, view, context),
        programmed,
        healthy: healthy(view, context.peer_summary),
        conflicted: conflicted(of, contested),
    }
}

fn allocated(of: &OfService<'_>, view: &ServiceView, context: &Circumstances<'_>) -> NewCondition {
    let allocated = |is, reason, why: String| condition(condition_type::ALLOCATED, Some(is), reason, why);
    let message_of = |reason: Reason| {
        let finding = of.findings.iter().find(|f| f.reason == reason);
        finding.map(|f| f.diagnostic.what.clone())
    };
    let has_load_balancer = view.vips.iter().any(|vip| vip.kind == VipKind::LoadBalancer);
    if of.claimed && !has_load_balancer {
        let failed = message_of(Reason::AllocationFailed).is_some();
        let reason = if failed { condition_reason::ALLOCATION_FAILED } else { condition_reason::PENDING };
        let mut why = view.pending.clone().unwrap_or_else(|| "waiting for an address".to_owned());
        if let Some(names) = context.waits_for {
            why = format!("{why}; waiting until these gateways have applied the latest Services: {names}");
        }
        return allocated(false, reason, why);
    }
    if !view.vips.iter().any(VipView::is_of_pool) {
        let why =
            message_of(Reason::ExternalIpDenied).unwrap_or_else(|| "no external IP is granted".to_owned());
        return allocated(false, condition_reason::EXTERNAL_IP_DENIED, why);
    }
    let of_pools = view.vips.iter().filter(|vip| vip.is_of_pool());
    let shown = of_pools.map(|vip| match vip.pool.as_str() {
        // The pool is no longer known.
        "" => vip.address.to_string(),
        pool => format!("{} from pool {pool}", vip.address),
    });
    allocated(true, condition_reason::ALLOCATED, shown.collect::<Vec<_>>().join(", "))
}

fn programmed(of: &OfService<'_>, view: &ServiceView, context: &Circumstances<'_>) -> NewCondition {
    let programmed = |is, reason, why: &str| condition(condition_type::PROGRAMMED, Some(is), reason, why);
    // A Service that waits for a LoadBalancer address counts as waiting, even if its node ports and cluster IPs are
    // served.
    let waits = of.claimed && !view.vips.iter().any(|vip| vip.kind == VipKind::LoadBalancer);
    if view.vips.is_empty() || waits {
        return programmed(
            false,
            condition_reason::NO_ADDRESS,
            "the Service does not have the address that it requests",
        );
    }
    if let Some(why) = &view.refused {
        return programmed(false, condition_reason::PORTS_NOT_PROGRAMMED, why);
    }
    let refused: BTreeSet<String> = view
        .ports
        .iter()
        .filter_map(|port| Some(format!("{}: {}", label(port), port.refused.as_ref()?)))
        .collect();
    if !refused.is_empty() {
        let shown: Vec<String> = refused.into_iter().collect();
        return programmed(false, condition_reason::PORTS_NOT_PROGRAMMED, &shown.join("; "));
    }
    if of.unapplied {
        let why = match context.failure {
            Some(why) => {
                format!("the latest state cannot be published: {why}; the last good state is in use")
            }
            None => "the workers have not applied the latest state yet".to_owned(),
        };
        return programmed(false, condition_reason::NOT_APPLIED, &why);
    }
    if let Some(why) = context.lacking {
        return programmed(false, condition_reason::NO_GATEWAY, why);
    }
    let modes: BTreeSet<&str> = view.ports.iter().map(|port| port.mode.as_str()).collect();
    let modes: Vec<&str> = modes.into_iter().collect();
    let served = format!("every port is forwarded with {}{}", modes.join(", "), context.peer_summary.shown());
    // A gateway that isn't ready receives no packets.
    if !context.peer_summary.not_serving.is_empty() {
        return programmed(false, condition_reason::NOT_ON_EVERY_GATEWAY, &served);
    }
    if !context.peer_summary.lagging.is_empty() {
        return programmed(false, condition_reason::GATEWAY_LAGGING, &served);
    }
    // The Service is served, but not as requested.
    match of.findings.iter().find(|f| f.reason == Reason::ClientAddressLost) {
        Some(finding) => {
            let message = format!("{served}; {}", finding.diagnostic.what);
            programmed(true, condition_reason::CLIENT_ADDRESS_LOST, &message)
        }
        None => programmed(true, condition_reason::PROGRAMMED, &served),
    }
}

fn healthy(view: &ServiceView, peer_summary: &PeerSummary) -> NewCondition {
    let healthy = |is, reason, why: &str| condition(condition_type::HEALTHY, is, reason, why);
    let mut up: BTreeMap<String, bool> = BTreeMap::new();
    let mut notes: BTreeSet<&str> = BTreeSet::new();
    for port in view.ports.iter().filter(|port| port.refused.is_none()) {
        *up.entry(label(port)).or_default() |= port.count(BackendViewState::Active) > 0;
        notes.extend(port.note.as_deref());
    }
    if up.is_empty() {
        return healthy(None, condition_reason::NO_PORTS, "no port is served");
    }
    let down: Vec<String> = up.into_iter().filter_map(|(port, up)| (!up).then_some(port)).collect();
    if down.is_empty() && !peer_summary.without_backends.is_empty() {
        let (with, gateways) =
            (peer_summary.gateways - peer_summary.without_backends.len(), peer_summary.gateways);
        let names = peer_summary.without_backends.join(", ");
        let shown = format!(
            "every port has an active backend on {with} of {gateways} gateways; at least one port has none on {names}"
        );
        return healthy(Some(false), condition_reason::NO_BACKENDS_ON_SOME_GATEWAYS, &shown);
    }
    if down.is_empty() {
        return healthy(Some(true), condition_reason::BACKENDS_UP, "every port has an active backend");
    }
    let mut message = format!("no active backend for {}", down.join(", "));
    for note in notes {
        message.push_str(&format!("; {note}"));
    }
    healthy(Some(false), condition_reason::NO_BACKENDS, &message)
}

fn conflicted(of: &OfService<'_>, contested: Option<&str>) -> NewCondition {
    let conflicted = |is, reason, why: &str| condition(condition_type::CONFLICTED, Some(is), reason, why);
    if let Some(who) = contested {
        let message = format!(
            "field manager {who:?} also writes status.loadBalancer; the gateways leave it unchanged for now"
        );
        return conflicted(true, condition_reason::CONFLICTING_CONTROLLER, &message);
    }
    match of.findings.iter().find(|f| f.reason == Reason::Conflict) {
        Some(finding) => conflicted(true, condition_reason::PORT_CONFLICT, &finding.diagnostic.what),
        None => conflicted(false, condition_reason::NO_CONFLICT, ""),
    }
}

/// The record of the Service's addresses and ports, for gateways that start or become followers; `None` if it has none.
pub(super) fn allocation_record(holdings: Option<&Holdings>, view: &ServiceView) -> Option<NewCondition> {
    // A released address is no longer in the view.
    let is_shown = |owned: &&OwnedAddress| view.vips.iter().any(|vip| vip.address == owned.address);
    let owned: Vec<OwnedAddress> = holdings?.addresses.iter().filter(is_shown).cloned().collect();
    (!owned.is_empty())
        .then(|| condition(condition_type::RECORD, Some(true), condition_reason::RECORDED, record(&owned)))
}

/// Formats a port as `80/TCP`.
pub(super) fn label(port: &PortView) -> String {
    format!("{}/{}", port.port, port.protocol)
}
