//! The annotations `proxy-protocol` and `proxy-protocol-tlvs`: backends receive the client's address in a PROXY
//! protocol header, which may have further fields, or in the TCP option TOA.
//!
//! The header changes what backends read, so a request that can't be granted is never served without it. Instead, no
//! port is programmed, or only the ports whose protocol supports the header.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::Protocol;
use tidegate_spec::ForwardingMode;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};

use super::annotation_reader::Reader;
use super::annotations::{annotation_field, key};
use super::finding::Reason;
use super::view::{PortRefusal, RefusalReason};

pub(super) const ACCEPTED: &str = "v1, v2, toa, none";

pub(super) const TLVS_ACCEPTED: &str = "none, or one or more of unique-id, crc32c and vpce-id=TEXT, separated by \
     commas (TEXT: 1 to 22 visible ASCII characters)";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyHeaderRequest {
    pub(super) version: ProxyVersion,
    /// The annotation that makes the request, possibly an alias.
    pub(super) annotation: String,
}

/// The version that a value of the annotation requests, `Ok(None)` for no header, or an error for other values. `off`
/// and `false` are words of other vendors.
pub(super) fn version(value: &str) -> Result<Option<ProxyVersion>, ()> {
    match value {
        "" | "none" | "off" | "false" => Ok(None),
        "v1" => Ok(Some(ProxyVersion::V1)),
        "v2" => Ok(Some(ProxyVersion::V2)),
        "toa" => Ok(Some(ProxyVersion::Toa)),
        _ => Err(()),
    }
}

/// Why a port of this protocol can't have the header, and what is possible; `None` if it can have it.
pub(super) fn why_no_header(
    version: ProxyVersion,
    tlvs: ProxyTlvs,
    protocol: Protocol,
) -> Option<(&'static str, &'static str)> {
    match (protocol, version) {
        (Protocol::Udp, ProxyVersion::V1) => Some((
            "version 1 of the PROXY protocol does not support UDP",
            "tidegate.dev/proxy-protocol: v2, or a Service without UDP ports",
        )),
        (Protocol::Udp, ProxyVersion::V2) if tlvs.has(ProxyTlvs::UNIQUE_ID) => Some((
            "unique-id identifies connections, and UDP has no connections",
            "tidegate.dev/proxy-protocol-tlvs: crc32c, or a Service without UDP ports",
        )),
        (Protocol::Udp | Protocol::Sctp, ProxyVersion::Toa) => Some((
            "TOA is a TCP option",
            "tidegate.dev/proxy-protocol: none, or a Service with TCP ports only",
        )),
        (Protocol::Sctp, ProxyVersion::V1 | ProxyVersion::V2) => Some((
            "the PROXY protocol does not support SCTP",
            "tidegate.dev/proxy-protocol: none, or a Service without SCTP ports",
        )),
        (Protocol::Tcp, _) | (Protocol::Udp, ProxyVersion::V2) => None,
    }
}

/// The TLVs that a value of the annotation requests, with the text of `vpce-id`, or `None` if the value is invalid.
pub(super) fn tlvs(value: &str) -> Option<(ProxyTlvs, VpceId)> {
    let mut tlvs = (ProxyTlvs::NONE, VpceId::default());
    if matches!(value, "" | "none") {
        return Some(tlvs);
    }
    for word in value.split(',') {
        let tlv = match word.trim() {
            "unique-id" => ProxyTlvs::UNIQUE_ID,
            "crc32c" => ProxyTlvs::CRC32C,
            word if !tlvs.0.has(ProxyTlvs::VPCE_ID) => {
                tlvs.1 = VpceId::new(word.strip_prefix("vpce-id=")?)?;
                ProxyTlvs::VPCE_ID
            }
            _ => return None,
        };
        tlvs.0 = tlvs.0.and(tlv);
    }
    Some(tlvs)
}

/// Reports TLVs without a header. Returns why no port is programmed, if the requested version has no TLVs.
pub(super) fn check_tlvs(
    read: &mut Reader<'_>,
    request: Option<&ProxyHeaderRequest>,
    tlvs: ProxyTlvs,
) -> Option<PortRefusal> {
    if tlvs.is_empty() {
        return None;
    }
    match request.map(|request| request.version) {
        Some(ProxyVersion::V2) => None,
        None => {
            let why = "the Service does not request a PROXY protocol header";
            read.ignored(key::PROXY_TLVS, why, "tidegate.dev/proxy-protocol v2, or no annotation");
            None
        }
        Some(version @ (ProxyVersion::V1 | ProxyVersion::Toa)) => {
            let why = match version {
                ProxyVersion::Toa => "the TOA option has no TLVs",
                ProxyVersion::V1 | ProxyVersion::V2 => "version 1 of the PROXY protocol has no TLVs",
            };
            let what = format!("annotation {}: {why}; no port is programmed", key::PROXY_TLVS);
            let diagnostic = Diagnostic::error(what).accepting("tidegate.dev/proxy-protocol v2, or no TLVs");
            read.push(&annotation_field(key::PROXY_TLVS), Reason::NotSupported, diagnostic);
            let message = format!("{}: {why}", key::PROXY_TLVS);
            Some(PortRefusal::new(RefusalReason::NotProgrammed, message))
        }
    }
}

/// The refusal of a request that the mode does not allow: the field and the diagnostic of the finding, and why no port
/// is programmed.
pub(super) fn refusal_in(
    request: &ProxyHeaderRequest,
    mode: ForwardingMode,
) -> Option<(String, Diagnostic, PortRefusal)> {
    let ProxyHeaderRequest { version, annotation } = request;
    let (why, accepted) = match version {
        ProxyVersion::V1 | ProxyVersion::V2 if mode.is_dsr() => (
            format!(
                "with {mode}, the backend replies to the client directly, so the gateway cannot shift the sequence numbers of its \
                 replies"
            ),
            "tidegate.dev/forwarding nat or fullnat",
        ),
        ProxyVersion::Toa if mode != ForwardingMode::FullNat => (
            format!(
                "with forwarding {mode}, backends see the client's address in every packet and need no TOA"
            ),
            "tidegate.dev/forwarding fullnat, or no TOA",
        ),
        _ => return None,
    };
    let what = format!("annotation {annotation}: {why}; no port is programmed");
    let diagnostic = Diagnostic::error(what).accepting(accepted);
    let message = format!("{annotation} {version}: {why}");
    Some((annotation_field(annotation), diagnostic, PortRefusal::new(RefusalReason::NotSupported, message)))
}
