//! `GatewayStatus`: the status of one gateway. Cluster-scoped; each gateway has one object of its own name.
//!
//! The gateway writes it. Other gateways read it to know which addresses are withdrawn everywhere, what is served
//! where, and which addresses belong to gateways. After 40 s without a heartbeat the leader sets its conditions to
//! `Unknown`; after a day it deletes the object.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::condition::Condition;

/// The gateway that this object describes.
#[derive(Debug, Clone, Default, PartialEq, Eq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "tidegate.dev",
    version = "v1alpha1",
    kind = "GatewayStatus",
    plural = "gatewaystatuses",
    status = "GatewayStatusStatus",
    derive = "PartialEq",
    shortname = "tggw",
    category = "tidegate",
    doc = "The status of one Tidegate gateway. Written by the gateway; do not edit it.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Drain","type":"string","jsonPath":".status.conditions[?(@.type==\"Drained\")].reason"}"#,
    printcolumn = r#"{"name":"Leader","type":"boolean","jsonPath":".status.leader"}"#,
    printcolumn = r#"{"name":"Services","type":"integer","jsonPath":".status.services"}"#,
    printcolumn = r#"{"name":"Pending","type":"integer","jsonPath":".status.servicesPending"}"#,
    printcolumn = r#"{"name":"Backends-Up","type":"integer","jsonPath":".status.backendsUp"}"#,
    printcolumn = r#"{"name":"Backends","type":"integer","jsonPath":".status.backends"}"#,
    printcolumn = r#"{"name":"VIPs","type":"integer","jsonPath":".status.vipCount"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".status.conditions[?(@.type==\"SourceConnected\")].status"}"#,
    printcolumn = r#"{"name":"Seen","type":"date","jsonPath":".status.lastHeartbeat"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.version","priority":1}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","priority":1}"#,
    printcolumn = r#"{"name":"Applied","type":"integer","jsonPath":".status.generationApplied","priority":1}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".status.generationDesired","priority":1}"#
)]
pub struct GatewayStatusSpec {
    /// metadata.name in the configuration of the gateway.
    #[schemars(length(min = 1, max = 253))]
    pub gateway: String,
}

/// The status that the gateway reports.
// Flat, because other gateways and users read each field as a field of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatusStatus {
    /// Version of the binary.
    #[schemars(length(max = 64))]
    pub version: String,
    /// Identifier of the process; it changes at every start.
    #[schemars(length(max = 64))]
    pub instance: String,
    /// Node that the gateway runs on; empty outside of the cluster.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Labels of the gateway (metadata.labels of its configuration), by which pools select gateways.
    #[schemars(schema_with = "super::address_pool::labels")]
    pub labels: BTreeMap<String, String>,
    /// Whether this gateway is the leader, which writes the status of Services.
    pub leader: bool,
    /// Generation of the newest desired state.
    pub generation_desired: i64,
    /// Generation that all workers have applied.
    pub generation_applied: i64,
    /// Number of Services that request an address.
    pub services: i64,
    /// Number of Services that wait for an address.
    pub services_pending: i64,
    /// Number of backends that accept new flows, over all service ports.
    pub backends_up: i64,
    /// Number of backends, over all service ports.
    pub backends: i64,
    /// Whether the gateway is connected to the API server.
    pub source_connected: bool,
    /// Time of the last heartbeat. The leader deletes the object after a day without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_heartbeat: Option<String>,
    /// Number of VIPs that the gateway serves and whose pools select it.
    pub vip_count: i64,
    /// VIPs that the gateway serves and whose pools select it, at most 1024.
    #[schemars(length(max = 1024), inner(length(max = 45)), extend("x-kubernetes-list-type" = "set"))]
    pub vips: Vec<String>,
    /// Addresses of the gateway itself. No Service can have one of them.
    #[schemars(length(max = 1024), inner(length(max = 45)), extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<String>,
    /// Address and port at which the gateway shares flows with others (flowSharing); empty if it shares none.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub flow_sharing_address: String,
    /// resourceVersion of the Services that all workers have applied. The gateway no longer serves addresses that were
    /// released in this version or earlier.
    #[schemars(length(max = 32))]
    pub applied_resource_version: String,
    /// Services with a port that the gateway does not serve, as `namespace/name`, at most 1024; a Gateway of the Gateway
    /// API as `namespace/gateway/name`. The gateway serves all others in the version `appliedResourceVersion`.
    #[schemars(length(max = 1024), inner(length(max = 325)), extend("x-kubernetes-list-type" = "set"))]
    pub not_programmed: Vec<String>,
    /// Services with a port that has no active backend, as `namespace/name`, at most 1024.
    #[schemars(length(max = 1024), inner(length(max = 325)), extend("x-kubernetes-list-type" = "set"))]
    pub without_backends: Vec<String>,
    /// The gateway has withdrawn all addresses and stopped; other gateways do not wait for it.
    pub stopped: bool,
    /// Conditions: Ready, SourceConnected, Published, NameUnique, CanLead, InterfacesUp, Drained. All are `Unknown` after
    /// 40 s without a heartbeat.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
}
