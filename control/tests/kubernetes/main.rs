//! Tests of the gateway with an API server: the real `tidegate run` and the test API server, connected over HTTPS. Each
//! test asserts the forwarding state (through the admin socket, as users see it) and the writes to the API.
//!
//! Every gateway has exactly the rights of `deploy/kubernetes`. The tests need root (their own namespace) and DPDK
//! (`net_null`). `make test` runs this binary; a plain `cargo test` does not.

mod admission;
mod api;
mod api_loss;
mod conformance;
mod connect;
mod definitions;
mod endpoints;
mod faulty_pool;
mod flow_peers;
mod gateway_api;
mod gateway_drain;
mod guide;
#[path = "../guide_support/mod.rs"]
mod guide_support;
mod helm;
mod install;
mod invalid_objects;
mod json_log;
mod kubectl;
mod kubelet;
mod lagging;
mod layer2;
mod lifecycle;
mod list_watch;
mod node;
mod pools;
mod reports;
mod rights;
mod self_check;
mod tenancy;
mod tool;
mod uninstall;
mod vip_conflict;
mod world;
