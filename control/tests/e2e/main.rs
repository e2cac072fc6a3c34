//! End to end: real clients, a real gateway on DPDK's af_packet driver, real servers, in network namespaces.
//!
//! One binary, because its tests share two cores and must run one after the other: each begins with
//! [`world::alone`]. They need root and DPDK and fail without, with a message that says so; none is skipped
//! but those of `kube_proxy`, which `make kube-proxy` runs.
//! Written against the contracts only (commands, configuration, manifests, probes), so they hold for any inside.

mod affinity;
mod change;
mod choice;
mod directory_restart;
mod dsr_probe;
mod failure;
mod floods;
mod forwarding;
mod fragments;
mod health_port;
mod http;
mod kube_proxy;
mod lab;
mod leaving;
mod lifecycle;
mod links;
mod node_target;
mod nodes;
mod own_addresses;
mod path_mtu;
mod reload;
mod restart;
mod rolling;
mod self_check;
mod source_ranges;
mod tenancy;
mod workers;
mod world;
