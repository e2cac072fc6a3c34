//! A network of namespaces on this machine: one client, one gateway and some servers on a shared link.
//!
//! `tidegate demo` and the end-to-end tests build it to put real programs (curl, nginx, iperf3, the kernel's own
//! TCP) around a real gateway. Here lives the network ([`Lab`]), the addresses in it ([`addresses`]), what runs in
//! it ([`server`], [`gateway`], [`tools`]) and what clients do ([`client`], [`manifests`] for what the gateway is
//! told, [`flood`] for a host that means harm). Nothing here forwards a packet between client and server but the gateway under test.
//!
//! Everything bears the name `tg<pid>-<n>`. It is undone when the [`Lab`] is dropped, on SIGINT and SIGTERM after
//! [`cleanup::on_signals`], and by the next lab when the process died in another way ([`cleanup::sweep`]).
//!
//! Invariant: nothing outside the namespaces and one directory under the temporary directory is changed.

pub mod addresses;
pub mod cleanup;
pub mod client;
mod exclusive;
pub mod flood;
pub mod gateway;
pub mod lab;
mod lab_plan;
pub mod manifests;
pub mod modes;
pub mod namespace;
pub mod poll;
pub mod process;
pub mod server;
pub mod tools;

pub use gateway::{Gateway, GatewayOptions};
pub use lab::Lab;
pub use lab_plan::LabPlan;
pub use namespace::Namespace;
pub use poll::wait_for;
pub use server::Server;
