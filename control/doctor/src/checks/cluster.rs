//! The API server: does it answer, does it have the gateway's rights, and does its clock agree?
//!
//! One SelfSubjectAccessReview for each right, which every authenticated user may create. Nothing else is written.

use hyper::StatusCode;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use tidegate_model::config::{GatewayConfig, Layer2Mode, SourceConfig};
use tidegate_model::objects::gateway_api::GROUP;
use tidegate_source::kubernetes::{Connector, causes};

use crate::finding::Finding;

/// The rights in `deploy/kubernetes/base/rbac.yaml`: group, resource, subresource, verbs.
const RIGHTS: [(&str, &str, &str, &[&str]); 11] = [
    ("", "services", "", &["list", "watch", "patch"]),
    ("", "nodes", "", &["list", "watch"]),
    ("", "namespaces", "", &["list", "watch"]),
    ("discovery.k8s.io", "endpointslices", "", &["list", "watch"]),
    ("networking.k8s.io", "servicecidrs", "", &["list", "watch"]),
    ("", "services", "status", &["patch"]),
    ("events.k8s.io", "events", "", &["create", "get", "patch"]),
    ("tidegate.dev", "addresspools", "", &["list", "watch", "patch"]),
    ("tidegate.dev", "addresspools", "status", &["patch"]),
    ("tidegate.dev", "gatewaystatuses", "", &["list", "create", "patch", "delete"]),
    ("tidegate.dev", "gatewaystatuses", "status", &["patch"]),
];
/// The rights in the same file that only the Gateway API needs.
const GATEWAY_API: [(&str, &str, &str, &[&str]); 11] = [
    (GROUP, "gatewayclasses", "", &["list", "watch"]),
    (GROUP, "gateways", "", &["list", "watch", "patch"]),
    (GROUP, "listenersets", "", &["list", "watch"]),
    (GROUP, "tcproutes", "", &["get", "list", "watch"]),
    (GROUP, "udproutes", "", &["get", "list", "watch"]),
    (GROUP, "referencegrants", "", &["list", "watch"]),
    (GROUP, "gatewayclasses", "status", &["patch"]),
    (GROUP, "gateways", "status", &["patch"]),
    (GROUP, "listenersets", "status", &["patch"]),
    (GROUP, "tcproutes", "status", &["patch"]),
    (GROUP, "udproutes", "status", &["patch"]),
];
/// The rights to Leases for electing the leader, and for the owners of VIPs.
const LEADER: &[&str] = &["get", "create", "update"];
const LAYER2: &[&str] = &["list", "create", "update"];
/// The right to Pods, for `podWeights`.
const PODS: &[&str] = &["list", "watch"];
/// A difference of clocks that tokens and leases tolerate.
const CLOCK_SECONDS_MAX: i64 = 5;
const CHECK: &str = "api";

/// A right: where, what, and what may be done.
struct Right {
    group: String,
    resource: String,
    subresource: String,
    namespace: Option<String>,
    verb: String,
}

impl Right {
    fn all(
        (group, resource, subresource, verbs): (&str, &str, &str, &[&str]),
        namespace: Option<&str>,
    ) -> Vec<Self> {
        let of = |verb: &&str| Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.map(str::to_owned),
            verb: (*verb).to_owned(),
        };
        verbs.iter().map(of).collect()
    }

    fn show(&self) -> String {
        let Self { group, resource, subresource, namespace, verb } = self;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let dot = if group.is_empty() { "" } else { "." };
        let place = namespace.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
        format!("{verb} {resource}{dot}{group}{slash}{subresource}{place}")
    }
}

/// The rights that a gateway with this configuration needs; none without an API server.
fn needed(config: &GatewayConfig) -> Vec<Right> {
    let SourceConfig::Kubernetes(server) = &config.source else { return Vec::new() };
    let lease = |verbs| ("coordination.k8s.io", "leases", "", verbs);
    let mut rights: Vec<Right> = RIGHTS.into_iter().flat_map(|right| Right::all(right, None)).collect();
    if server.gateway_api.is_read() {
        rights.extend(GATEWAY_API.into_iter().flat_map(|right| Right::all(right, None)));
    }
    rights.extend(Right::all(lease(LEADER), Some(&server.lease_namespace)));
    if config.announce.l2.mode == Layer2Mode::Lease {
        rights.extend(Right::all(lease(LAYER2), Some(&config.announce.l2.lease.namespace)));
    }
    if server.pod_weights {
        rights.extend(Right::all(("", "pods", "", PODS), None));
    }
    rights
}

/// Queries the API server of the configuration.
pub(crate) async fn check(config: &GatewayConfig) -> Vec<Finding> {
    let SourceConfig::Kubernetes(server) = &config.source else { return Vec::new() };
    let why = "the gateway gets no Services; it serves the last known ones, if it has saved any";
    let connection = match Connector::new(server.kubeconfig.clone()).connection().await {
        Ok(connection) => connection,
        Err(error) => {
            let fix =
                "source.kubernetes.kubeconfig: a valid kubeconfig (deploy/scripts/gateway-kubeconfig.sh)";
            return vec![Finding::fault(CHECK, error.to_string(), why, fix)];
        }
    };
    let clock = match clock(&connection.client).await {
        Ok(clock) => clock,
        Err(error) => {
            let what = format!("{}: {error}", connection.server);
            let fix = "is the address right, does a firewall drop the packets, has the token expired?";
            return vec![Finding::fault(CHECK, what, why, fix)];
        }
    };
    let rights = rights(&connection.client, &needed(config)).await;
    clock.into_iter().chain(rights).collect()
}

/// Compares the clock with the time of an answer.
async fn clock(client: &Client) -> Result<Option<Finding>, String> {
    let request = hyper::Request::get("/version").body(Body::empty()).expect("the path is legal");
    let answer = client.send(request).await.map_err(|error| causes(&error))?;
    if answer.status() == StatusCode::UNAUTHORIZED {
        return Err("the server refuses the credentials (401)".to_owned());
    }
    let date = answer.headers().get(hyper::header::DATE).and_then(|date| date.to_str().ok());
    let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) else { return Ok(None) };
    let off = Timestamp::now().duration_since(date.timestamp()).as_secs();
    if off.abs() <= CLOCK_SECONDS_MAX {
        return Ok(Some(Finding::ok("clock", "it agrees with the API server's")));
    }
    let what = format!("it differs from the API server's by {off} s");
    let why = "tokens and certificates seem expired or not yet valid";
    Ok(Some(Finding::fault("clock", what, why, "apt-get install chrony, here or there")))
}

async fn rights(client: &Client, needed: &[Right]) -> Vec<Finding> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for right in needed {
        let attributes = ResourceAttributes {
            group: Some(right.group.clone()),
            resource: Some(right.resource.clone()),
            subresource: Some(right.subresource.clone()).filter(|name| !name.is_empty()),
            namespace: right.namespace.clone(),
            verb: Some(right.verb.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            non_resource_attributes: None,
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => missing.push(right.show()),
            Err(error) => {
                let error = match error {
                    kube::Error::Api(status) => format!("{} {}", status.code, status.message),
                    other => causes(&other),
                };
                let what = format!("the API server doesn't say which rights this account has: {error}");
                let why = "a missing right shows only when it is needed";
                let fix =
                    "is the account known? A SelfSubjectAccessReview needs the group system:authenticated";
                return vec![Finding::warning(CHECK, what, why, fix)];
            }
        }
    }
    if missing.is_empty() {
        return vec![Finding::ok(CHECK, format!("the account has all {} rights", needed.len()))];
    }
    let what = format!("the account lacks the rights: {}", missing.join(", "));
    let why = "the gateway doesn't see all objects, or can't write their status";
    let fix = "kubectl apply -k deploy/kubernetes/off-cluster";
    vec![Finding::fault(CHECK, what, why, fix)]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tidegate_model::yaml::Sheet;

    use super::*;

    #[test]
    fn every_right_that_the_installation_grants_is_checked() {
        let text = include_str!("../../../../deploy/kubernetes/base/rbac.yaml");
        let documents = Sheet::new("rbac.yaml").documents(text);
        let documents = documents.iter().map(|document| serde_json::to_value(document).expect("JSON"));
        let role = documents.into_iter().find(|one| one["kind"] == "ClusterRole").expect("there is one");
        let words = |value: &Value| -> Vec<String> {
            let list = value.as_array().expect("a list").iter();
            list.map(|word| word.as_str().expect("a word").to_owned()).collect()
        };
        let mut granted = Vec::new();
        for rule in role["rules"].as_array().expect("rules") {
            for resource in words(&rule["resources"]) {
                let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
                for verb in words(&rule["verbs"]) {
                    let group = words(&rule["apiGroups"]).concat();
                    granted.push((group, resource.to_owned(), subresource.to_owned(), verb));
                }
            }
        }
        let all = RIGHTS.into_iter().chain(GATEWAY_API).flat_map(|right| Right::all(right, None));
        let mut checked: Vec<_> =
            all.map(|one| (one.group, one.resource, one.subresource, one.verb)).collect();
        granted.sort();
        checked.sort();
        assert_eq!(checked, granted);
    }
}
