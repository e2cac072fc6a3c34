//! Our CustomResourceDefinitions on a real API server: which objects it accepts, and how an upgrade or a downgrade of
//! the definitions affects a running gateway.
//!
//! The table is `deploy/scripts/crd-cases.yaml`; `control/cluster/src/crd/cases.rs` checks the gateway with it.

use serde_json::{Value, json};

use crate::api::{Admin, Needs, ObjectPath, Refusal};
use crate::needs;
use crate::world::{Setting, World, deploy, service, slice, text};

const API: &str = "tidegate.dev/v1alpha1";
const CRD: &str = "apiextensions.k8s.io/v1";

/// Creates the object of a case and applies its status, without keeping the last write.
fn judge(admin: &Admin, object: &Value) -> Result<(), Refusal> {
    let mut object = object.clone();
    object["apiVersion"] = API.into();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    let (all, one) =
        (ObjectPath::new(API, &kind, "", "").path(), ObjectPath::new(API, &kind, "", &name).path());
    let status = object.as_object_mut().and_then(|object| object.remove("status"));
    let create = |query: &str| {
        admin.request("POST", &format!("{all}{query}"), Some(("application/json", &object))).map(drop)
    };
    let Some(status) = status else { return create("?dryRun=All&fieldValidation=Strict") };
    create("")?;
    let patch = json!({ "status": status });
    let path = format!("{one}/status?dryRun=All&fieldValidation=Strict");
    let judged = admin.request("PATCH", &path, Some(("application/merge-patch+json", &patch)));
    admin.request("DELETE", &one, None)?;
    judged.map(drop)
}

/// Whether each expected `FIELD: TEXT` is a cause of the refusal, and there is no other cause.
fn is_as_expected(expected: &[String], causes: &[String]) -> bool {
    let is_met = |expected: &String| {
        let (field, message) = expected.split_once(": ").unwrap_or((expected.trim_end_matches(':'), ""));
        let mut causes = causes.iter().filter_map(|cause| cause.split_once(": "));
        causes.any(|(of, cause)| of == field && cause.contains(message))
    };
    expected.len() == causes.len() && expected.iter().all(is_met)
}

#[test]
fn the_api_server_accepts_and_refuses_what_the_table_says() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = World::new();
    let table = std::fs::read_to_string(deploy().join("scripts/crd-cases.yaml")).expect("readable");
    let cases: Vec<Value> = serde_saphyr::from_str(&table).expect("a list");
    assert!(cases.len() >= 50, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let refused = case["refused"].as_array().cloned().unwrap_or_default();
        let expected: Vec<String> = refused.iter().map(text).collect();
        let causes = match judge(world.api.admin(), &case["object"]) {
            Ok(()) => Vec::new(),
            Err(refusal) if refusal.causes.is_empty() => vec![refusal.to_string()],
            // After a schema violation, the server reports that it did not evaluate the rules.
            Err(refusal) => {
                refusal.causes.into_iter().filter(|cause| !cause.starts_with("<nil>: ")).collect()
            }
        };
        if !is_as_expected(&expected, &causes) {
            wrong.push(format!("{}: causes {causes:#?}, expected {expected:#?}", text(&case["case"])));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    // The server reports fields that the schema lacks, so the table also proves that the schema has all fields of its
    // objects.
    let typo = json!({"kind": "AddressPool", "metadata": {"name": "p"}, "spec": {"adresses": [], "addresses": ["192.0.2.1"]}});
    let refusal = judge(world.api.admin(), &typo).expect_err("a typo");
    assert!(refusal.message.contains("unknown field \"spec.adresses\""), "{refusal}");
}

/// A definition without these fields of its spec and status, as an older release has it.
pub(crate) fn older(mut definition: Value, fields: &[(&str, &str)]) -> Value {
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for (part, field) in fields {
        let properties = schema["properties"][part]["properties"].as_object_mut().expect("properties");
        assert!(properties.remove(*field).is_some(), "{part}.{field}");
    }
    definition
}

/// The definitions of this tree, or older ones.
fn definitions(is_older: bool) -> Vec<String> {
    let read = |name: &str| {
        let path = deploy().join("kubernetes/crds").join(format!("tidegate.dev_{name}.yaml"));
        let text = std::fs::read_to_string(path).expect("readable");
        serde_saphyr::from_str::<Value>(&text).expect("YAML")
    };
    let removed: [(&str, &[(&str, &str)]); 2] = [
        ("addresspools", &[("spec", "bgp"), ("spec", "gatewaySelector"), ("status", "gateways")]),
        ("gatewaystatuses", &[("status", "withoutBackends"), ("status", "labels")]),
    ];
    let made = removed.map(|(name, fields)| if is_older { older(read(name), fields) } else { read(name) });
    made.iter().map(Value::to_string).collect()
}

/// The fields of an object that only the current definitions have.
fn new_fields(world: &World) -> [bool; 2] {
    let pool = world.api.get(API, "AddressPool", "", "public").unwrap_or_default();
    let gateway = world.api.get(API, "GatewayStatus", "", "edge-1").unwrap_or_default();
    [pool["status"]["gateways"].is_array(), gateway["status"]["withoutBackends"].is_array()]
}

#[test]
fn older_and_newer_definitions_change_only_their_fields() {
    needs!(Needs::RealServer, Needs::Version(31));
    let mut world = World::new();
    let pool = "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: public}, spec: {addresses: \
                [203.0.113.0/28], gatewaySelector: {matchLabels: {rack: r1}}}}";
    world.apply(pool);
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let document = "pools: []".to_owned();
    let setting =
        Setting { document, called: Some("edge-1, labels: {rack: r1}".into()), ..Setting::default() };
    world.start_with("edge-1", &setting);
    let address = |world: &World, name: &str| {
        let service = world.api.get("v1", "Service", "shop", name)?;
        service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(str::to_owned)
    };
    let had = world.until("an address", || address(&world, "web"));
    world.until("every field", || (new_fields(&world) == [true; 2]).then_some(()));

    // Downgrade: the server drops the fields that the older definitions don't have, in what it stores and returns.
    let apply =
        |world: &World, is_older: bool| definitions(is_older).iter().for_each(|text| world.apply(text));
    let heartbeat = |world: &World| {
        let gateway = world.api.get(API, "GatewayStatus", "", "edge-1").unwrap_or_default();
        text(&gateway["status"]["lastHeartbeat"])
    };
    // The administrator's apply keeps fields of other managers, so the schema is replaced as a whole.
    for text in definitions(true) {
        let definition: Value = serde_json::from_str(&text).expect("JSON");
        let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
        let schema = definition["spec"]["versions"].clone();
        world
            .api
            .edit(CRD, "CustomResourceDefinition", "", &name, |stored| stored["spec"]["versions"] = schema)
            .expect("legal");
    }
    world.until("the fields to go", || (new_fields(&world) == [false; 2]).then_some(()));
    let before = heartbeat(&world);
    world.until("the gateway to write its status", || (heartbeat(&world) > before).then_some(()));
    world.apply(&(service("later") + &slice("later", &["10.244.0.2"])));
    let later = world.until("another address", || address(&world, "later"));
    assert!(later.starts_with("203.0.113."), "{later}");
    // The status is written without the field that the definition lacks.
    let used = |world: &World| {
        let pool = world.api.get(API, "AddressPool", "", "public").unwrap_or_default();
        pool["status"]["used"].as_u64()
    };
    world.until("the status of the pool", || (used(&world) == Some(2)).then_some(()));
    assert_eq!(address(&world, "web").as_ref(), Some(&had));
    assert_eq!(world.gateway("edge-1").vips("web"), std::slice::from_ref(&had));

    // Upgrade: the gateway fills the new fields without a restart.
    apply(&world, false);
    world.until("every field again", || (new_fields(&world) == [true; 2]).then_some(()));
    assert_eq!(address(&world, "web"), Some(had));
    assert_eq!(address(&world, "later"), Some(later));
}
