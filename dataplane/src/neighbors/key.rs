//! The key of a neighbour in the resolver.

use std::net::IpAddr;

use tidegate_spec::ids::InterfaceIndex;

/// A neighbour: the interface and its address.
pub type Key = (InterfaceIndex, IpAddr);
