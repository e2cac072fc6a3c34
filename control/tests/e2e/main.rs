//! End-to-end tests: real clients, a real gateway on DPDK's af_packet driver, and real servers, in network namespaces.
//!
//! The tests are one binary because they share two cores. Each begins with [`world::beside_others`], or with
//! [`world::alone`] if it loads the machine or depends on short timers. They need root and DPDK, and fail with a
//! message otherwise. None is skipped except those of `kube_proxy`, which `make kube-proxy` runs, and those of `vm`,
//! which `make vm-test` runs. They use only the public interfaces (commands, configuration, manifests, probes), so they
//! do not depend on the implementation.

mod affinity;
mod bgp;
mod change;
mod choice;
mod deny_list;
mod directory_restart;
mod dsr_probe;
mod edge;
mod events;
mod failure;
mod first_aid;
mod fleet;
mod floods;
mod flow_log;
mod flow_sharing;
mod forwarding;
mod fragments;
mod gateway_api;
mod gateway_drain;
mod guide;
#[path = "../guide_support/mod.rs"]
mod guide_support;
mod health_port;
mod http;
mod hung;
mod interruptions;
mod kube_proxy;
mod leftovers;
mod lifecycle;
mod links;
mod manifest_loss;
mod masquerade;
mod matrix;
mod misconfigured;
mod node_target;
mod nodes;
mod own_addresses;
mod passive;
mod path_mtu;
mod proxy_protocol;
mod reload;
mod restart;
mod restarts;
mod rolling;
mod sctp;
mod self_check;
mod source_ranges;
mod status_page;
mod tenancy;
mod toa;
mod trace;
mod tunnel_peers;
mod vm;
mod vrrp;
mod workers;
mod world;
