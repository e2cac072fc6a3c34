//! What the gateway writes to a cluster: status, conditions, finalizers and events of Services, the status of its
//! own kinds, and the lease that says who of several gateways writes.
//!
//! Reading is `source::kubernetes`. [`crd`] are the kinds that the gateway brings along; [`plan`] says what is to be
//! written, [`event`] what is told to users.
//!
//! Invariant: nothing here is waited for by the forwarding side, whatever the API server does.

pub mod crd;
pub mod event;
pub mod plan;
