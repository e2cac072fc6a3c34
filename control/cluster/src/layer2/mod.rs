//! Ownership of VIPs on layer 2 by Leases: the gateways of a group share its VIPs, and each VIP has one owner.
//!
//! In each round, the daemon sets which groups of VIPs this gateway may own ([`Wanted`]). The writer provides the live
//! gateways. [`Keeper`] keeps one Lease per group and sets in the dataplane's
//! [`Ownership`](tidegate_spec::ownership::Ownership) until when this gateway owns it. `claim` contains the rules and
//! explains why two owners can't overlap; `rank` orders the gateways.
//!
//! Invariant: whatever happens here, a time in the ownership is never later than the Lease allows.

mod claim;
mod keeper;
mod rank;

pub use keeper::{Keeper, LeaseTimes, Owners, Wanted};
