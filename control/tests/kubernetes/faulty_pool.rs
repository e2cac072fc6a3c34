//! AddressPools that an API server accepted although their rules refuse them. The test API server evaluates no CEL,
//! like servers before 1.25.

use serde_json::Value;

use crate::api::Needs;
use crate::needs;
use crate::world::{Setting, World, service, slice, text};

fn pool(addresses: &str) -> String {
    format!(
        "{{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {{name: public}}, \
         spec: {{addresses: [{addresses}]}}}}"
    )
}

/// The condition `Accepted` of the pool: status and message.
fn accepted(world: &World) -> Option<(String, String)> {
    let pool = world.api.get("tidegate.dev/v1alpha1", "AddressPool", "", "public")?;
    let conditions = pool["status"]["conditions"].as_array()?.clone();
    let found = conditions.iter().find(|condition| condition["type"] == "Accepted")?;
    Some((text(&found["status"]), text(&found["message"])))
}

#[test]
fn a_faulty_address_pool_reports_it_and_its_services_keep_their_addresses() {
    needs!(Needs::PastValidation);
    let mut world = World::new();
    world.apply(&pool("203.0.113.0/28"));
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &Setting { document: "pools: []".into(), ..Setting::default() });
    let gateway = world.gateway("edge-1");
    let had = world.until("an address", || Some(gateway.vips("web")).filter(|vips| vips.len() == 1));
    let written = || {
        let service = world.api.get("v1", "Service", "shop", "web")?;
        Some(text(&service["status"]["loadBalancer"]["ingress"][0]["ip"])).filter(|ip| !ip.is_empty())
    };
    assert_eq!(world.until("the address in the status", written), had[0]);

    world.api.apply_past_validation(&pool("203.0.113.5/28")).expect("stored");
    let condition =
        world.until("the pool to report it", || accepted(&world).filter(|(status, _)| status == "False"));
    assert!(condition.1.contains("spec.addresses[0]: 203.0.113.5/28 has host bits set"), "{condition:?}");
    let is_reported = |event: &Value| {
        event["regarding"]["kind"] == "AddressPool"
            && event["reason"] == "PoolNotAccepted"
            && text(&event["note"]).contains("has host bits set")
    };
    let events = || world.api.list("events.k8s.io/v1", "Event", "");
    world.until("an event of the pool", || events().iter().any(is_reported).then_some(()));
    assert_eq!(gateway.vips("web"), had, "a mistake releases no address");
    world.apply(&pool("203.0.113.0/28"));
    world.until("the pool to be accepted", || accepted(&world).filter(|(status, _)| status == "True"));
    assert_eq!((gateway.vips("web"), written()), (had.clone(), Some(had[0].clone())));
}
