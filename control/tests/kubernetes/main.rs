//! Stories of the gateway with an API server: the real `tidegate run`, the test API server over HTTPS, and nothing
//! between. Each story asserts what is forwarded (by the admin socket, as users see it) and what was written to the API.
//!
//! Every gateway has the rights that `deploy/kubernetes` gives and no others. Needs root (a namespace of its own) and
//! DPDK (`net_null`); `make test` names this binary, a plain `cargo test` leaves it out.

mod api;
mod api_loss;
mod connect;
mod endpoints;
mod faulty_pool;
mod install;
mod json_log;
mod lifecycle;
mod node;
mod odd_objects;
mod pools;
mod rights;
mod self_check;
mod tenancy;
mod truth;
mod uninstall;
mod world;
