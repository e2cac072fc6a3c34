//! The commands of operators, with the real kubectl and a real API server: kubectl shows, waits for, describes and
//! explains what gateways write, and applies objects that gateways write too.

use serde_json::Value;

use crate::api::Needs;
use crate::needs;
use crate::tool::kubectl;
use crate::world::{Setting, World, service, slice, text};

const API: &str = "tidegate.dev/v1alpha1";
const POOL: &str = "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: public}, spec: {addresses: \
                    [203.0.113.0/28]}}";

/// A cluster with a pool, a Service and a gateway that has written its complete status.
fn shop() -> World {
    let mut world = World::new();
    world.apply(POOL);
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &Setting { document: "pools: []".into(), ..Setting::default() });
    world
}

fn stdout_of(world: &World, arguments: &[&str]) -> String {
    kubectl(world, arguments).unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
}

/// The cells of the only row, by column.
fn row(table: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = table.lines().collect();
    let [head, row] = lines[..] else { panic!("one row: {table}") };
    // Columns begin where their headers begin.
    let starts: Vec<usize> = (0..head.len())
        .filter(|&at| !head[at..].starts_with(' ') && (at == 0 || head[..at].ends_with("  ")))
        .collect();
    let cell = |line: &str, n: usize| {
        let end = starts.get(n + 1).copied().unwrap_or(line.len()).min(line.len());
        line.get(starts[n]..end).unwrap_or_default().trim().to_owned()
    };
    (0..starts.len()).map(|n| (cell(head, n), cell(row, n))).collect()
}

#[test]
fn kubectl_shows_waits_for_describes_and_explains_what_gateways_write() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = shop();
    let wait = |what: &str, object: &str| {
        stdout_of(&world, &["-n", "shop", "wait", "--timeout=120s", &format!("--for={what}"), object]);
    };
    wait("jsonpath={.status.loadBalancer.ingress[0].ip}", "service/web");
    for condition in ["Allocated", "Programmed", "Healthy"] {
        wait(&format!("condition=tidegate.dev/{condition}"), "service/web");
    }
    wait("condition=Accepted", "addresspool/public");

    let cell = |table: &[(String, String)], column: &str| {
        let found = table.iter().find(|(name, _)| name == column);
        found.unwrap_or_else(|| panic!("no column {column}: {table:?}")).1.clone()
    };
    let pool = world.until("the pool to be counted", || {
        let pool = row(&stdout_of(&world, &["get", "tgpool"]));
        (cell(&pool, "USED") == "1").then_some(pool)
    });
    let expected = [("NAME", "public"), ("TOTAL", "16"), ("AVAILABLE", "15"), ("ACCEPTED", "True")];
    expected.iter().for_each(|(column, value)| assert_eq!(cell(&pool, column), *value, "{column}: {pool:?}"));
    world.until("the row of the gateway", || {
        let gateway = row(&stdout_of(&world, &["get", "tggw", "edge-1"]));
        let expected = [("READY", "True"), ("LEADER", "true"), ("SERVICES", "1"), ("VIPS", "1")];
        expected.iter().all(|(column, value)| cell(&gateway, column) == *value).then_some(())
    });
    let all = stdout_of(&world, &["get", "tidegate", "-o", "name"]);
    assert_eq!(all, "addresspool.tidegate.dev/public\ngatewaystatus.tidegate.dev/edge-1\n");

    // `describe` shows no conditions of a Service, so events carry the same information.
    let described = world.until("the events", || {
        let text = stdout_of(&world, &["-n", "shop", "describe", "service", "web"]);
        ["IPAllocated", "EnsuredLoadBalancer"].iter().all(|reason| text.contains(reason)).then_some(text)
    });
    let address = world.gateway("edge-1").vips("web").concat();
    let ingress = described.lines().find(|line| line.starts_with("LoadBalancer Ingress:"));
    assert!(ingress.is_some_and(|line| line.contains(&address)), "{described}");
    assert!(
        !described.contains("tidegate.dev/Programmed"),
        "the README states that it shows none: {described}"
    );
    stdout_of(&world, &["-n", "shop", "annotate", "service", "web", "tidegate.dev/table-size=many"]);
    stdout_of(&world, &["-n", "shop", "delete", "endpointslice", "web-1"]);
    world.until("what was refused, and what is missing", || {
        let text = stdout_of(&world, &["-n", "shop", "describe", "service", "web"]);
        let all = ["InvalidValue", "tidegate.dev/table-size", "UnAvailableLoadBalancer"];
        all.iter().all(|part| text.contains(part)).then_some(())
    });
    let pool = stdout_of(&world, &["describe", "addresspool", "public"]);
    assert!(pool.contains("203.0.113.0/28") && pool.contains("Accepted"), "{pool}");

    for (field, part) in [
        ("addresspool.spec.addresses", "CIDRs such as 203.0.113.0/28"),
        ("tgpool.spec.namespaceSelector", "Namespaces that may use the pool"),
        ("gatewaystatus.status.lastHeartbeat", "Time of the last heartbeat"),
    ] {
        let explained = stdout_of(&world, &["explain", field]);
        assert!(
            explained.contains(part) && explained.contains("VERSION:    v1alpha1"),
            "{field}: {explained}"
        );
    }
    wait("condition=Ready", "gatewaystatus/edge-1");
    wait("condition=CanLead", "tggw/edge-1");
}

/// The managers of a part of an object, with their operations. The part is a path such as `f:status`.
fn managers(object: &Value, path: &[&str]) -> Vec<(String, String)> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owns = |entry: &Value| path.iter().fold(&entry["fieldsV1"], |part, step| &part[*step]).is_object();
    entries
        .iter()
        .filter(|entry| owns(entry))
        .map(|entry| (text(&entry["manager"]), text(&entry["operation"])))
        .collect()
}

#[test]
fn applies_of_users_and_gateways_conflict_only_where_both_write() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = shop();
    let file = |name: &str, text: &str| {
        let path = world.directory().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let stored = |world: &World| world.api.get("v1", "Service", "shop", "web").unwrap_or_default();
    let ingress = |service: &Value| text(&service["status"]["loadBalancer"]["ingress"][0]["ip"]);
    let before = world.until("everything that the gateway writes", || {
        let service = stored(&world);
        let has_all = !ingress(&service).is_empty()
            && service["metadata"]["finalizers"].is_array()
            && service["status"]["conditions"].as_array().is_some_and(|all| all.len() >= 3);
        has_all.then_some(service)
    });
    let only_ours = vec!["tidegate".to_owned()];
    for path in [
        &["f:status", "f:loadBalancer", "f:ingress"][..],
        &["f:status", "f:conditions"],
        &["f:metadata", "f:finalizers"],
    ] {
        let names: Vec<String> = managers(&before, path).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, only_ours, "{path:?}");
    }

    // Applies the user's manifest again and again, in each way. Nothing that the gateway wrote is lost.
    let manifest =
        file("web.yaml", &service("web").replace("metadata: {", "metadata: {labels: {team: shop}, "));
    let pool = file("pool.yaml", POOL);
    for how in [&["apply", "--server-side", "--force-conflicts"][..], &["apply"], &["apply", "--server-side"]]
    {
        for path in [&manifest, &pool] {
            stdout_of(&world, &[how, &["-f", path.as_str()]].concat());
        }
        let now = stored(&world);
        assert_eq!(
            (ingress(&now), &now["metadata"]["finalizers"]),
            (ingress(&before), &before["metadata"]["finalizers"])
        );
        assert_eq!(now["status"], before["status"], "{how:?}");
    }
    let names = |list: &[(String, String)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert!(
        !names(&managers(&stored(&world), &["f:spec"])).contains(&only_ours[0]),
        "a gateway owns nothing of a spec"
    );
    world.until("the pool's finalizer and status", || {
        let pool = world.api.get(API, "AddressPool", "", "public")?;
        let is_ours = |path: &[&str]| names(&managers(&pool, path)) == only_ours;
        (is_ours(&["f:metadata", "f:finalizers"]) && is_ours(&["f:status", "f:conditions"])).then_some(())
    });

    // A foreign address in the status is refused, and the gateway's address stays.
    let status = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, status: {loadBalancer: \
                  {ingress: [{ip: 198.51.100.1}]}}}";
    let status = file("status.yaml", status);
    let refused = kubectl(&world, &["apply", "--server-side", "--subresource=status", "-f", &status]);
    let refused = refused.expect_err("a conflict");
    assert!(
        refused.contains("conflict with \"tidegate\"") && refused.contains(".status.loadBalancer.ingress"),
        "{refused}"
    );
    assert_eq!(ingress(&stored(&world)), ingress(&before));
}

#[test]
fn kubectl_waits_for_a_gateway_and_shows_ages_and_deletions() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = shop();
    world.apply(
        "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: extra}, spec: {autoAssign: \
         false, addresses: [198.51.100.0/30, 198.51.100.9]}}",
    );
    // The gateway writes its status for the first time.
    world.until("the gateway's own status", || kubectl(&world, &["get", "gatewaystatus/edge-1"]).ok());
    stdout_of(&world, &["wait", "--for=condition=Ready", "gatewaystatus/edge-1", "--timeout=60s"]);
    stdout_of(&world, &["wait", "--for=condition=InUse", "addresspool/public", "--timeout=60s"]);
    let cell = |table: &str, column: &str| {
        let found = row(table).into_iter().find(|(name, _)| name == column);
        found.unwrap_or_else(|| panic!("no column {column}: {table}")).1
    };
    assert!(cell(&stdout_of(&world, &["get", "tggw"]), "AGE").ends_with(['s', 'm']));
    let pool = world.until("the pool to be counted", || {
        let pool = stdout_of(&world, &["get", "tgpool", "extra", "-o", "wide"]);
        (cell(&pool, "GATEWAYS") == "edge-1").then_some(pool)
    });
    assert_eq!(cell(&pool, "ADDRESSES"), "198.51.100.0/30, 198.51.100.9", "{pool}");
    assert!(!cell(&pool, "DELETING").ends_with('s'), "{pool}");
    // A pool in use stays until its Services are gone.
    stdout_of(&world, &["delete", "tgpool", "public", "--wait=false"]);
    let pool = stdout_of(&world, &["get", "tgpool", "public"]);
    assert!(cell(&pool, "DELETING").ends_with(['s', 'm']), "{pool}");
}

#[test]
fn kubectl_tidegate_queries_the_api_server_from_a_workstation() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = shop();
    let columns = |arguments: &[&str]| {
        let table = kubectl(&world, &[&["tidegate"], arguments].concat()).ok()?;
        (table.lines().count() == 2).then(|| row(&table))
    };
    for (arguments, expected) in [
        (&["status"][..], [("NAME", "edge-1"), ("READY", "True")]),
        (&["services", "-n", "shop"], [("NAME", "web"), ("PROGRAMMED", "True")]),
        (&["pools"], [("NAME", "public"), ("USED", "1")]),
    ] {
        world.until(&format!("{expected:?}"), || {
            let row = columns(arguments)?;
            let has = |(column, value): &(&str, &str)| row.iter().any(|(c, v)| c == column && v == value);
            expected.iter().all(has).then_some(())
        });
    }
    let flows = kubectl(&world, &["tidegate", "flows"]).expect_err("a workstation has no gateway");
    assert!(flows.contains("only a gateway has flows"), "{flows}");
}
