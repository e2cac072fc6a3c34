//! Tables of what gateways write to the API server: GatewayStatuses, Services and AddressPools.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as KubeCondition;
use kube::ResourceExt as _;
use tidegate_cluster::crd::{AddressPool, Condition, GatewayStatus};

use super::cluster::Shown;
use super::output::age;

impl Shown for GatewayStatus {
    const HEADERS: &'static [&'static str] = &[
        "NAME", "READY", "LEADER", "SERVICES", "PENDING", "BACKENDS", "VIPS", "SEEN", "VERSION", "+NODE",
        "+MESSAGE",
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let seen = status.last_heartbeat.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
        let faults: Vec<String> = status.conditions.iter().filter_map(fault).collect();
        vec![
            self.name_any(),
            status_of(&status.conditions, "Ready"),
            if status.leader { "yes" } else { "no" }.to_owned(),
            status.services.to_string(),
            status.services_pending.to_string(),
            format!("{}/{}", status.backends_up, status.backends),
            status.vip_count.to_string(),
            age_of(seen, now),
            status.version,
            status.node,
            faults.join("; "),
        ]
    }
}

fn status_of(conditions: &[Condition], kind: &str) -> String {
    let condition = conditions.iter().find(|condition| condition.kind == kind);
    condition.map_or_else(|| "<unknown>".to_owned(), |condition| condition.status.clone())
}

fn fault(condition: &Condition) -> Option<String> {
    let Condition { kind, status, message, .. } = condition;
    (status != "True").then(|| format!("{kind}: {status} {message}").trim_end().to_owned())
}

impl Shown for Service {
    const HEADERS: &'static [&'static str] =
        &["NAMESPACE", "NAME", "TYPE", "VIP", "PORT(S)", "PROGRAMMED", "HEALTHY", "AGE", "+MESSAGE"];

    fn is_ours(&self) -> bool {
        conditions(self).any(|condition| condition.type_.starts_with(PREFIX))
    }

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let of = |kind: &str| conditions(self).find(|c| c.type_.strip_prefix(PREFIX) == Some(kind));
        let shown = |kind: &str| of(kind).map_or("<unknown>", |c| c.status.as_str()).to_owned();
        let ports = spec.ports.unwrap_or_default();
        let ports: Vec<String> = ports
            .iter()
            .map(|port| format!("{}/{}", port.port, port.protocol.as_deref().unwrap_or("TCP")))
            .collect();
        let faults = ["Allocated", "Programmed", "Healthy"].map(|kind| {
            of(kind).filter(|c| c.status != "True").map(|c| c.message.clone()).filter(|m| !m.is_empty())
        });
        let vips = vips(self);
        vec![
            self.namespace().unwrap_or_default(),
            self.name_any(),
            spec.type_.unwrap_or_default(),
            if vips.is_empty() { "<pending>".to_owned() } else { vips.join(",") },
            ports.join(","),
            shown("Programmed"),
            shown("Healthy"),
            age_of(self.creation_timestamp().map(|at| at.0), now),
            faults.into_iter().flatten().collect::<Vec<_>>().join("; "),
        ]
    }
}

/// The prefix of our condition types.
const PREFIX: &str = "tidegate.dev/";

fn conditions(service: &Service) -> impl Iterator<Item = &KubeCondition> {
    service.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// Returns the load balancer addresses and the external IPs.
fn vips(service: &Service) -> Vec<String> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.into_iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    let external = service.spec.iter().flat_map(|spec| spec.external_ips.iter().flatten());
    ingress.filter_map(|ingress| ingress.ip.clone()).chain(external.cloned()).collect()
}

// Only the gateways know the pools of their configurations.
impl Shown for AddressPool {
    const HEADERS: &'static [&'static str] =
        &["NAME", "TOTAL", "USED", "AVAILABLE", "ACCEPTED", "ADDRESSES", "+MESSAGE"];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let condition = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
        let message = |kind: &str| condition(kind).map(|condition| condition.message.clone());
        // A pool that is being deleted waits for the Services that still have addresses from it.
        let deleted = self.metadata.deletion_timestamp.as_ref().map(|_| {
            let why = message("InUse").unwrap_or_default();
            format!("being deleted; {why}").trim_end_matches("; ").to_owned()
        });
        let accepted = message("Accepted").filter(|message| !message.is_empty());
        vec![
            self.name_any(),
            status.total.to_string(),
            status.used.to_string(),
            status.available.to_string(),
            status_of(&status.conditions, "Accepted"),
            self.spec.addresses.join(","),
            deleted.into_iter().chain(accepted).collect::<Vec<_>>().join("; "),
        ]
    }
}

fn age_of(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(
        || "<unknown>".to_owned(),
        |at| age(u64::try_from(now.as_second() - at.as_second()).unwrap_or(0)),
    )
}
