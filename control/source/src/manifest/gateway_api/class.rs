//! `GatewayClass`.

use std::sync::Arc;

use tidegate_model::objects::Metadata;
use tidegate_model::objects::gateway_api::{GatewayClass, GatewayClassStatus};
use tidegate_model::yaml::{Fields, Unknown};

use super::fields::generation;
use super::references::has_parameters;
use super::rules::{Rule, is_domain_prefixed, is_path_character};
use crate::manifest::{object::Object, stored};

const CONTROLLER: Rule = Rule {
    check: |name| name.len() <= 253 && is_domain_prefixed(name, is_path_character),
    accepted: "a name with a domain, such as tidegate.dev/gateway, at most 253 characters",
};

const DESCRIPTION: Rule =
    Rule { check: |text| text.chars().count() <= 64, accepted: "at most 64 characters" };

pub(crate) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut class = GatewayClass { meta, generation: generation(object), ..GatewayClass::default() };
    let spec = object.required("spec", "spec with controllerName").and_then(|f| f.fields());
    if let Some(spec) = spec {
        spec.whole(Unknown::Warned, |spec| {
            class.controller = CONTROLLER.required(spec, "controllerName").unwrap_or_default();
            class.has_parameters = has_parameters(spec);
            DESCRIPTION.optional(spec, "description");
        });
    }
    class.status = object.part("status", status).unwrap_or_default();
    Some(Object::GatewayClass(Arc::new(class)))
}

fn status(status: &Fields<'_>) -> GatewayClassStatus {
    let mut supported_features =
        status.each("supportedFeatures", |f| f.fields()?.whole(Unknown::Warned, |f| f.text("name")));
    supported_features.sort_unstable();
    GatewayClassStatus { conditions: stored::conditions(status), supported_features }
}
