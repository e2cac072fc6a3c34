//! EndpointSlices over a limit: the endpoints that are kept, the reports about the others, and how they return.

use std::collections::BTreeMap;

use allocation_counter::measure;
use serde_json::json;
use tidegate_model::config::GatewayApi;
use tidegate_model::objects::{ENDPOINTS_MAX, EndpointSlice, NotKept};
use tidegate_model::yaml::Node;

use super::super::object::Received;
use super::super::reflect::leave_out;
use super::*;
use crate::directory::DirectorySource;

/// A slice of a Service with this many endpoints, as JSON. With 600 endpoints it uses about 310 KiB of the budget.
fn large(namespace: &str, service: &str, n: usize, endpoints: usize) -> String {
    let endpoint = |at: usize| json!({"addresses": [format!("10.0.{}.{}", at / 250, at % 250 + 1)]});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{n}"),
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    })
    .to_string()
}

fn small_world() -> World {
    let mut world = World::new();
    world.config.endpoint_slices_mib = 1;
    world.apply_web();
    world
}

/// Each slice with its number of kept endpoints, and the reason if not all are kept.
fn kept(objects: &Objects) -> BTreeMap<String, (usize, Option<NotKept>)> {
    let one = |(key, slice): (&ObjectKey, &Arc<EndpointSlice>)| {
        (key.to_string(), (slice.endpoints.len(), slice.left_out.map(|left_out| left_out.why)))
    };
    objects.endpoint_slices.iter().map(one).collect()
}

/// The names of the slices in `greedy` that are left out.
fn left_out(update: &SourceUpdate) -> Vec<String> {
    let slices = update.objects.endpoint_slices.values().filter(|slice| slice.left_out.is_some());
    slices.map(|slice| slice.meta.key.to_string()).collect()
}

#[tokio::test]
async fn a_namespace_above_its_share_loses_its_newest_slices_temporarily() {
    let world = small_world();
    for n in 0..5 {
        world.server.apply(&large("greedy", &format!("s{n}"), 0, 600)).expect("legal");
    }
    let source = world.start();
    let two = ["greedy/s3-0", "greedy/s4-0"];
    let update = until(&source, "slices that are left out", |u| left_out(u) == two).await;
    assert_eq!(update.slices_left_out, 2);
    assert_eq!(kept(&update.objects)["shop/web-1"], (1, None));
    assert_eq!(kept(&update.objects)["greedy/s2-0"], (600, None));
    let text = update.report.to_string();
    assert!(
        text.contains("namespace greedy exceed a limit")
            && text.contains(": s3, s4;")
            && text.contains("endpointSlicesMiB (1 MiB)"),
        "{text}"
    );
    // Changes of these slices and further ones are not kept either. A namespace below its share loses nothing.
    world.server.apply(&large("greedy", "s4", 0, 700)).expect("legal");
    world.server.apply(&large("greedy", "s5", 0, 100)).expect("legal");
    world.server.apply(&manifest("api", "10.0.2.1")).expect("legal");
    let update =
        until(&source, "the next one", |u| left_out(u).len() == 3 && service(u, "api").is_some()).await;
    assert_eq!(left_out(&update), ["greedy/s3-0", "greedy/s4-0", "greedy/s5-0"]);
    // A gateway that starts now has the same result.
    let fresh = KubernetesSource::start_with(&world.config, "other", quick());
    let other = until(&fresh, "objects", |u| left_out(u) == left_out(&update)).await;
    assert_eq!(kept(&other.objects), kept(&update.objects));
    drop(fresh);
    world.server.delete("discovery.k8s.io/v1", "EndpointSlice", "greedy", "s0-0");
    let last = ["greedy/s4-0", "greedy/s5-0"];
    let update = until(&source, "the slice that fits", |u| left_out(u) == last).await;
    assert_eq!(kept(&update.objects)["greedy/s3-0"], (600, None));
    for name in ["s1-0", "s2-0", "s4-0"] {
        world.server.delete("discovery.k8s.io/v1", "EndpointSlice", "greedy", name);
    }
    let update = until(&source, "the remaining slices", |u| left_out(u).is_empty()).await;
    assert_eq!((update.slices_left_out, kept(&update.objects)["greedy/s5-0"]), (0, (100, None)));
    until(&source, "an empty report", |u| u.report.is_empty()).await;
}

#[tokio::test]
async fn slices_left_out_are_small_on_disk_and_stay_left_out_after_a_start() {
    let world = small_world();
    for n in 0..8 {
        world.server.apply(&large("greedy", &format!("s{n}"), 0, 600)).expect("legal");
    }
    let source = world.start();
    let update = until(&source, "slices that are left out", |u| left_out(u).len() == 5).await;
    source.save().await;
    drop(source);
    let file = world.config.state_directory.clone().expect("it is configured").join("edge.objects.jsonl");
    let lines = std::fs::read_to_string(file).expect("the file exists");
    let slices = lines.lines().filter(|line| line.contains("\"EndpointSlice\"") && line.contains("greedy"));
    let (large, small): (Vec<&str>, Vec<&str>) = slices.partition(|line| line.len() > 10_000);
    assert_eq!((large.len(), small.len()), (3, 5));
    assert!(small.iter().all(|line| line.len() < 600), "{small:?}");
    world.server.refuse_connections(true).expect("the test server accepts it");
    let source = world.start();
    let from_disk = until(&source, "objects from disk", |_| true).await;
    assert_eq!(kept(&from_disk.objects), kept(&update.objects));
    assert_eq!(from_disk.slices_left_out, 5);
}

#[tokio::test]
async fn a_directory_with_the_same_slices_leaves_out_the_same() {
    let world = small_world();
    let files = tempfile::tempdir().expect("a directory");
    let mut all = vec![manifest("web", "10.0.1.1")];
    all.extend((0..5).map(|n| large("greedy", &format!("s{n}"), 0, 600)));
    for one in &all[1..] {
        world.server.apply(one).expect("legal");
    }
    std::fs::write(files.path().join("all.yaml"), all.join("\n---\n")).expect("the file is writable");
    let source = world.start();
    let update = until(&source, "slices that are left out", |u| left_out(u).len() == 2).await;
    let (objects, report) = DirectorySource::load_within(files.path(), 1, GatewayApi::Auto);
    assert_eq!(kept(&objects), kept(&update.objects));
    assert!(report.to_string().contains(": s3, s4;"), "{report}");
    let config = world.config.clone();
    let once = tokio::task::spawn_blocking(move || load(&config, "once"));
    let (objects, _) = once.await.expect("it does not panic");
    assert_eq!(kept(&objects), kept(&update.objects), "from a command");
}

#[tokio::test]
async fn objects_too_large_for_one_page_are_listed_in_smaller_pages() {
    let world = World::new();
    let text = "x".repeat(100_000);
    for n in 0..20 {
        let yaml = manifest(&format!("s{n}"), "10.0.1.1");
        let metadata = format!("metadata: {{name: s{n}, namespace: shop, annotations: {{note: {text}}}}}");
        world
            .server
            .apply(&yaml.replacen(&format!("metadata: {{name: s{n}, namespace: shop}}"), &metadata, 1))
            .expect("legal");
    }
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert_eq!(update.objects.services.len(), 20);
}

#[test]
fn slices_left_out_need_little_memory_and_others_at_most_their_size() {
    const EACH: usize = 1_000;
    let many = ENDPOINTS_MAX / EACH + 2;
    let kind = &KINDS[SLICE];
    let mut node: Option<Node> = None;
    let received = |node: &Node, n: usize| {
        let mut received = Received::new(kind, node.clone()).expect("it has a name");
        received.key.name = format!("web-{n}");
        received
    };
    let text = large("greedy", "web", 0, EACH);
    node.replace(serde_json::from_str(&text).expect("a tree"));
    let node = node.expect("the node was read");
    let mut one = None;
    let whole = measure(|| one = Some(received(&node, 0)));
    let one = one.expect("the slice was received");
    let counted = one.content.slice().expect("a slice").size();
    let bytes = usize::try_from(whole.bytes_current).expect("it fits");
    assert!(bytes <= counted && counted <= 4 * bytes, "{bytes} bytes count as {counted}");
    let mut budget = SliceBudget::new(512);
    let mut items = Vec::new();
    let profile = measure(|| {
        for n in 0..many {
            items.push(received(&node, n));
            if n % 50 == 49 || n + 1 == many {
                let from = n / 50 * 50;
                leave_out(&mut budget, &mut items, from);
            }
        }
    });
    assert_eq!(items.len(), many);
    let slice = items[0].content.slice().expect("a slice");
    let left_out = slice.left_out.expect("it is left out");
    assert_eq!(
        (left_out.why, left_out.endpoints, left_out.bytes),
        (NotKept::TooManyEndpoints, EACH, counted)
    );
    let bytes = usize::try_from(profile.bytes_current).expect("it fits");
    assert!(bytes < many * 4_096, "{bytes} bytes are used for {many} slices");
}
