//! References to other objects, and to kinds.

use tidegate_model::objects::gateway_api::{GROUP, ParentRef, RouteKind};
use tidegate_model::yaml::{Field, Fields, Unknown};

use super::rules::{API_GROUP, KIND, NAME, NAMESPACE, SECTION};

/// Whether `parametersRef` is set. Its contents are checked, but not used.
pub(super) fn has_parameters(of: &Fields<'_>) -> bool {
    let Some(field) = of.get("parametersRef") else { return false };
    if let Some(fields) = field.fields() {
        API_GROUP.required(&fields, "group");
        KIND.required(&fields, "kind");
        NAME.required(&fields, "name");
        NAMESPACE.optional(&fields, "namespace");
        fields.finish(Unknown::Warned);
    }
    true
}

/// The keys of a reference to a Gateway or ListenerSet.
pub(super) fn parent_ref(of: &Fields<'_>) -> Option<ParentRef> {
    let (group, kind) = (API_GROUP.or(of, "group", GROUP), KIND.or(of, "kind", "Gateway"));
    let (namespace, name) = (NAMESPACE.optional(of, "namespace"), NAME.required(of, "name"));
    Some(ParentRef {
        group: group?,
        kind: kind?,
        namespace,
        name: name?,
        section_name: SECTION.optional(of, "sectionName"),
        port: of.read("port", Field::port),
    })
}

/// One of `kinds` or `supportedKinds`.
pub(super) fn route_kind(fields: &Fields<'_>) -> Option<RouteKind> {
    let (group, kind) = (API_GROUP.or(fields, "group", GROUP), KIND.required(fields, "kind"));
    Some(RouteKind { group: group?, kind: kind? })
}
