//! Computes the desired state from Kubernetes objects, health results and drains. Read it from top to bottom to
//! follow a Service update.
//!
//! [`reconcile`] is a pure function from [`Settings`], [`Objects`](tidegate_model::objects::Objects), health, drains,
//! the memory of the last call and `now` to an [`Outcome`]: the [`SnapshotSpec`](tidegate_spec::SnapshotSpec) for the
//! dataplane, the targets of health checks, the listeners, the views, and every request that was not granted, with
//! its location. The steps:
//!
//! 1. [`plan`](plan::plan): whether the gateway serves a Service, and what its annotations request
//!    ([`options`](options::options));
//! 2. [`Allocator`](crate::pools::Allocator): which addresses each Service has (`addresses`);
//! 3. [`EndpointIndex::resolve`](tidegate_model::objects::EndpointIndex::resolve): the endpoints of each of its
//!    ports;
//! 4. [`serve`](serve::serve): ports on addresses ([`program`](program::program)), with backends and their states
//!    (`candidates`, `backends`);
//! 5. [`one_owner_each`](health_check_node_ports::one_owner_each): health-check node ports.
//!
//! Steps 1, 3 and 4 handle one Service at a time. [`Reconciler`] (`incremental`) calls them in this order. It caches
//! their results and repeats them only for Services whose inputs changed, so it gives the result of [`reconcile`] at
//! the cost of the change.
//!
//! No file imports from a file that calls it. What several steps need is in files without steps (`input`, `outcome`,
//! `settings`, `context`, `frontend`, `finding`, `view`), or in the file of the first step that needs it (`plan`,
//! `serve`).
//!
//! Invariant: the order in which objects were read has no effect, and nothing here reads a clock or a file. Invariant:
//! a request that is not granted is a [`Finding`]; a request that cannot be served safely is not programmed. Invariant:
//! the results of steps 1 and 4 for a Service depend on the settings, nodes, Pods, namespaces and drained targets; on
//! the Service itself, its slices or Endpoints, and its granted addresses; on whether its endpoints are VIPs and
//! whether checks of their addresses fail; and on its own drains. A new dependency must be added to `incremental` and
//! `dependencies`.

mod address_request;
mod addresses;
mod aggregate;
mod aliases;
mod all_pools;
mod annotation_reader;
mod annotations;
mod announce_options;
mod backends;
mod candidates;
mod checkable_networks;
mod client_address;
mod compare;
mod context;
mod demand;
mod dependencies;
mod drain;
mod dscp_conflicts;
mod finding;
mod finding_limit;
mod frontend;
mod hash;
mod health_check_node_ports;
mod health_options;
mod health_result;
mod idle_timeout;
mod incremental;
mod input;
mod node_candidates;
mod options;
mod outcome;
mod own_frontends;
mod plan;
mod pod_routes;
mod program;
mod proxy_protocol;
mod removed_ports;
mod reserved_addresses;
mod route_weights;
mod serve;
mod service_addresses;
mod service_limits;
mod settings;
mod size_limits;
mod source_ranges;
mod table_shares;
mod tunnel_options;
pub mod view;
mod vip_announcement;
mod vips;
mod warm_up;
mod weights;

#[cfg(test)]
mod tests;

pub use annotations::edge_key;
pub use annotations::key::LOAD_BALANCER_IPS;
pub use compare::{Compared, Round};
pub use demand::Demand;
pub use drain::{DrainTarget, Drains};
pub use dscp_conflicts::{DscpConflict, DscpConflicts};
pub use finding::{Finding, ObjectKind, Reason};
pub use incremental::Reconciler;
pub use input::{Input, Memory};
pub use outcome::Outcome;
pub use removed_ports::RemovedPorts;
pub use settings::{Claims, Settings};
pub use vip_announcement::{OwnerGroup, owner_groups, owner_key};

/// Computes the desired state.
#[must_use]
pub fn reconcile(input: &Input<'_>) -> Outcome {
    Reconciler::default().reconcile(input)
}
