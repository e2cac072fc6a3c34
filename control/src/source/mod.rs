//! Where the desired state comes from: a directory of manifests; later the API server.
//!
//! Every source fills the one [`crate::model::Objects`] with objects that are defaulted and valid, so that
//! nobody after it needs to know which source it was. What cannot be taken is in a report, with its place.

pub mod directory;
mod manifest;
