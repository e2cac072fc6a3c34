//! Sends the writes of a plan to the API server.
//!
//! Status is written by server-side apply under one field manager, so that fields of other owners stay theirs. The
//! finalizer of a Service is written with a strategic merge patch, which adds or removes one list entry. AddressPools
//! don't support such a patch, so their finalizer is applied. All requests contain the uid, so that they don't change
//! an object that was deleted and created again.

use k8s_openapi::api::core::v1::{LoadBalancerIngress, PortStatus, Service};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tidegate_model::config::API_VERSION;
use tidegate_model::objects::{Condition, FINALIZER, Ingress, IngressPort, ObjectKey};
use tidegate_policy::pools::FIELD_MANAGER;

use super::crd::{self, AddressPool};
use super::gateway_api_request;
use super::plan::Write;
use super::request::{RequestError, applied_finalizer, apply_status, own_status, within};

/// Sends a write.
pub(super) async fn send(client: Client, write: Write) -> Result<(), RequestError> {
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    match write {
        Write::Finalizer { service, uid, present } => {
            if let Some(name) = service.gateway_name() {
                let gateway = ObjectKey::new(service.namespace.as_str(), name);
                return gateway_api_request::write_finalizer(client, &gateway, &uid, present).await;
            }
            let api: Api<Service> = Api::namespaced(client, &service.namespace);
            let patch = finalizer(&uid, present);
            // Only the field manager: `force` is for applies.
            let params =
                PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            within(api.patch(&service.name, &params, &Patch::Strategic(patch))).await?;
        }
        Write::ServiceStatus { service, uid, ingress, conditions } => {
            let api: Api<Service> = Api::namespaced(client, &service.namespace);
            let patch = service_status(&service.name, &uid, ingress.as_deref(), &conditions);
            within(api.patch_status(&service.name, &apply, &Patch::Apply(patch))).await?;
        }
        Write::GatewayApiStatus { object, uid, status } => {
            gateway_api_request::write_status(client, &object, &uid, &status).await?;
        }
        Write::PoolFinalizer { pool, uid, present } => {
            let api: Api<AddressPool> = Api::all(client);
            let patch = applied_finalizer(API_VERSION, "AddressPool", &pool, &uid, present);
            within(api.patch(&pool, &apply, &Patch::Apply(patch))).await?;
        }
        Write::PoolStatus { pool, status } => {
            let api: Api<AddressPool> = Api::all(client);
            let (_, left_out) = apply_status(&api, &pool, own_status("AddressPool", &pool, &status)).await?;
            // Treat this as a failure, so that it is reported and retried in case the definition was updated.
            if !left_out.is_empty() {
                let fields = left_out.join(", ");
                let accepted = "the definitions of deploy/kubernetes/crds";
                return Err(RequestError::OlderDefinition { kind: "AddressPool", fields, accepted });
            }
        }
    }
    Ok(())
}

fn finalizer(uid: &str, present: bool) -> Value {
    let key = if present { "finalizers" } else { "$deleteFromPrimitiveList/finalizers" };
    json!({"metadata": {"uid": uid, key: [FINALIZER]}})
}

fn service_status(name: &str, uid: &str, ingress: Option<&[Ingress]>, conditions: &[Condition]) -> Value {
    let mut status = json!({});
    if let Some(ingress) = ingress {
        status["loadBalancer"] = json!({"ingress": ingress.iter().map(api_ingress).collect::<Vec<_>>()});
    }
    if !conditions.is_empty() {
        status["conditions"] = json!(conditions.iter().map(crd::Condition::from).collect::<Vec<_>>());
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "uid": uid}, "status": status})
}

fn api_ingress(ingress: &Ingress) -> LoadBalancerIngress {
    let Ingress { ip, hostname, ip_mode, ports } = ingress.clone();
    let port =
        |port: IngressPort| PortStatus { error: port.error, port: port.port.into(), protocol: port.protocol };
    LoadBalancerIngress {
        ip: ip.map(|ip| ip.to_string()),
        hostname,
        ip_mode,
        ports: (!ports.is_empty()).then(|| ports.into_iter().map(port).collect()),
    }
}

#[cfg(test)]
mod tests {
    use test_apiserver::{Options, TestApiServer};
    use tidegate_source::kubernetes::Connector;

    use super::*;
    use crate::counts::Ended;
    use crate::queue::Outcome;
    use crate::request::{classify, with_client};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_finalizer_that_arrives_after_the_deletion_is_not_an_error() {
        let server = TestApiServer::start(Options::default()).expect("a free loopback port");
        let directory = tempfile::tempdir().expect("a directory");
        let connector = Connector::new(Some(server.kubeconfig(directory.path()).expect("a file")));
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "finalizers": ["example.com/finalizer"]},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}
        });
        let stored = server.put(service).expect("a valid Service");
        assert!(server.delete("v1", "Service", "shop", "web"));
        let uid = stored[0]["metadata"]["uid"].as_str().expect("a server sets it").to_owned();
        let write = Write::Finalizer { service: ObjectKey::new("shop", "web"), uid, present: true };
        let result = with_client(&connector, |client| send(client, write)).await;
        assert_eq!(result.as_ref().expect_err("it is deleted").code(), Some(422));
        assert_eq!(classify(&result), (Outcome::Superseded, Ended::Conflict));
    }
}
