//! The annotations about the attributes of routes to a Service's addresses.
//!
//! They take effect with `announce.bgp`. Without it they are read nevertheless, so that a Service is valid at every
//! gateway or at none.

use tidegate_model::objects::{
    COMMUNITIES_MAX, COMMUNITY_ACCEPTED, LOCAL_PREF_ACCEPTED, MED_ACCEPTED, PREPENDS_ACCEPTED, PREPENDS_MAX,
    RouteAttributes, communities,
};

use super::annotation_reader::Reader;
use super::annotations::key;

/// Applies one of these annotations. `annotation` is its name as written, which may be an alias.
pub(super) fn apply(
    read: &mut Reader<'_>,
    attributes: &mut RouteAttributes,
    ours: &str,
    annotation: &str,
    value: &str,
) {
    match ours {
        key::BGP_COMMUNITIES => match communities(value) {
            Ok(communities) => attributes.communities = communities,
            Err(_) => {
                read.invalid(
                    annotation,
                    value,
                    &format!(
                        "a list of at most {COMMUNITIES_MAX}, separated by commas: {COMMUNITY_ACCEPTED}"
                    ),
                );
            }
        },
        key::BGP_PREPENDS => match value.parse() {
            Ok(prepends) if prepends <= PREPENDS_MAX => attributes.prepends = Some(prepends),
            _ => read.invalid(annotation, value, PREPENDS_ACCEPTED),
        },
        key::BGP_LOCAL_PREF => match value.parse() {
            Ok(preference) => attributes.local_pref = Some(preference),
            Err(_) => read.invalid(annotation, value, LOCAL_PREF_ACCEPTED),
        },
        _ => match value.parse() {
            Ok(med) => attributes.med = Some(med),
            Err(_) => read.invalid(annotation, value, MED_ACCEPTED),
        },
    }
}
