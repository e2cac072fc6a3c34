//! Checks the gateway's own validation with the table of objects that also tests the schemas and CEL rules of our
//! kinds. An API server that evaluates no rules accepts objects that the rules would refuse.
//!
//! The table is `deploy/scripts/crd-cases.yaml`. `control/tests/kubernetes/definitions.rs` tests a real API server with
//! it.

use std::path::Path;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::AddressPool;
use tidegate_model::yaml::{Node, Sheet, Value};
use tidegate_source::kubernetes::testing::address_pool_of;

use super::GatewayStatus;

/// One object and the expected results.
struct Case {
    name: String,
    object: Node,
    is_refused: bool,
    /// How the diagnostics of the gateway start.
    found: Vec<String>,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/scripts/crd-cases.yaml");
    let sheet = Sheet::new(path.display().to_string());
    let documents = sheet.documents(&std::fs::read_to_string(&path).expect("the table exists"));
    assert_eq!(sheet.errors(), 0, "{}", sheet.into_report());
    let texts = |node: Option<&Node>| -> Vec<String> {
        let Some(Node { value: Value::Sequence(items), .. }) = node else { return Vec::new() };
        items.iter().map(|item| item.text().expect("a text").to_owned()).collect()
    };
    let Value::Sequence(items) = &documents[0].value else { panic!("the table is a list") };
    let case = |item: &Node| {
        let part = |key| item.entry(key).map(|entry| &entry.node);
        Case {
            name: part("case").and_then(Node::text).expect("each case has a name").to_owned(),
            object: part("object").expect("each case has an object").clone(),
            is_refused: part("refused").is_some(),
            found: texts(part("gateway")),
        }
    };
    items.iter().map(case).collect()
}

fn of_kind(kind: &str) -> Vec<Case> {
    let is_of_kind =
        |case: &Case| case.object.entry("kind").and_then(|entry| entry.node.text()) == Some(kind);
    let cases: Vec<Case> = cases().into_iter().filter(is_of_kind).collect();
    assert!(cases.len() >= 5, "{kind}: {}", cases.len());
    cases
}

/// The pool as the source parses it, and all diagnostics.
fn check(case: &Case) -> (AddressPool, Vec<Diagnostic>) {
    let (pool, report) = address_pool_of(&case.object);
    let pool = pool.unwrap_or_else(|| panic!("{}: no pool", case.name));
    let found = pool.faults.iter().chain(report.iter()).cloned().collect();
    (AddressPool::clone(&pool), found)
}

#[test]
fn the_gateway_reports_what_an_api_server_refuses_and_what_is_accepted() {
    for case in of_kind("AddressPool") {
        let (_, found) = check(&case);
        assert!(!case.is_refused || !case.found.is_empty(), "{}: the gateway reports nothing", case.name);
        let texts: Vec<&str> = found.iter().map(|one| one.what.as_str()).collect();
        assert_eq!(texts.len(), case.found.len(), "{}: {texts:?}", case.name);
        for (text, expected) in texts.iter().zip(&case.found) {
            assert!(text.starts_with(expected.as_str()), "{}: {text:?}, not {expected:?}", case.name);
        }
        assert!(found.iter().all(|one| one.accepted.is_some()), "{}: {found:?}", case.name);
    }
}

#[test]
fn a_pool_with_an_invalid_entry_offers_the_valid_ones() {
    let case =
        of_kind("AddressPool").into_iter().find(|case| case.name.starts_with("an octet that is too large"));
    let (pool, found) = check(&case.expect("it is in the table"));
    assert_eq!(pool.pool.ranges.len(), 1);
    assert_eq!(
        (pool.faults.len(), found.len()),
        (1, 1),
        "errors are stored with the object, for its conditions"
    );
}

#[test]
fn a_pool_with_invalid_bgp_is_not_announced_by_bgp() {
    let of_bgp = |case: &Case| case.found.iter().any(|found| found.starts_with("spec.bgp"));
    let cases: Vec<Case> = of_kind("AddressPool").into_iter().filter(of_bgp).collect();
    assert!(cases.len() >= 3, "{}", cases.len());
    for case in &cases {
        let announce = check(case).0.pool.announce;
        assert!(announce.l2 && !announce.bgp, "{}", case.name);
    }
}

#[test]
fn peers_can_read_every_gateway_status_that_an_api_server_accepts() {
    for case in of_kind("GatewayStatus").iter().filter(|case| !case.is_refused) {
        let json = serde_json::to_value(&case.object).expect("a node is JSON");
        let read = serde_json::from_value::<GatewayStatus>(json);
        assert!(read.is_ok(), "{}: {read:?}", case.name);
    }
}
