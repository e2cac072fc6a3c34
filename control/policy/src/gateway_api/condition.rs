//! The conditions of the specification, with its types and reasons (gateway-api `apis/v1`, `*_types.go`).

use super::state::ConditionState;

pub(super) const ACCEPTED: &str = "Accepted";
pub(super) const CONFLICTED: &str = "Conflicted";
pub(super) const RESOLVED_REFS: &str = "ResolvedRefs";

/// Reasons of the specification. Those of refusals are also names of [`Reason`](crate::reconcile::Reason).
pub(super) mod reason {
    pub(crate) const ACCEPTED: &str = "Accepted";
    pub(crate) const BACKEND_NOT_FOUND: &str = "BackendNotFound";
    pub(crate) const HOSTNAME_CONFLICT: &str = "HostnameConflict";
    pub(crate) const INVALID_KIND: &str = "InvalidKind";
    pub(crate) const INVALID_PARAMETERS: &str = "InvalidParameters";
    pub(crate) const INVALID_ROUTE_KINDS: &str = "InvalidRouteKinds";
    pub(crate) const LISTENERS_NOT_VALID: &str = "ListenersNotValid";
    pub(crate) const NO_CONFLICTS: &str = "NoConflicts";
    pub(crate) const NO_MATCHING_PARENT: &str = "NoMatchingParent";
    pub(crate) const NOT_ALLOWED: &str = "NotAllowed";
    pub(crate) const NOT_ALLOWED_BY_LISTENERS: &str = "NotAllowedByListeners";
    pub(crate) const PARENT_NOT_ACCEPTED: &str = "ParentNotAccepted";
    pub(crate) const PORT_UNAVAILABLE: &str = "PortUnavailable";
    pub(crate) const PROTOCOL_CONFLICT: &str = "ProtocolConflict";
    pub(crate) const REF_NOT_PERMITTED: &str = "RefNotPermitted";
    pub(crate) const RESOLVED_REFS: &str = "ResolvedRefs";
    pub(crate) const UNSUPPORTED_ADDRESS: &str = "UnsupportedAddress";
    pub(crate) const UNSUPPORTED_PROTOCOL: &str = "UnsupportedProtocol";
}

pub(super) fn condition(
    kind: &'static str,
    is_true: bool,
    reason: &'static str,
    message: impl Into<String>,
) -> ConditionState {
    ConditionState { kind, is_true, reason, message: message.into() }
}

/// `Accepted: True`.
pub(super) fn accepted() -> ConditionState {
    condition(ACCEPTED, true, reason::ACCEPTED, "")
}

/// `Accepted: False`.
pub(super) fn not_accepted(reason: &'static str, message: impl Into<String>) -> ConditionState {
    condition(ACCEPTED, false, reason, message)
}
