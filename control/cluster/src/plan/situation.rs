//! The inputs of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_model::objects::gateway_api::Gateway;
use tidegate_model::objects::{Labels, ObjectKey, Objects, Service};
use tidegate_policy::gateway_api::{GatewayState, GatewayStates};
use tidegate_policy::pools::FIELD_MANAGER;
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_policy::reconcile::{Finding, Outcome};

use super::peer::Peer;
use super::stored_condition::is_ours;
use crate::event::Regarding;

/// The last known holder of each Lease; `None` for a Lease without a holder.
pub type LeaseHolders = BTreeMap<String, Option<String>>;

/// The result of one round of the controller.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The objects of the source, with a Service for each Gateway.
    pub objects: Arc<Objects>,
    /// What the status of objects of the Gateway API says, except for what depends on addresses.
    pub gateway_states: Arc<GatewayStates>,
    /// The version of its Services: [`SourceUpdate::version`](tidegate_source::SourceUpdate::version).
    pub version: u64,
    /// The desired state that was computed from the objects.
    pub outcome: Arc<Outcome>,
    /// The number of comparisons with results from scratch that were due so far. If it has increased, the plan is
    /// compared, too.
    pub comparisons: u64,
    /// Whether this gateway was the one that assigns addresses when it computed this round.
    pub decides: bool,
    /// The version that every gateway must apply before all free addresses can be assigned; `None` if they can.
    pub waits_for: Option<u64>,
    /// The gateway's own labels.
    pub own_labels: Labels,
    /// The gateway's own addresses.
    pub own_addresses: BTreeSet<IpAddr>,
    /// The socket at which other gateways discover this one, if it shares flows with discovered gateways.
    pub own_flow_sharing: Option<SocketAddr>,
    /// The progress of the workers with this round.
    pub forwarding: Forwarding,
    /// Whether the source has a connection to the API server.
    pub source_connected: bool,
    /// The holders of the Leases of VIPs (`announce.l2.mode: lease`).
    pub lease_holders: Arc<LeaseHolders>,
    /// Requests that this gateway could not fulfill, independently of the other gateways: health-check node ports that
    /// it can't bind.
    pub own_findings: Vec<Finding>,
}

/// The state that the workers of a gateway apply, and whether they can forward.
#[derive(Debug, Clone)]
pub struct Forwarding {
    /// Generation of the newest desired state.
    pub generation_desired: u64,
    /// The generation that all workers have applied.
    pub generation_applied: u64,
    /// The version of the newest Services that all workers have applied.
    pub version_applied: u64,
    /// Whether the workers also forward for Services that the API server has lost.
    pub keeps_services: bool,
    /// Services whose part of the round the workers have not applied yet.
    pub unapplied: Arc<BTreeSet<ObjectKey>>,
    /// Why the round can't be published, in which case the last good state keeps forwarding.
    pub publish_failure: Option<String>,
    /// Whether the gateway is ready to accept flows.
    pub ready: bool,
    /// Interfaces that cannot carry packets.
    pub links_lost: Vec<String>,
    /// Workers or the slow path, if they hang.
    pub hung: Vec<String>,
    /// The drain of the gateway.
    pub drain: DrainPhase,
    /// Who requested the drain, and what is wrong with a request; may be empty.
    pub drain_message: String,
}

/// The drain state of a gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DrainPhase {
    /// No drain is requested.
    #[default]
    Serving,
    /// The gateway announces nothing, but packets still arrive or arrived recently.
    Draining,
    /// Packets no longer arrive.
    Drained,
}

/// The identity of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `metadata.name` of its configuration.
    pub(crate) name: String,
    /// An identifier of this run.
    pub(crate) instance: String,
    /// Its node, if it runs on one.
    pub(crate) node: Option<String>,
}

/// The inputs of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    /// The last round.
    pub(crate) observation: &'a Observation,
    /// The identity of this gateway.
    pub(crate) identity: &'a Identity,
    /// Whether this gateway leads.
    pub(crate) leads: bool,
    /// The version of the Services that every live gateway has applied, including this one.
    pub(crate) withdrawn: u64,
    /// The other live gateways.
    pub(crate) peers: &'a [Peer],
    /// When the poll that returned them started.
    pub(crate) polled: Timestamp,
    /// Another process with this gateway's name, as text for display.
    pub(crate) duplicate_name: Option<&'a str>,
    /// Why this gateway can't lead, regardless of the other gateways, for display.
    pub(crate) cannot_lead: Option<&'a str>,
    /// The current time.
    pub(crate) now: Timestamp,
}

/// A Service with its result of the last round.
pub(super) struct OfService<'a> {
    pub(super) service: &'a Service,
    /// Its view, if it requests an address.
    pub(super) view: Option<&'a ServiceView>,
    /// Its denied requests.
    pub(super) findings: &'a [&'a Finding],
    /// Whether this gateway assigns its LoadBalancer address.
    pub(super) claimed: bool,
    /// Whether the workers have not applied the view yet.
    pub(super) unapplied: bool,
    /// The Gateway that is served as this Service.
    pub(super) gateway: Option<OfGateway<'a>>,
}

/// A Gateway that is served as a Service.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfGateway<'a> {
    pub(super) object: &'a Arc<Gateway>,
    /// Its state, if its class is one of ours.
    pub(super) state: Option<&'a Arc<GatewayState>>,
}

impl OfService<'_> {
    /// The object for events about it.
    pub(super) fn regarding(&self) -> Regarding {
        Regarding::service(&self.service.meta.key, self.service.meta.uid.as_str())
    }

    /// Whether its status contains anything that we wrote.
    pub(super) fn is_written(&self) -> bool {
        self.service.stored.conditions.iter().any(is_ours) || self.has_ingress_of_ours()
    }

    /// Whether we wrote the addresses in its status. Those of a Gateway of another controller are ours if one of our
    /// conditions is there, because both are written together.
    pub(super) fn has_ingress_of_ours(&self) -> bool {
        let stored = &self.service.stored;
        stored.ingress_managers.iter().any(|manager| manager == FIELD_MANAGER)
            && (self.gateway.is_none_or(|gateway| gateway.state.is_some())
                || stored.conditions.iter().any(is_ours))
    }
}
