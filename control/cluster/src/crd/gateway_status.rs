//! `GatewayStatus`: what a gateway says about itself. Cluster-wide, one for each gateway, named after it.
//!
//! Written by the gateway; the others read all of them to know what is withdrawn everywhere, what is served where, and
//! which addresses are gateways'. When nothing was heard of the gateway for 40 s, the leader sets its conditions to
//! `Unknown`; after a day it deletes the object.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// Which gateway this is about.
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
    doc = "What one Tidegate gateway says about itself. Written by the gateway; nobody else edits it.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Leader","type":"boolean","jsonPath":".status.leader"}"#,
    printcolumn = r#"{"name":"Services","type":"integer","jsonPath":".status.services"}"#,
    printcolumn = r#"{"name":"Pending","type":"integer","jsonPath":".status.servicesPending"}"#,
    printcolumn = r#"{"name":"Backends-Up","type":"integer","jsonPath":".status.backendsUp"}"#,
    printcolumn = r#"{"name":"Backends","type":"integer","jsonPath":".status.backends"}"#,
    printcolumn = r#"{"name":"VIPs","type":"integer","jsonPath":".status.vipCount"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".status.conditions[?(@.type==\"SourceConnected\")].status"}"#,
    printcolumn = r#"{"name":"Seen","type":"date","jsonPath":".status.lastHeartbeat"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.version","priority":1}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","priority":1}"#,
    printcolumn = r#"{"name":"Applied","type":"integer","jsonPath":".status.generationApplied","priority":1}"#,
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".status.generationDesired","priority":1}"#
)]
pub struct GatewayStatusSpec {
    /// The gateway's metadata.name in its configuration.
    #[schemars(length(min = 1, max = 253))]
    pub gateway: String,
}

/// What it says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatusStatus {
    /// Version of the binary.
    #[schemars(length(max = 64))]
    pub version: String,
    /// The run of the gateway: another one after every start.
    #[schemars(length(max = 64))]
    pub instance: String,
    /// The node of the cluster that it runs on; empty off the cluster.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Whether it leads: writes the status of Services.
    pub leader: bool,
    /// Generation of its newest desired state.
    pub generation_desired: i64,
    /// Generation that all of its workers forward by.
    pub generation_applied: i64,
    /// Services that ask for an address.
    pub services: i64,
    /// Those that wait for one.
    pub services_pending: i64,
    /// Backends that take new flows, over all service ports.
    pub backends_up: i64,
    /// All backends, over all service ports.
    pub backends: i64,
    /// Whether it hears the API server.
    pub source_connected: bool,
    /// When it last wrote this. A day without, and the leader deletes the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_heartbeat: Option<String>,
    /// How many VIPs it serves.
    pub vip_count: i64,
    /// The VIPs that it serves, 1024 of them at most.
    #[schemars(length(max = 1024), inner(length(max = 45)), extend("x-kubernetes-list-type" = "set"))]
    pub vips: Vec<String>,
    /// Its own addresses: no Service may have one of them.
    #[schemars(length(max = 1024), inner(length(max = 45)), extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<String>,
    /// The resourceVersion of the Services that all of its workers forward by: what was given back in this version or
    /// before, it serves no more.
    #[schemars(length(max = 32))]
    pub applied_resource_version: String,
    /// Services of which it does not serve every port, `namespace/name`, 1024 of them at most. What is not here it serves,
    /// as of `appliedResourceVersion`.
    #[schemars(length(max = 1024), inner(length(max = 317)), extend("x-kubernetes-list-type" = "set"))]
    pub not_programmed: Vec<String>,
    /// Services of which a port has no backend that takes flows, `namespace/name`, 1024 of them at most.
    #[schemars(length(max = 1024), inner(length(max = 317)), extend("x-kubernetes-list-type" = "set"))]
    pub without_backends: Vec<String>,
    /// It has withdrawn everything and ended: nobody waits for it.
    pub stopped: bool,
    /// Ready, SourceConnected, Published, NameUnique, InterfacesUp. `Unknown` where nothing was heard of the gateway for 40 s.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
}
