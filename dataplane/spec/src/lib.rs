//! The contract between the control plane and the packet path: the desired state, and the names of outcomes.
//!
//! A [`SnapshotSpec`] contains plain values; `tidegate-snapshot` compiles it to tables. [`limits`] bounds everything,
//! [`verdict`] names every outcome of a packet, and [`ids`] are what flow entries and counters store. Crates that need
//! only these, such as `tidegate-policy`, don't depend on the packet path.
//!
//! May depend on: `tidegate-structures`, `tidegate-wire`.
#![deny(unsafe_code)]

mod backend_change;
mod earlier_backends;
pub mod ids;
pub mod limits;
mod load_rule;
mod network;
pub mod now;
pub mod ownership;
mod passive_health;
mod problem;
mod service;
mod service_limits;
mod shared;
pub mod source_lists;
mod source_rate;
#[cfg(feature = "testing")]
pub mod testing;
pub mod token_bucket;
mod tunnel_prefix;
pub mod verdict;

pub use backend_change::{BackendChange, RemovedBackend, WeightChange};
pub use earlier_backends::{EarlierPort, EarlierWeight};
pub use load_rule::LoadRule;
pub use network::{GatewaySpec, InterfaceSpec, NeighborSpec, NetworkSpec, Policy, RouteSpec, SynCookies};
pub use passive_health::PassiveHealth;
pub use problem::{BackendProblem, CompileError, Problem};
pub use service::*;
pub use service_limits::ServiceLimits;
pub use shared::Shared;
pub use source_rate::SourceRate;
pub use tidegate_wire::named;
pub use tunnel_prefix::TunnelPrefix;
