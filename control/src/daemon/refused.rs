//! Adds refused objects to the answers of `services`, so that every object that an operator wrote appears there.

use tidegate_admin_api as api;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_source::RefusedObject;

/// `services` with the refused Services and Gateways, sorted by namespace and name. Other refused objects of a Service,
/// such as EndpointSlices, are in its warnings.
pub(super) fn services(
    mut services: Vec<api::ServiceView>,
    all_refused: &[RefusedObject],
) -> Vec<api::ServiceView> {
    for refused in all_refused {
        let Some(service) = refused.served_as() else { continue };
        services.push(api::ServiceView {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            service_type: None,
            vips: Vec::new(),
            pending: None,
            refused: Some(why(refused)),
            unapplied: None,
            warnings: Vec::new(),
            ports: Vec::new(),
            mode: None,
            bgp: Default::default(),
            created: None,
            since: None,
        });
    }
    for refused in all_refused.iter().filter(|refused| refused.served_as().is_none()) {
        let Some(of) = &refused.service else { continue };
        let shown = services.iter_mut().find(|s| (&s.namespace, &s.name) == (&of.namespace, &of.name));
        if let Some(shown) = shown {
            shown.warnings.push(described(refused));
        }
    }
    services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    services
}

/// Formats `EndpointSlice shop/web-1 is refused: slices.yaml:7:3: ...`
pub(super) fn described(refused: &RefusedObject) -> String {
    format!("{} {} is refused: {}", refused.kind, refused.key, why(refused))
}

/// All errors of an object in one line, without the accepted values.
fn why(refused: &RefusedObject) -> String {
    refused.faults.iter().map(Diagnostic::with_location).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::diagnostic::Location;
    use tidegate_model::objects::ObjectKey;

    fn refused(kind: &'static str, name: &str, service: &str, what: &str) -> RefusedObject {
        let key = |name: &str| ObjectKey::new("shop", name);
        let fault = Diagnostic::error(what).at(Location::new("shop.yaml", 7, 3));
        let service = (kind != "TCPRoute").then(|| key(service));
        RefusedObject { kind, key: key(name), service, faults: vec![fault] }
    }

    #[test]
    fn a_refused_service_gateway_or_slice_is_shown_with_its_reason() {
        let all = [
            refused("EndpointSlice", "web-1", "web", "addressType: the text \"IPv5\" is not accepted"),
            refused("Service", "web", "web", "spec.ports: the list is empty"),
            refused("Service", "api", "api", "spec.type: the text \"x\" is not accepted"),
            refused("Gateway", "edge", "gateway/edge", "spec.listeners[0].name: a boolean"),
            refused("TCPRoute", "edge", "edge", "spec.rules: the list is empty"),
        ];
        let shown = services(Vec::new(), &all);
        let rows: Vec<_> =
            shown.iter().map(|s| (s.name.as_str(), s.refused.as_deref(), s.warnings.as_slice())).collect();
        let slice = "EndpointSlice shop/web-1 is refused: shop.yaml:7:3: addressType: the text \"IPv5\" is not accepted";
        assert_eq!(
            rows,
            [
                ("api", Some("shop.yaml:7:3: spec.type: the text \"x\" is not accepted"), &[][..]),
                ("gateway/edge", Some("shop.yaml:7:3: spec.listeners[0].name: a boolean"), &[][..]),
                ("web", Some("shop.yaml:7:3: spec.ports: the list is empty"), &[slice.to_owned()][..]),
            ]
        );
        assert_eq!(described(&all[0]), slice);
    }
}
