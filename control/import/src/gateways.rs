//! Services of type LoadBalancer as Gateways and routes: one Gateway for each Service, with a listener and a route for
//! each port. The Service stays as the backend of its routes, so most of its fields stay where they are.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};
use tidegate_model::config::{Scheduler, scheduler};
use tidegate_model::objects::gateway_api::{API_VERSION, CONTROLLER};
use tidegate_model::objects::{Labels, Protocol};
use tidegate_model::yaml::{Field, Fields};

use crate::note::{NoteKind, Notes};
use crate::object::{ADDED, LAST_APPLIED, Object};

/// The resources at an API server.
pub(crate) const PATHS: &[&[&str]] = &[&["/api/v1/services"]];

/// The name of the GatewayClass that is written.
const CLASS: &str = "tidegate";
/// The maximum number of listeners of a Gateway.
const LISTENERS_MAX: usize = 64;
/// The maximum number of `infrastructure.annotations`.
const ANNOTATIONS_MAX: usize = 16;

const OURS: &str = "tidegate.dev/";
const HASH: &str = "tidegate.dev/hash";
const LOAD_BALANCER_IPS: &str = "tidegate.dev/load-balancer-ips";
const SCHEDULER: &str = "tidegate.dev/scheduler";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const TARGET: &str = "tidegate.dev/target";

/// Fields of a Service that have the same effect when its type is ClusterIP.
const OF_THE_SERVICE: [&str; 12] = [
    "clusterIP",
    "clusterIPs",
    "externalIPs",
    "externalName",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "publishNotReadyAddresses",
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "trafficDistribution",
];

/// The manifests, and the numbers of Gateways and routes.
#[derive(Debug, Default)]
pub(crate) struct Converted {
    pub(crate) manifests: Vec<Value>,
    pub(crate) gateways: usize,
    pub(crate) routes: usize,
}

/// Converts the Services of type LoadBalancer.
pub(crate) fn convert(objects: &[Object<'_>], notes: &Notes) -> Converted {
    let mut converted = Converted::default();
    let mut names = RouteNames::default();
    for object in objects {
        let spec = object.spec().filter(|_| object.kind == "Service" && object.group.is_empty());
        let is_load_balancer = |spec: &Fields<'_>| spec.text("type").as_deref() == Some("LoadBalancer");
        let Some(spec) = spec.filter(is_load_balancer) else {
            object.skip(notes, "only Services of type LoadBalancer become Gateways");
            continue;
        };
        let draft = Draft { object, spec, notes };
        let listeners = draft.listeners();
        if listeners.is_empty() {
            notes.add(NoteKind::Decide, object.itself(), "no Gateway: no port can be a listener");
            continue;
        }
        if converted.gateways == 0 {
            converted.manifests.push(json!({
                "apiVersion": API_VERSION, "kind": "GatewayClass", "metadata": {"name": CLASS},
                "spec": {"controllerName": CONTROLLER},
            }));
        }
        converted.gateways += 1;
        converted.routes += listeners.len();
        converted.manifests.push(draft.gateway(&listeners));
        converted.manifests.extend(listeners.iter().map(|listener| draft.route(listener, &mut names)));
    }
    converted
}

/// The kinds, namespaces and names of the routes that were written.
#[derive(Debug, Default)]
struct RouteNames(BTreeSet<(&'static str, String, String)>);

impl RouteNames {
    /// A name that no other route of this kind has in the namespace: `NAME-PORT`, or `NAME-PORT-2` and so on if it is
    /// used. Port `b-c` of Service `a` and port `c` of Service `a-b` both request `a-b-c`.
    fn unused(&mut self, kind: &'static str, namespace: &str, service: &str, port: &str) -> String {
        let usual = format!("{service}-{port}");
        let others = (2_usize..).map(|n| format!("{usual}-{n}"));
        let mut all = std::iter::once(usual.clone()).chain(others);
        all.find(|name| self.0.insert((kind, namespace.to_owned(), name.clone())))
            .expect("there is always another number")
    }
}

/// A Service that is being converted.
struct Draft<'o, 'a> {
    object: &'o Object<'a>,
    spec: Fields<'a>,
    notes: &'o Notes,
}

/// A port of the Service as a listener.
struct Listener {
    name: String,
    protocol: Protocol,
    port: u16,
}

impl<'a> Draft<'_, 'a> {
    fn listeners(&self) -> Vec<Listener> {
        let listeners: Vec<Listener> =
            self.spec.items("ports").iter().filter_map(|port| self.listener(port)).collect();
        if listeners.len() > LISTENERS_MAX {
            let what =
                format!("a Gateway has at most {LISTENERS_MAX} listeners: write the others in a ListenerSet");
            self.notes.key(NoteKind::Decide, &self.spec, "ports", what);
        }
        listeners.into_iter().take(LISTENERS_MAX).collect()
    }

    fn listener(&self, field: &Field<'_>) -> Option<Listener> {
        let fields = field.fields()?;
        let protocol = fields.filled("protocol").map_or(Some(Protocol::Tcp), |f| f.named())?;
        let port = fields.required("port", "a port number, 1 to 65535")?.port()?.get();
        let name = fields.text("name").unwrap_or_else(|| protocol.as_str().to_lowercase());
        fields.allow(&["targetPort", "nodePort"]);
        let why = "a route doesn't use it; for a timeout, set tidegate.dev/idle-timeout-tcp in infrastructure.annotations";
        self.notes.without_counterpart(&fields, &[("appProtocol", why)]);
        self.notes.rest(&fields);
        if protocol == Protocol::Sctp {
            self.notes.add(
                NoteKind::NoCounterpart,
                field,
                "there are no routes for SCTP: the Service serves it",
            );
            return None;
        }
        Some(Listener { name, protocol, port })
    }

    /// The metadata of an object for this Service.
    fn metadata(&self, name: &str) -> Value {
        let mut metadata = json!({"name": name});
        if !self.object.namespace.is_empty() {
            metadata["namespace"] = self.object.namespace.into();
        }
        metadata
    }

    fn gateway(&self, listeners: &[Listener]) -> Value {
        let annotations = self.annotations();
        let mut metadata = self.metadata(self.object.name);
        // Pools select Gateways by their labels.
        if !self.object.labels.is_empty() {
            metadata["labels"] = json!(self.object.labels);
        }
        let mut spec = json!({
            "gatewayClassName": CLASS,
            "listeners": listeners.iter().map(|listener| json!({
                "name": listener.name, "protocol": listener.protocol.as_str(), "port": listener.port,
            })).collect::<Vec<_>>(),
        });
        let addresses = self.addresses();
        if !addresses.is_empty() {
            spec["addresses"] = addresses.into();
        }
        if !annotations.is_empty() {
            spec["infrastructure"] = json!({"annotations": annotations});
        }
        self.report_rest();
        json!({"apiVersion": API_VERSION, "kind": "Gateway", "metadata": metadata, "spec": spec})
    }

    fn route(&self, listener: &Listener, names: &mut RouteNames) -> Value {
        let kind = if listener.protocol == Protocol::Tcp { "TCPRoute" } else { "UDPRoute" };
        let name = self.object.name;
        let route = names.unused(kind, self.object.namespace, name, &listener.name);
        json!({
            "apiVersion": API_VERSION, "kind": kind,
            "metadata": self.metadata(&route),
            "spec": {
                "parentRefs": [{"name": name, "sectionName": listener.name}],
                "rules": [{"backendRefs": [{"name": name, "port": listener.port}]}],
            },
        })
    }

    /// `spec.addresses`: those that the Service requests, or one of each family if it wants both.
    fn addresses(&self) -> Vec<Value> {
        let by_field = self.spec.filled("loadBalancerIP");
        if let Some(field) = self.annotation(LOAD_BALANCER_IPS).or(by_field) {
            let parse = |text: &str| text.split(',').map(|ip| ip.trim().parse().ok()).collect();
            let addresses: Vec<IpAddr> =
                field.parsed(parse, "addresses, separated by commas").unwrap_or_default();
            let what = "the Gateway gets the address when the Service releases it: change the type of the Service to \
                ClusterIP";
            self.notes.add(NoteKind::Decide, &field, what);
            return addresses.iter().map(|ip| json!({"type": "IPAddress", "value": ip})).collect();
        }
        let families: Vec<&str> = self.spec.items("ipFamilies").iter().filter_map(Field::string).collect();
        if matches!(self.spec.text("ipFamilyPolicy").as_deref(), Some("PreferDualStack" | "RequireDualStack"))
        {
            return vec![json!({"type": "IPAddress"}); 2];
        }
        if families == ["IPv6"] {
            let what = "a Gateway can't request a family: request an address, or a pool with \
                tidegate.dev/address-pool in infrastructure.annotations";
            self.notes.key(NoteKind::Decide, &self.spec, "ipFamilies", what);
        }
        Vec::new()
    }

    /// The annotation with a key.
    fn annotation(&self, key: &'static str) -> Option<Field<'a>> {
        self.object.metadata.mapping("annotations")?.filled(key)
    }

    /// `spec.infrastructure.annotations`.
    fn annotations(&self) -> Labels {
        let mut annotations = Labels::new();
        let source = self.object.metadata.mapping("annotations");
        for (entry, value) in source.iter().flat_map(Fields::unread) {
            let key = entry.key.as_str();
            let Some(text) = value.string() else { continue };
            match key {
                // Becomes spec.addresses.
                LOAD_BALANCER_IPS => {}
                TARGET if text == "node" => {
                    let why = "kube-proxy doesn't serve Gateways: flows go to the endpoints";
                    self.notes.add_at(NoteKind::NoCounterpart, entry.at, &value, why);
                }
                _ if key.starts_with(OURS) || key == SOURCE_RANGES => {
                    annotations.insert(key.to_owned(), text.to_owned());
                }
                LAST_APPLIED => {}
                _ => {
                    let why = "not converted: if the gateway uses it (services.compat), add it to infrastructure.annotations";
                    self.notes.add_at(NoteKind::NoCounterpart, entry.at, &value, why);
                }
            }
        }
        let ranges: Vec<&str> =
            self.spec.items("loadBalancerSourceRanges").iter().filter_map(Field::string).collect();
        if !ranges.is_empty() {
            annotations.insert(SOURCE_RANGES.to_owned(), ranges.join(","));
        }
        if self.spec.text("sessionAffinity").as_deref() == Some("ClientIP") {
            self.select_by_client(&mut annotations);
        }
        if annotations.len() > ANNOTATIONS_MAX {
            let at = self.object.metadata.itself();
            let what = format!("a Gateway has at most {ANNOTATIONS_MAX} infrastructure.annotations");
            at.error(what, "fewer annotations of tidegate.dev, or a Gateway that is written by hand");
        }
        annotations
    }

    /// Adds the annotation that replaces `sessionAffinity: ClientIP`. With a scheduler that can't select by client, no
    /// port of the Gateway would be programmed, so the annotation is left out.
    fn select_by_client(&self, annotations: &mut Labels) {
        match annotations.get(SCHEDULER).and_then(|word| scheduler(word.trim())) {
            None | Some(Scheduler::Rendezvous | Scheduler::Maglev | Scheduler::SourceHash) => {
                annotations.entry(HASH.to_owned()).or_insert_with(|| "client".to_owned());
                let what = "tidegate.dev/hash: client selects by client, without a timeout";
                self.notes.key(NoteKind::Decide, &self.spec, "sessionAffinity", what);
            }
            Some(
                other @ (Scheduler::WeightedRoundRobin | Scheduler::Loads(_) | Scheduler::DestinationHash),
            ) => {
                annotations.remove(HASH);
                let why = format!(
                    "a Gateway has no affinity with the scheduler {}: for affinity, use rendezvous, maglev or sh, with \
                     tidegate.dev/hash: client",
                    other.as_str()
                );
                self.notes.key(NoteKind::NoCounterpart, &self.spec, "sessionAffinity", why);
            }
        }
    }

    /// Reports the other fields.
    fn report_rest(&self) {
        let class = self.spec.text("loadBalancerClass");
        if class.as_deref() != Some(CONTROLLER) {
            let what = "the load balancer of the Service serves it until its type is changed to ClusterIP";
            self.notes.key(NoteKind::Decide, &self.spec, "type", what);
        }
        if self.spec.text("externalTrafficPolicy").as_deref() == Some("Local") {
            let why = "a Gateway uses the endpoints of all nodes, and the node ports aren't used";
            self.notes.key(NoteKind::NoCounterpart, &self.spec, "externalTrafficPolicy", why);
        }
        self.spec.allow(&["allocateLoadBalancerNodePorts", "healthCheckNodePort"]);
        self.spec.allow(&OF_THE_SERVICE);
        self.notes.rest(&self.spec);
        self.object.metadata.allow(&ADDED);
        self.object.metadata.allow(&["annotations", "finalizers", "ownerReferences"]);
        self.notes.rest(&self.object.metadata);
        self.object.root.allow(&["status"]);
        self.notes.rest(&self.object.root);
    }
}
