//! The kinds of the Gateway API (gateway.networking.k8s.io/v1) that a layer-4 gateway reads, with the defaults, limits
//! and rules of their definitions (standard channel, Gateway API 1.6).
//!
//! In a file, a violation of a rule is an error. In a stored object, only wrong types, missing fields and listeners
//! with the same name are errors, because another version of the definitions may have other rules. The part with the
//! error is left out, in such a way that the object never grants more than intended. Fields for layer 7 and TLS are
//! allowed and not read.

mod class;
mod fields;
mod gateway;
mod grant;
mod listeners;
mod references;
mod route;
mod rules;
mod status;

pub(super) use class::read as read_class;
pub(super) use gateway::read as read_gateway;
pub(super) use grant::read as read_grant;
pub(super) use listeners::read_set as read_listener_set;
pub(super) use route::{read_tcp as read_tcp_route, read_udp as read_udp_route};
