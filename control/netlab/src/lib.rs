//! A network of namespaces on this machine: one client, one gateway and some servers on a shared link.
//!
//! `tidegate-demo`, the end-to-end tests and the benches use it to run real programs (curl, nginx, iperf3, the kernel's
//! own TCP) against a real gateway. The modules are the network ([`Lab`]), its addresses ([`addresses`]), the programs
//! in it ([`server`], [`gateway`], [`tools`]), the actions of clients ([`client`]), the gateway's manifests
//! ([`manifests`]), an attacking host ([`flood`]), a bad wire ([`wire`]), a station that records who answers for VIPs
//! ([`arp_watch`]) and the demonstration itself ([`demo`]). Only the gateway under test forwards packets between client
//! and server.
//!
//! May depend on: `tidegate-wire` (headers of packets). The gateway is a process here, the binary `tidegate`.
//!
//! All names begin with `tg<pid>-<n>`. The lab is removed when the [`Lab`] is dropped, on SIGINT and SIGTERM after
//! [`cleanup::on_signals`], and by the next lab if the process died in another way ([`cleanup::sweep`]).
//!
//! Invariant: nothing outside the namespaces and one directory under the temporary directory is changed.

pub mod addresses;
pub mod arp_watch;
pub mod binary;
mod checksum;
pub mod cleanup;
pub mod client;
pub mod demo;
pub mod envelope;
mod exclusive;
pub mod fleet;
pub mod flood;
pub mod gateway;
pub mod keepalived;
pub mod lab;
mod lab_plan;
pub mod manifests;
mod marks;
pub mod modes;
pub mod namespace;
pub mod poll;
pub mod process;
pub mod router;
pub mod server;
pub mod tools;
pub mod wire;

pub use checksum::checksum;
pub use envelope::Envelope;
pub use gateway::{Gateway, GatewayOptions};
pub use lab::Lab;
pub use lab_plan::LabPlan;
pub use namespace::Namespace;
pub use poll::wait_for;
pub use server::Server;
