//! The annotation `proxy-protocol`: backends get the client's address in a header of the PROXY protocol.
//!
//! The header changes what backends read, so a request that cannot be granted is never served without it: then no port
//! is programmed, or not the port of the other protocol.

use tidegate_core::snapshot::ForwardingMode;
use tidegate_core::wire::proxy_header::ProxyVersion;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::Protocol;

use super::annotations::annotation_field;
use super::view::{PortRefusal, RefusalReason};

/// The accepted values.
pub(super) const ACCEPTED: &str = "v1, v2, none";

/// A request for the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyHeaderRequest {
    pub(super) version: ProxyVersion,
    /// The annotation that makes the request, possibly an alias.
    pub(super) annotation: String,
}

/// The version that a value of the annotation names, `Ok(None)` for no header, or an error for other values.
pub(super) fn version(value: &str) -> Result<Option<ProxyVersion>, ()> {
    match value {
        "" | "none" | "off" | "false" => Ok(None),
        "v1" => Ok(Some(ProxyVersion::V1)),
        "v2" => Ok(Some(ProxyVersion::V2)),
        _ => Err(()),
    }
}

/// Why a port of this protocol cannot have the header, and what can, if it cannot.
pub(super) fn obstacle(version: ProxyVersion, protocol: Protocol) -> Option<(&'static str, &'static str)> {
    match (protocol, version) {
        (Protocol::Udp, ProxyVersion::V1) => {
            Some(("version 1 of the PROXY protocol has no UDP", "v2, or a Service without UDP ports"))
        }
        (Protocol::Sctp, _) => {
            Some(("the PROXY protocol has no SCTP", "none, or a Service without SCTP ports"))
        }
        (Protocol::Tcp, _) | (Protocol::Udp, ProxyVersion::V2) => None,
    }
}

/// The refusal of a request in a mode that does not translate, with the field of the finding, the text and what is
/// accepted.
pub(super) fn refusal_in_dsr(
    request: &ProxyHeaderRequest,
    mode: ForwardingMode,
) -> (String, Diagnostic, PortRefusal) {
    let ProxyHeaderRequest { version, annotation } = request;
    let why = format!(
        "the backend of {mode} answers the client itself, so the gateway cannot shift the sequence numbers of its answers"
    );
    let what = format!("annotation {annotation}: no port is programmed: {why}");
    let diagnostic = Diagnostic::error(what).accepting("tidegate.dev/forwarding nat or fullnat");
    let message = format!("{annotation} {version}: {why}");
    (annotation_field(annotation), diagnostic, PortRefusal::new(RefusalReason::NotProgrammed, message))
}
