use std::net::IpAddr;

use proptest::prelude::*;
use tidegate_model::objects::{AddressType, Conditions, Endpoint, Metadata, SERVICE_NAME_LABEL};

use super::*;

const MIB: usize = 1 << 20;

/// A slice of a Service in a namespace, with `count` endpoints, created at this second.
fn slice(namespace: &str, service: &str, n: usize, count: usize, created: i64) -> EndpointSlice {
    let mut meta = Metadata::new(ObjectKey::new(namespace, format!("{service}-{n}")));
    meta.labels.insert(SERVICE_NAME_LABEL.to_owned(), service.to_owned());
    meta.creation_time = Timestamp::from_second(created).ok();
    let endpoint = Endpoint {
        address: Some(IpAddr::from([10, 0, 0, 1])),
        conditions: Conditions::default(),
        node_name: None,
        zone: None,
        hint_zones: Vec::new(),
        hint_nodes: Vec::new(),
        target_ref: None,
    };
    EndpointSlice {
        meta,
        address_type: AddressType::V4,
        ports: Vec::new(),
        endpoints: vec![endpoint; count],
        left_out: None,
    }
}

fn put(budget: &mut SliceBudget, slice: &EndpointSlice) {
    budget.set(&slice.meta.key, Some(slice));
}

fn services(answers: &[ObjectKey]) -> Vec<String> {
    answers.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_with_too_many_endpoints_loses_all_and_others_nothing() {
    let mut budget = SliceBudget::new(512);
    for n in 0..300 {
        put(&mut budget, &slice("greedy", "web", n, 1_000, 0));
    }
    put(&mut budget, &slice("greedy", "api", 0, 1_000, 9));
    put(&mut budget, &slice("shop", "web", 0, 1_000, 9));
    assert_eq!(services(&budget.decide()), ["greedy/web"]);
    let web = ObjectKey::new("greedy", "web");
    assert_eq!((budget.not_kept(&web), budget.count_not_kept()), (Some(NotKept::TooManyEndpoints), 300));
    let faults: Vec<(&str, String)> = budget.faults().map(|(of, fault)| (of, fault.what)).collect();
    assert!(matches!(&faults[..], [("greedy", what)] if what.ends_with("are ignored: web")), "{faults:?}");
    // The Service fits again after enough of its slices are deleted.
    for n in 0..38 {
        budget.set(&ObjectKey::new("greedy", format!("web-{n}")), None);
    }
    assert_eq!(services(&budget.decide()), ["greedy/web"]);
    assert_eq!((budget.not_kept(&web), budget.count_not_kept()), (None, 0));
    assert_eq!(budget.faults().count(), 0);
}

#[test]
fn ten_thousand_services_fit_into_one_namespace_by_default() {
    let mut budget = SliceBudget::new(tidegate_model::config::ENDPOINT_SLICES_MIB);
    for n in 0..10_000 {
        put(&mut budget, &slice("shop", &format!("s{n}"), 0, 10, 0));
    }
    assert_eq!(budget.decide(), []);
    let bytes: usize = budget.namespaces.values().map(|namespace| namespace.bytes).sum();
    assert!(bytes < budget.bytes_max / 4, "{bytes}");
}

#[test]
fn only_the_newest_services_of_a_namespace_above_its_share_lose() {
    let mut budget = SliceBudget::new(1);
    // Each is about 300 KiB.
    for n in 0..6 {
        put(&mut budget, &slice("greedy", &format!("s{n}"), 0, 600, n));
    }
    put(&mut budget, &slice("shop", "web", 0, 600, 1_000));
    budget.decide();
    let kept =
        |budget: &SliceBudget, n: i64| budget.not_kept(&ObjectKey::new("greedy", format!("s{n}"))).is_none();
    assert_eq!(
        (0..6).map(|n| kept(&budget, n)).collect::<Vec<_>>(),
        [true, true, false, false, false, false]
    );
    assert_eq!(budget.not_kept(&ObjectKey::new("shop", "web")), None);
    // Capacity that the others leave is available to those that request more.
    budget.set(&ObjectKey::new("shop", "web-0"), None);
    assert_eq!(services(&budget.decide()), ["greedy/s2"]);
    // If an older one is deleted, a newer one fits.
    budget.set(&ObjectKey::new("greedy", "s0-0"), None);
    assert_eq!(services(&budget.decide()), ["greedy/s3"]);
}

#[test]
fn headless_services_get_only_the_memory_that_the_others_leave() {
    let headless = |namespace: &str, service: &str, count: usize, created: i64| {
        let mut slice = slice(namespace, service, 0, count, created);
        slice.meta.key.name.push_str("-headless");
        slice.meta.labels.insert(HEADLESS_LABEL.to_owned(), String::new());
        slice
    };
    let not_kept = |budget: &SliceBudget, namespace: &str, service: &str| {
        budget.not_kept(&headless_owner(&ObjectKey::new(namespace, service)))
    };
    let mut budget = SliceBudget::new(1);
    // Each is about 300 KiB.
    put(&mut budget, &headless("shop", "old", 600, 0));
    put(&mut budget, &headless("shop", "new", 600, 1));
    put(&mut budget, &headless("other", "db", 600, 2));
    assert_eq!(budget.decide(), []);
    for n in 0..2 {
        put(&mut budget, &slice("shop", &format!("web{n}"), 0, 600, 9));
    }
    budget.decide();
    assert!((0..2).all(|n| budget.not_kept(&ObjectKey::new("shop", format!("web{n}"))).is_none()));
    assert_eq!(not_kept(&budget, "shop", "old"), Some(NotKept::NamespaceShare));
    assert_eq!(not_kept(&budget, "shop", "new"), Some(NotKept::NamespaceShare));
    // The findings about routes name them.
    assert_eq!((budget.count_not_kept(), budget.faults().count()), (0, 0));
    // They fit again when the others are deleted. A slice that was left out still counts as headless.
    let left = left_out(&headless("shop", "old", 600, 0), NotKept::NamespaceShare);
    put(&mut budget, &left);
    for n in 0..2 {
        budget.set(&ObjectKey::new("shop", format!("web{n}-0")), None);
    }
    budget.decide();
    assert_eq!((not_kept(&budget, "shop", "old"), not_kept(&budget, "shop", "new")), (None, None));
}

proptest! {
    #[test]
    fn the_decision_depends_on_the_slices_alone_and_is_fair(
        all in prop::collection::vec((0_u8..5, 0_u8..6, 1_usize..900, 0_i64..5), 1..60),
        gone in prop::collection::vec(any::<bool>(), 60),
        order in any::<prop::sample::Index>(),
    ) {
        let slices: Vec<EndpointSlice> = all
            .iter()
            .enumerate()
            .map(|(n, (namespace, service, count, created))| {
                slice(&format!("n{namespace}"), &format!("s{service}"), n, *count, *created)
            })
            .collect();
        let left: Vec<&EndpointSlice> =
            slices.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(slice, _)| slice).collect();
        // This budget has a history: there were other slices before, and it decided at each step.
        let mut lived = SliceBudget::new(1);
        let from = order.index(slices.len());
        for slice in slices[from..].iter().chain(&slices[..from]) {
            put(&mut lived, slice);
            lived.decide();
        }
        for (slice, _) in slices.iter().zip(&gone).filter(|(_, gone)| **gone) {
            lived.set(&slice.meta.key, None);
            lived.decide();
        }
        let mut fresh = SliceBudget::new(1);
        left.iter().for_each(|slice| put(&mut fresh, slice));
        fresh.decide();
        // The decision is the same if slices that are already left out are given.
        let mut again = SliceBudget::new(1);
        for slice in &left {
            let service = slice.service().expect("it has one");
            let kept = fresh.not_kept(&service).map_or_else(|| (*slice).clone(), |why| slice.left_out(why));
            put(&mut again, &kept);
        }
        again.decide();
        let (mut kept, mut requested) = (0, BTreeMap::<&str, usize>::new());
        for slice in &left {
            let service = slice.service().expect("it has one");
            let not_kept = fresh.not_kept(&service);
            prop_assert_eq!(lived.not_kept(&service), not_kept);
            prop_assert_eq!(again.not_kept(&service), not_kept);
            kept += if not_kept.is_none() { slice.size() } else { 0 };
            *requested.entry(&slice.meta.key.namespace).or_default() += slice.size();
        }
        prop_assert!(kept <= MIB, "{}", kept);
        for slice in &left {
            if requested[slice.meta.key.namespace.as_str()] <= MIB / requested.len() {
                prop_assert_eq!(fresh.not_kept(&slice.service().expect("it has one")), None);
            }
        }
    }
}
