//! Why a request of a Service to the edge was not granted, with its location.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{Metadata, ObjectKey};

tidegate_model::named! {
    /// Why a request was not granted.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Reason {
        /// A Service that no edge serves, whatever it requests.
        NotServed => "NotServed",
        /// An annotation with an invalid value.
        InvalidValue => "InvalidValue",
        /// No address, or one outside of the networks of the edge.
        AddressRefused => "AddressRefused",
        /// The address and port belong to an older Service.
        Conflict => "Conflict",
        /// A Secret that does not exist, or whose pair cannot be used.
        CertificateRefused => "CertificateRefused",
        /// A certificate that has expired or expires soon.
        CertificateExpires => "CertificateExpires",
        /// More endpoints than a port may have, or endpoints that cannot be used.
        EndpointRefused => "EndpointRefused",
        /// This machine cannot listen on the address and port.
        CannotListen => "CannotListen",
        /// HAProxy refuses the configuration of the port.
        HaproxyRefused => "HAProxyRefused",
    }
}

/// A request that was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The Service, or the Secret.
    pub object: ObjectKey,
    /// Why.
    pub reason: Reason,
    /// What was refused, what is accepted, and where it was written.
    pub diagnostic: Diagnostic,
}

impl Finding {
    /// A finding about the value at `field` of an object.
    #[must_use]
    pub fn at(meta: &Metadata, field: &str, reason: Reason, diagnostic: Diagnostic) -> Self {
        Self { object: meta.key.clone(), reason, diagnostic: diagnostic.at(meta.origin.field(field)) }
    }
}
