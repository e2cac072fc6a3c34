//! Ownership of VIPs on layer 2 by Leases: the gateways of a group share its VIPs, and each VIP has one owner.
//!
//! The daemon says in each round which groups of VIPs it may own ([`Wanted`]); the writer says which gateways are live.
//! [`Keeper`] keeps one Lease for each group and writes to the [`Ownership`](tidegate_spec::ownership::Ownership) of the
//! dataplane until when this gateway owns it. `claim` has the rules and the bound on two owners, `rank` the order of the
//! gateways.
//!
//! Invariant: whatever happens here, a time in the ownership is never later than the Lease allows.

mod claim;
mod keeper;
mod rank;

pub use keeper::{Keeper, LeaseTimes, Owners, Wanted};
