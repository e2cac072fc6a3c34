//! Finds what Tidegate wrote to an object, in its JSON. Pure.
//!
//! Objects are not decoded, so that an invalid one can be cleaned up, too: a Service that a gateway refuses is released
//! like any other. Finalizers and conditions are ours if they have the prefix `tidegate.dev/`, whatever version wrote
//! them. Addresses in the status of a Service, and the status of objects of the Gateway API, are ours by their field
//! manager. The parents in the status of a route are ours by their controller.

use serde_json::{Map, Value, json};
use tidegate_model::objects::{ObjectKey, gateway_api};
use tidegate_policy::pools::FIELD_MANAGER;

use crate::gateway_api_request;

/// The prefix of our finalizers and conditions.
const PREFIX: &str = "tidegate.dev/";

tidegate_spec::named! {
    /// The kinds that a gateway writes to but does not own.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Kind {
        Service => "Service",
        AddressPool => "AddressPool",
        GatewayClass => "GatewayClass",
        Gateway => "Gateway",
        ListenerSet => "ListenerSet",
        TcpRoute => "TCPRoute",
        UdpRoute => "UDPRoute",
    }
}

impl Kind {
    /// Whether our part of the status is applied under our field manager beside those of others.
    pub(super) fn is_shared(self) -> bool {
        match self {
            Self::Service | Self::GatewayClass | Self::Gateway | Self::ListenerSet => true,
            Self::AddressPool | Self::TcpRoute | Self::UdpRoute => false,
        }
    }
}

/// Our parts of one object; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Traces {
    pub(super) kind: Kind,
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// Our finalizers.
    finalizers: Vec<String>,
    /// The finalizers of others, in their order.
    other_finalizers: Vec<String>,
    /// The types of our conditions on a Service or Gateway that have our prefix.
    conditions: Vec<String>,
    /// `status.loadBalancer.ingress` of a Service, the whole status of an AddressPool, our parents of a route, or
    /// anything in the status of another object of the Gateway API.
    status: bool,
    /// The conditions of a Gateway, or the parents of a route, that others wrote.
    others: Vec<Value>,
}

impl Traces {
    /// The traces on `object`; `None` if there are none.
    pub(super) fn of(kind: Kind, object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (finalizers, other_finalizers): (Vec<String>, Vec<String>) =
            items(&metadata["finalizers"]).map(text).partition(|one| one.starts_with(PREFIX));
        let status = &object["status"];
        let conditions: Vec<String> = match kind {
            Kind::Service | Kind::Gateway => items(&status["conditions"])
                .map(|condition| text(&condition["type"]))
                .filter(|one| one.starts_with(PREFIX))
                .collect(),
            _ => Vec::new(),
        };
        let others = match kind {
            Kind::Gateway => items(&status["conditions"])
                .filter(|condition| !text(&condition["type"]).starts_with(PREFIX))
                .cloned()
                .collect(),
            Kind::TcpRoute | Kind::UdpRoute => gateway_api_request::others(object),
            _ => Vec::new(),
        };
        let has_status = match kind {
            Kind::Service => has_addresses_of_ours(object, !finalizers.is_empty() || !conditions.is_empty()),
            Kind::AddressPool => status.as_object().is_some_and(|status| !status.is_empty()),
            Kind::GatewayClass | Kind::Gateway | Kind::ListenerSet => has_status_of_ours(object),
            Kind::TcpRoute | Kind::UdpRoute => items(&status["parents"]).count() > others.len(),
        };
        let is_clean = finalizers.is_empty() && conditions.is_empty() && !has_status;
        (!is_clean).then(|| Self {
            kind,
            key: ObjectKey::new(text(&metadata["namespace"]), text(&metadata["name"])),
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            finalizers,
            other_finalizers,
            conditions,
            status: has_status,
            others,
        })
    }

    /// Whether the status contains any of our parts.
    pub(super) fn has_status(&self) -> bool {
        self.status || !self.conditions.is_empty()
    }

    /// Whether it has one of our finalizers.
    pub(super) fn has_finalizer(&self) -> bool {
        !self.finalizers.is_empty()
    }

    /// An empty apply under the field manager of the gateways: the API server removes the fields that only they own.
    pub(super) fn apply_nothing(&self) -> Value {
        let Self { key, uid, .. } = self;
        let mut metadata = json!({"name": key.name, "uid": uid});
        if !key.namespace.is_empty() {
            metadata["namespace"] = key.namespace.as_str().into();
        }
        let api_version = if self.kind == Kind::Service { "v1" } else { gateway_api::API_VERSION };
        json!({"apiVersion": api_version, "kind": self.kind.as_str(), "metadata": metadata, "status": {}})
    }

    /// A patch of the status that removes what remains after [`Self::apply_nothing`], whoever owns it. `version` is that
    /// of the object now.
    pub(super) fn status_patch(&self, version: &str) -> Value {
        let mut status = Map::new();
        match self.kind {
            // A JSON merge patch.
            Kind::AddressPool => {
                return json!({"metadata": {"uid": self.uid}, "status": null});
            }
            // These JSON merge patches contain whole lists.
            Kind::TcpRoute | Kind::UdpRoute => {
                let metadata = json!({"uid": self.uid, "resourceVersion": version});
                return json!({"metadata": metadata, "status": {"parents": self.others}});
            }
            Kind::GatewayClass | Kind::Gateway | Kind::ListenerSet => {
                let metadata = json!({"uid": self.uid, "resourceVersion": version});
                return json!({"metadata": metadata, "status": {"addresses": null, "conditions": self.others}});
            }
            // A strategic merge patch, which merges conditions by type.
            Kind::Service => {
                if !self.conditions.is_empty() {
                    let delete = |kind: &String| json!({"type": kind, "$patch": "delete"});
                    status.insert("conditions".into(), self.conditions.iter().map(delete).collect());
                }
                if self.status {
                    status.insert("loadBalancer".into(), json!({"ingress": null}));
                }
            }
        }
        json!({"metadata": {"uid": self.uid}, "status": status})
    }

    /// A JSON merge patch that removes our finalizers, unless the object has changed since it was read.
    pub(super) fn finalizer_patch(&self) -> Value {
        json!({"metadata": {
            "uid": self.uid,
            "resourceVersion": self.resource_version,
            "finalizers": self.other_finalizers,
        }})
    }

    /// The object and our parts of it, for display.
    pub(super) fn describe(&self) -> String {
        let mut what: Vec<String> = Vec::new();
        if self.status {
            let status = match self.kind {
                Kind::Service => "addresses in the status",
                Kind::TcpRoute | Kind::UdpRoute => "parents in the status",
                _ => "status",
            };
            what.push(status.to_owned());
        }
        if !self.conditions.is_empty() {
            what.push(format!("conditions {}", self.conditions.join(", ")));
        }
        if !self.finalizers.is_empty() {
            what.push(format!("finalizer {}", self.finalizers.join(", ")));
        }
        format!("{}: {}", self.name(), what.join("; "))
    }

    /// The name of the object, such as `Service shop/web`.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.kind.as_str(), self.key)
    }
}

/// Whether the addresses in the status of a Service are ours: by their owner, or, if that is unknown (some tools clear
/// `managedFields`), by our other parts of the object.
fn has_addresses_of_ours(service: &Value, is_marked: bool) -> bool {
    if items(&service["status"]["loadBalancer"]["ingress"]).next().is_none() {
        return false;
    }
    let owners = items(&service["metadata"]["managedFields"])
        .filter(|owner| !owner["fieldsV1"]["f:status"]["f:loadBalancer"]["f:ingress"].is_null())
        .map(|owner| owner["manager"].as_str().unwrap_or_default());
    let owners: Vec<&str> = owners.collect();
    owners.contains(&FIELD_MANAGER) || owners.is_empty() && is_marked
}

/// Whether anything in the status of an object is ours by its owner.
fn has_status_of_ours(object: &Value) -> bool {
    let ours = items(&object["metadata"]["managedFields"]).filter(|owner| owner["manager"] == FIELD_MANAGER);
    let mut statuses = ours.filter_map(|owner| owner["fieldsV1"]["f:status"].as_object());
    // The API server shows an applied empty status as `.` or without fields.
    statuses.any(|fields| fields.keys().any(|field| field != "."))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Value {
        json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "finalizers": ["example.com/theirs", "tidegate.dev/cleanup"],
                "managedFields": [
                    {"manager": "tidegate", "fieldsV1": {"f:status": {"f:loadBalancer": {"f:ingress": {}}}}},
                ],
            },
            "status": {
                "conditions": [{"type": "example.com/Ready"}, {"type": "tidegate.dev/Allocated"}],
                "loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]},
            },
        })
    }

    #[test]
    fn only_what_is_ours_by_prefix_or_owner_is_removed() {
        let traces = Traces::of(Kind::Service, &service()).expect("there are traces");
        assert!(traces.has_status() && traces.has_finalizer());
        assert_eq!(
            traces.describe(),
            "Service shop/web: addresses in the status; conditions tidegate.dev/Allocated; finalizer \
             tidegate.dev/cleanup"
        );
        assert_eq!(traces.finalizer_patch()["metadata"]["finalizers"], json!(["example.com/theirs"]));
        let patch = traces.status_patch("7");
        assert_eq!(
            patch["status"]["conditions"],
            json!([{"type": "tidegate.dev/Allocated", "$patch": "delete"}])
        );
        assert_eq!(patch["status"]["loadBalancer"], json!({"ingress": null}));
        let mut theirs = service();
        theirs["metadata"]["managedFields"][0]["manager"] = "another-controller".into();
        theirs["metadata"]["finalizers"] = json!(["example.com/theirs"]);
        theirs["status"]["conditions"] = json!([]);
        assert_eq!(Traces::of(Kind::Service, &theirs), None);
    }

    #[test]
    fn addresses_without_an_owner_are_ours_if_other_parts_are() {
        let mut service = service();
        service["metadata"]["managedFields"] = json!([]);
        assert!(Traces::of(Kind::Service, &service).is_some_and(|traces| traces.status));
        service["status"]["conditions"] = json!([]);
        service["metadata"]["finalizers"] = json!([]);
        assert_eq!(Traces::of(Kind::Service, &service), None, "a directory source or another balancer's");
    }

    #[test]
    fn our_finalizers_and_the_status_are_removed_from_an_address_pool() {
        let pool = json!({
            "metadata": {"name": "public", "uid": "p", "finalizers": ["tidegate.dev/in-use"]},
            "status": {"total": 1},
        });
        let traces = Traces::of(Kind::AddressPool, &pool).expect("there are traces");
        assert_eq!(traces.describe(), "AddressPool public: status; finalizer tidegate.dev/in-use");
        assert_eq!(traces.status_patch("7")["status"], Value::Null);
        assert_eq!(
            Traces::of(Kind::AddressPool, &json!({"metadata": {"name": "public"}, "status": {}})),
            None
        );
    }

    #[test]
    fn parts_of_gateway_api_objects_are_found_by_owner_and_controller() {
        let gateway = |manager: &str| {
            json!({
                "metadata": {
                    "name": "edge", "namespace": "shop", "uid": "g", "finalizers": ["tidegate.dev/cleanup"],
                    "managedFields": [
                        {"manager": manager, "fieldsV1": {"f:status": {".": {}, "f:addresses": {}}}},
                    ],
                },
                "status": {"conditions": [{"type": "Accepted"}]},
            })
        };
        let traces = Traces::of(Kind::Gateway, &gateway("tidegate")).expect("there are traces");
        assert_eq!(traces.describe(), "Gateway shop/edge: status; finalizer tidegate.dev/cleanup");
        assert_eq!(traces.apply_nothing()["apiVersion"], "gateway.networking.k8s.io/v1");
        let theirs = Traces::of(Kind::Gateway, &gateway("another")).expect("the finalizer is ours");
        assert!(!theirs.has_status());
        let mut empty = gateway("tidegate");
        empty["metadata"]["managedFields"][0]["fieldsV1"]["f:status"] = json!({});
        empty["metadata"]["finalizers"] = json!([]);
        assert_eq!(Traces::of(Kind::Gateway, &empty), None, "an applied empty status");

        let other = json!({"controllerName": "example.com/other", "conditions": [{"type": "Accepted"}]});
        let mut route = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "r"},
            "status": {"parents": [{"controllerName": "tidegate.dev/gateway"}, other]},
        });
        let traces = Traces::of(Kind::TcpRoute, &route).expect("there are traces");
        assert_eq!(traces.describe(), "TCPRoute shop/web: parents in the status");
        let patch = traces.status_patch("7");
        assert_eq!(
            (&patch["status"]["parents"], &patch["metadata"]["resourceVersion"]),
            (&json!([other]), &json!("7"))
        );
        route["status"]["parents"] = json!([other]);
        assert_eq!(Traces::of(Kind::TcpRoute, &route), None);
    }
}
