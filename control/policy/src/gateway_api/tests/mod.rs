//! The rules of the specification as tests: which listeners and routes are accepted, and what is served. The input is
//! YAML, and both sources are tested.

mod histories;
mod listeners;
mod routes;

use tidegate_model::diagnostic::Diagnostic;

use super::*;

/// The name and number of a port, and its backends with weights.
pub(super) type ServedPort = (String, u16, Vec<(String, u32)>);

/// The results for a manifest. Both sources give the same.
pub(super) struct World {
    pub(super) objects: Arc<Objects>,
    pub(super) states: Arc<GatewayStates>,
    pub(super) findings: Arc<[Finding]>,
}

/// Reads a manifest with both sources. It starts with a GatewayClass `tidegate`.
pub(super) fn world(yaml: &str) -> World {
    let yaml = format!("{CLASS}{yaml}");
    let derived = |objects: Objects| {
        let mut gateway_api = GatewayApi::default();
        let objects = gateway_api.derive(&Arc::new(objects));
        World {
            objects,
            states: Arc::clone(gateway_api.states()),
            findings: Arc::clone(gateway_api.findings()),
        }
    };
    let files = tempfile::tempdir().expect("a directory");
    std::fs::write(files.path().join("objects.yaml"), &yaml).expect("a file");
    let (objects, report) = tidegate_source::directory::DirectorySource::load(files.path());
    assert!(report.is_empty(), "{report:?}");
    let directory = derived(objects);
    let api = derived(tidegate_source::kubernetes::testing::objects_of(&yaml));
    assert_eq!(directory.states, api.states);
    let texts =
        |world: &World| world.findings.iter().map(|f| f.diagnostic.what.clone()).collect::<BTreeSet<_>>();
    assert_eq!(texts(&directory), texts(&api));
    directory
}

const CLASS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tidegate}
spec: {controllerName: tidegate.dev/gateway}
---
";

/// A Gateway `shop/edge` with these listeners (in flow style), and more of its spec.
pub(super) fn gateway(listeners: &str, more: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec: {{gatewayClassName: tidegate, listeners: [{listeners}]{more}}}
---
"
    )
}

/// A route with these parents and backends (in flow style).
pub(super) fn route(kind: &str, name: &str, parents: &str, backends: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("namespace and name");
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{parentRefs: [{parents}], rules: [{{backendRefs: [{backends}]}}]}}
---
"
    )
}

pub(super) fn service(name: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("namespace and name");
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{ports: [{{name: tcp, port: 80}}, {{name: udp, port: 53, protocol: UDP}}]}}
---
"
    )
}

pub(super) fn key(text: &str) -> ObjectKey {
    let (namespace, name) = text.split_once('/').expect("namespace and name");
    ObjectKey::new(namespace, name)
}

impl World {
    /// The reason of a condition with its status, such as `Accepted: True Accepted`.
    fn shown(conditions: &[ConditionState]) -> Vec<String> {
        let shown = |c: &ConditionState| {
            format!("{}: {} {}", c.kind, if c.is_true { "True" } else { "False" }, c.reason)
        };
        conditions.iter().map(shown).collect()
    }

    /// The listeners of the Gateway `shop/edge`: name, attached routes, and the conditions that aren't as wished.
    pub(super) fn listeners(&self) -> Vec<(String, usize, Vec<String>)> {
        let state = &self.states.gateways[&key("shop/edge")];
        state.listeners.iter().map(Self::listener).collect()
    }

    pub(super) fn listener(state: &ListenerState) -> (String, usize, Vec<String>) {
        let is_odd = |c: &&ConditionState| c.is_true == (c.kind == condition::CONFLICTED);
        let odd: Vec<ConditionState> = state.conditions.iter().filter(is_odd).cloned().collect();
        (state.name.clone(), state.attached_routes, Self::shown(&odd))
    }

    /// The condition `Accepted` of the Gateway `shop/edge`.
    pub(super) fn accepted(&self) -> String {
        Self::shown(std::slice::from_ref(&self.states.gateways[&key("shop/edge")].accepted)).concat()
    }

    /// The conditions of a TCPRoute at each of its parents.
    pub(super) fn tcp_route(&self, name: &str) -> Vec<Vec<String>> {
        let parents = self.states.tcp_routes.get(&key(name)).cloned().unwrap_or_default();
        parents.iter().map(|parent| Self::shown(&parent.conditions)).collect()
    }

    /// What is served for the Gateway `shop/edge`: for each port its name, number, and backends with weights.
    pub(super) fn served(&self) -> Vec<ServedPort> {
        let service = &self.objects.services[&ObjectKey::of_gateway("shop", "edge")];
        let ports = service.ports.iter().map(|port| {
            let backend = |routed: &tidegate_model::objects::RoutedBackend| {
                let name =
                    routed.service.as_ref().map_or("-".to_owned(), |(key, port)| format!("{key}:{port}"));
                (name, routed.weight)
            };
            let routed = port.routed.iter().flat_map(|routed| &routed.backends).map(backend).collect();
            (port.label(), port.port.get(), routed)
        });
        ports.collect()
    }

    /// The texts and fields of the findings.
    pub(super) fn found(&self) -> Vec<String> {
        self.findings.iter().map(|finding| text(&finding.diagnostic)).collect()
    }
}

fn text(diagnostic: &Diagnostic) -> String {
    diagnostic.what.clone()
}
