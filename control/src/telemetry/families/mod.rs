//! Defines every metric: its name, help text and the source of its value.
//!
//! [`render`](super::render) calls each function once. Names are written in full, so that they can be searched for.
//!
//! Invariant: every counter exists from the first scrape, at 0, because a rate over a series that appears with its
//! first event misses that event.

mod control;
mod dataplane;
mod process;
mod services;

pub(super) use control::{cluster, control, layer2};
pub(super) use dataplane::{frames, kernel, links, ports, restored, workers};
pub(super) use process::{build, latencies, process};
pub(super) use services::{backends, health, limits, service_info, services};
