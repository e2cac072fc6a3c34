//! Answers HTTP probes of load balancers and kubelets: whether a Service has a local endpoint, and whether the gateway
//! is healthy.
//!
//! Both servers give the same answers as kube-proxy, byte for byte (`docs/kubernetes.md`, section 4):
//! [`HealthCheckNodePorts`] listens on the `healthCheckNodePort` of each Service that has one, and [`probes`] serves
//! `/healthz`, `/livez`, `/readyz` and `/watchdog`. Both read [`ProxyHealth`], which the daemon updates.
//! [`http_answer`] builds the answer, without a socket.
//!
//! Invariant: a port that cannot be bound does not affect the others, and is retried.

mod clients;
pub mod http_answer;
mod listeners;
pub mod probes;
mod proxy_health;

pub use clients::Clients;
pub use listeners::{Bind, BindFailure, HealthCheckNodePorts};
pub use proxy_health::{HealthReport, ProxyHealth};
