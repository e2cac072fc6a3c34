//! `AddressPool`: addresses for Services, and the rules for which Services get them. Cluster-scoped.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::condition::Condition;

/// An entry is an address, a CIDR or a range of one family. The rule needs the CEL libraries for addresses and CIDRs,
/// which API servers accept in new rules since Kubernetes 1.31. It uses `in` because some API servers can't bound the
/// cost of comparing two CIDRs with `==`.
const ADDRESS_RULE: &str = "self.contains('-') \
    ? self.split('-').size() == 2 && self.split('-').all(a, isIP(a.trim())) \
      && ip(self.split('-')[0].trim()).family() == ip(self.split('-')[1].trim()).family() \
    : (self.contains('/') ? isCIDR(self) && cidr(self) in [cidr(self).masked()] : isIP(self))";

/// Addresses must be unicast. Entries that are not addresses pass, because the other rule rejects them.
const UNICAST_RULE: &str = "self.contains('-') \
    ? self.split('-').all(a, !isIP(a.trim()) || ip(a.trim()).isGlobalUnicast()) \
    : (self.contains('/') ? !isCIDR(self) || cidr(self).ip().isGlobalUnicast() \
      : !isIP(self) || ip(self).isGlobalUnicast())";

/// Addresses that Services may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "tidegate.dev",
    version = "v1alpha1",
    kind = "AddressPool",
    status = "AddressPoolStatus",
    derive = "PartialEq",
    shortname = "tgpool",
    category = "tidegate",
    doc = "A set of addresses that Tidegate assigns to Services of type LoadBalancer, or accepts as externalIPs.",
    printcolumn = r#"{"name":"Total","type":"integer","jsonPath":".status.total","description":"Addresses in the pool"}"#,
    printcolumn = r#"{"name":"Used","type":"integer","jsonPath":".status.used","description":"Addresses that Services use"}"#,
    printcolumn = r#"{"name":"Available","type":"integer","jsonPath":".status.available","description":"Addresses that can still be assigned"}"#,
    printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name":"Overlaps","type":"string","jsonPath":".status.conditions[?(@.type==\"Overlaps\")].status"}"#,
    printcolumn = r#"{"name":"InUse","type":"string","jsonPath":".status.conditions[?(@.type==\"InUse\")].status"}"#,
    printcolumn = r#"{"name":"Deleting","type":"date","jsonPath":".metadata.deletionTimestamp","description":"Time since the deletion was requested; the pool stays while Services use its addresses"}"#,
    printcolumn = r#"{"name":"Auto","type":"boolean","jsonPath":".spec.autoAssign","priority":1}"#,
    printcolumn = r#"{"name":"ExternalIPs","type":"boolean","jsonPath":".spec.externalIPs","priority":1}"#,
    printcolumn = r#"{"name":"Disabled","type":"boolean","jsonPath":".spec.disabled","priority":1}"#,
    printcolumn = r#"{"name":"Gateways","type":"string","jsonPath":".status.gatewaySummary","priority":1}"#,
    printcolumn = r#"{"name":"Addresses","type":"string","jsonPath":".status.addressSummary","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct AddressPoolSpec {
    /// CIDRs such as 203.0.113.0/28, ranges such as 203.0.113.10-203.0.113.20, single addresses. Every address is used,
    /// including the first and the last of a CIDR.
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 2, max = 79)),
        extend("x-kubernetes-list-type" = "set"),
        schema_with = "addresses"
    )]
    pub addresses: Vec<String>,
    /// Assign addresses to Services that name no pool.
    #[serde(default = "yes")]
    pub auto_assign: bool,
    /// Accept spec.externalIPs that are in the pool.
    #[serde(default, rename = "externalIPs")]
    pub external_ips: bool,
    /// Assign no new addresses; assigned addresses stay.
    #[serde(default)]
    pub disabled: bool,
    /// Namespaces that may use the pool; all if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
    /// Services that may use the pool; all if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_selector: Option<Selector>,
    /// Maximum number of addresses that one namespace may use; no limit if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4294967295_i64))]
    pub quota_per_namespace: Option<i64>,
    /// Allow Services of different namespaces to share an address if their tidegate.dev/allow-shared-ip keys are equal.
    #[serde(default)]
    pub share_across_namespaces: bool,
    /// Release addresses that the pool would no longer assign because they are not in spec.addresses, exceed the
    /// quota, or belong to Services that the selectors do not match. If the pool is disabled, release all addresses.
    /// By default, Services keep their addresses.
    #[serde(default)]
    pub force_release: bool,
    /// Gateways that announce the addresses, by their metadata.labels; all if omitted. Other gateways still forward
    /// packets that arrive for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_selector: Option<Selector>,
    /// How gateways announce the addresses, where their configuration enables it: l2 (ARP and neighbour discovery), bgp;
    /// both if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2), inner(length(max = 3), regex(pattern = "^(l2|bgp)$")), extend("x-kubernetes-list-type" = "set"))]
    pub announce: Option<Vec<String>>,
    /// BGP attributes of the routes to the addresses, and aggregation. Annotations of Services override the attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<PoolRoutes>,
}

/// The attributes of the routes to the addresses of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolRoutes {
    /// Communities such as 64512:100, large ones such as 64512:1:2, no-export, no-advertise, no-export-subconfed,
    /// graceful-shutdown; in addition to those of peers and Services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(max = 32), regex(pattern = COMMUNITY)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub communities: Vec<String>,
    /// Local preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4294967295_i64))]
    pub local_pref: Option<i64>,
    /// MED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4294967295_i64))]
    pub med: Option<i64>,
    /// Number of times that the AS number of the gateway is prepended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub prepends: Option<i64>,
    /// Announce IPv4 prefixes of this length instead of the addresses in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 32))]
    pub aggregation_length: Option<i64>,
    /// Announce IPv6 prefixes of this length instead of the addresses in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 128))]
    pub aggregation_length_v6: Option<i64>,
}

/// The pattern of a community. The gateway checks the numbers.
const COMMUNITY: &str = "^([0-9]{1,5}:[0-9]{1,5}|[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}|no-export|no-advertise|no-export-subconfed|graceful-shutdown)$";

fn yes() -> bool {
    true
}

fn addresses(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 64,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "minLength": 2,
            "maxLength": 79,
            "x-kubernetes-validations": [{
                "rule": ADDRESS_RULE,
                "message": "an address, a CIDR such as 203.0.113.0/28 without host bits set, \
                    or a range of one family such as 203.0.113.10-203.0.113.20"
            }, {
                "rule": UNICAST_RULE,
                "message": "unicast addresses that clients can send to"
            }]
        }
    })
}

/// The pattern of a label key, whose prefix is a DNS name.
macro_rules! label_key {
    () => {
        "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
         ([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$"
    };
}
const LABEL_KEY: &str = label_key!();
/// A rule, because a schema has no pattern for the keys of a map.
const LABEL_KEYS_RULE: &str =
    concat!("self.all(key, key.split('/')[0].size() <= 253 && key.matches('", label_key!(), "'))");
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LabelSelector")]
pub struct Selector {
    /// Labels that must be present with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that must also be met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<Requirement>,
}

pub(super) fn labels(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE}
    })
}

fn match_labels(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = labels(generator);
    let rule = json!({"rule": LABEL_KEYS_RULE, "message": "label keys such as team or example.org/team"});
    schema.insert("x-kubernetes-validations".to_owned(), json!([rule]));
    schema
}

/// One requirement of a selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || self.values.size() == 0",
    "message": "values with In and NotIn, none with Exists and DoesNotExist"
}]))]
pub struct Requirement {
    /// Label key.
    #[schemars(length(min = 1, max = 317), regex(pattern = LABEL_KEY))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[schemars(extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist"]))]
    pub operator: String,
    /// Values of In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63), regex(pattern = LABEL_VALUE)))]
    pub values: Vec<String>,
}

/// Usage of the pool, and whether it is accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressPoolStatus {
    /// Number of addresses in the pool, of both families; at most 2^63 - 1.
    #[serde(default)]
    pub total: i64,
    /// Number of addresses that Services use.
    #[serde(default)]
    pub used: i64,
    /// Number of addresses that can still be assigned.
    #[serde(default)]
    pub available: i64,
    /// Live gateways that the pool selects, at most 256.
    #[serde(default)]
    #[schemars(length(max = 256), inner(length(max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub gateways: Vec<String>,
    /// The selected gateways as text, for `kubectl get -o wide`; truncated if there are many.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub gateway_summary: String,
    /// Addresses of the pool as text; truncated if there are many.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub address_summary: String,
    /// Conditions: Accepted, Overlaps, InUse.
    #[serde(default)]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
}
