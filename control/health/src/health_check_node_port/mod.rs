//! What load balancers and kubelets ask over HTTP: is there an endpoint here, does the gateway work.
//!
//! Two servers, byte for byte as kube-proxy answers (`docs/kubernetes.md`, section 4):
//! [`HealthCheckNodePorts`] listens on the `healthCheckNodePort` of each Service that has one, and [`probes`]
//! serves `/healthz`, `/livez` and `/readyz`. Both read [`ProxyHealth`], which the daemon keeps up to date. What
//! to answer is decided in [`answer`], without a socket.
//!
//! Invariant: a port that cannot be bound never stands in the way of the others; it is tried again.

pub mod answer;
mod listeners;
pub mod probes;
mod proxy_health;

pub use listeners::{Bind, BindFailure, HealthCheckNodePorts};
pub use proxy_health::{HealthReport, ProxyHealth};
