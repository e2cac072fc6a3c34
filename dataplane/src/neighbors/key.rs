//! The key of a neighbour in the resolver.

use std::net::IpAddr;

use tidegate_core::ids::InterfaceIndex;

/// A neighbour: the interface and its address.
pub type Key = (InterfaceIndex, IpAddr);
