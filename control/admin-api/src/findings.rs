//! Requests of objects that were not granted.

use serde::{Deserialize, Serialize};
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_policy::reconcile::{Finding, ObjectKind};

/// The reason of the finding that the latest configuration has errors.
pub const CONFIGURATION_REFUSED: &str = "ConfigurationRefused";

const LISTENER_SET: &str = "listenerset";
const TCP_ROUTE: &str = "tcproute";
const UDP_ROUTE: &str = "udproute";

/// A request of an object that was not granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingView {
    /// `namespace/name` of the object. For objects of the Gateway API `namespace/kind/name`, such as
    /// `shop/gateway/web`, because a Service often has the same name.
    pub object: String,
    /// The name of the event: `ExternalIPDenied`, ...
    pub reason: String,
    /// `error` or `warning`.
    pub severity: String,
    /// `path:line:column`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
}

impl From<&Finding> for FindingView {
    fn from(finding: &Finding) -> Self {
        let diagnostic = &finding.diagnostic;
        Self {
            object: object(finding.kind, &finding.object),
            reason: finding.reason.to_string(),
            severity: diagnostic.severity.to_string(),
            location: diagnostic.location.as_ref().map(ToString::to_string),
            message: diagnostic.what.clone(),
            accepted: diagnostic.accepted.clone(),
        }
    }
}

/// The name of an object in [`FindingView::object`]. A Gateway has the name under which it is served.
fn object(kind: ObjectKind, key: &ObjectKey) -> String {
    let of_kind =
        |kind: &str| ObjectKey::new(key.namespace.as_str(), format!("{kind}/{}", key.name)).to_string();
    match kind {
        ObjectKind::Gateway if key.gateway_name().is_none() => {
            ObjectKey::of_gateway(&key.namespace, &key.name).to_string()
        }
        ObjectKind::ListenerSet => of_kind(LISTENER_SET),
        ObjectKind::TcpRoute => of_kind(TCP_ROUTE),
        ObjectKind::UdpRoute => of_kind(UDP_ROUTE),
        ObjectKind::Gateway
        | ObjectKind::Service
        | ObjectKind::EndpointSlice
        | ObjectKind::AddressPool
        | ObjectKind::Pod
        | ObjectKind::Node => key.to_string(),
    }
}

impl FindingView {
    /// Whether it is about this Service. For a Gateway also whether it is about a ListenerSet with served listeners, or
    /// about a route that has the flows of a listener.
    #[must_use]
    pub fn is_about(&self, service: &ServiceView) -> bool {
        let mut parts = self.object.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(LISTENER_SET), Some(name)) => {
                let listeners = format!("{namespace}/{name}/");
                service.ports.iter().any(|port| port.name.starts_with(&listeners))
            }
            (Some(namespace), Some(kind @ (TCP_ROUTE | UDP_ROUTE)), Some(name)) => {
                let route = format!("{kind} {namespace}/{name}");
                let routes = service.ports.iter().filter_map(|port| port.route.as_ref());
                routes.into_iter().any(|one| one.eq_ignore_ascii_case(&route))
            }
            _ => self.object == format!("{}/{}", service.namespace, service.name),
        }
    }

    /// Namespace and name of the Gateway that it is about, if it is about one. The name is the one under which the
    /// Gateway is served, `gateway/NAME`.
    #[must_use]
    pub fn gateway(&self) -> Option<ObjectKey> {
        let (namespace, name) = self.object.split_once('/')?;
        Some(ObjectKey::new(namespace, name)).filter(|key| key.gateway_name().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::PortView;
    use tidegate_model::diagnostic::Diagnostic;
    use tidegate_policy::reconcile::Reason;
    use tidegate_spec::{ForwardingMode, Protocol};

    fn finding(kind: ObjectKind, namespace: &str, name: &str) -> FindingView {
        let diagnostic = Diagnostic::error("refused");
        let object = ObjectKey::new(namespace, name);
        FindingView::from(&Finding { object, kind, reason: Reason::InvalidValue, diagnostic })
    }

    fn service(name: &str, port: &str, route: Option<&str>) -> ServiceView {
        let port = PortView {
            vip: "203.0.113.1".parse().expect("an address"),
            name: port.into(),
            port: 80,
            protocol: Protocol::Tcp,
            mode: ForwardingMode::Nat,
            app_protocol: None,
            refused: None,
            fail_open: false,
            note: None,
            route: route.map(str::to_owned),
            rejected_ppm: 0,
            backends: vec![],
        };
        ServiceView {
            namespace: "shop".into(),
            name: name.into(),
            service_type: None,
            vips: vec![],
            pending: None,
            refused: None,
            unapplied: None,
            warnings: vec![],
            ports: vec![port],
            mode: None,
            bgp: tidegate_model::objects::RouteAttributes::default(),
            created: None,
            since: None,
        }
    }

    #[test]
    fn a_gateway_has_its_findings_and_those_of_its_listener_sets_and_routes() {
        use ObjectKind::{Gateway, ListenerSet, Service, TcpRoute, UdpRoute};
        let edge = service("gateway/edge", "team/more/tcp", Some("TCPRoute shop/web"));
        let web = service("web", "http", None);
        for (kind, namespace, name, object, of_edge, of_web) in [
            (Gateway, "shop", "edge", "shop/gateway/edge", true, false),
            // The policy also has findings about the Service as which a Gateway is served.
            (Service, "shop", "gateway/edge", "shop/gateway/edge", true, false),
            (Gateway, "shop", "gateway/edge", "shop/gateway/edge", true, false),
            (Gateway, "test", "edge", "test/gateway/edge", false, false),
            (Service, "shop", "edge", "shop/edge", false, false),
            (ListenerSet, "team", "more", "team/listenerset/more", true, false),
            (ListenerSet, "team", "mor", "team/listenerset/mor", false, false),
            (TcpRoute, "shop", "web", "shop/tcproute/web", true, false),
            (UdpRoute, "shop", "web", "shop/udproute/web", false, false),
            (Gateway, "shop", "web", "shop/gateway/web", false, false),
            (Service, "shop", "web", "shop/web", false, true),
        ] {
            let found = finding(kind, namespace, name);
            assert_eq!(found.object, object);
            assert_eq!((found.is_about(&edge), found.is_about(&web)), (of_edge, of_web), "{kind} {object}");
            assert_eq!(found.gateway().is_some(), object.contains("/gateway/"), "{object}");
        }
        assert_eq!(finding(ObjectKind::Node, "", "node-1").object, "node-1");
    }
}
