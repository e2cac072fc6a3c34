//! Compares `docs/troubleshooting.md` with the code: every reason, event and condition is explained, and nothing that
//! no longer exists.
//!
//! `every!` lists the variants of enums that have no list of their own. It does not compile if a variant is missing.

use std::collections::BTreeSet;
use tidegate_admin_api::{BackendWhy, CONFIGURATION_REFUSED};
use tidegate_cluster::reasons::{ConditionReason, ConditionType, EventReason, PortError};
use tidegate_conntrack::EvictionReason;
use tidegate_dataplane::punt::class::PuntClass;
use tidegate_model::health::Failure;
use tidegate_policy::reconcile::Reason;
use tidegate_spec::verdict::{AnswerKind, PuntReason, Refusal, TransmitReason};
use tidegate_wire::Malformed;

use crate::repository::root;

/// Every variant of an enum.
macro_rules! every {
    ($enum:ident: $($variant:ident $(($payload:expr))?,)+) => {{
        let _is_complete = |one: &$enum| match one {
            $($enum::$variant { .. } => {})+
        };
        [$($enum::$variant $(($payload))?),+]
    }};
}

fn document() -> String {
    std::fs::read_to_string(root().join("docs/troubleshooting.md")).expect("the document")
}

/// The text below a heading, up to the next one of any level.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, below) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    below.split_once("\n#").map_or(below, |(section, _)| section)
}

/// The cells in code font of a column, from all tables in the text whose first header is `header`.
fn column(text: &str, header: &str, at: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_inside = false;
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match line.starts_with('|') {
            true if cells[0] == header => is_inside = true,
            true if is_inside => {
                let cell = cells.get(at).and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
                found.extend(cell.map(str::to_owned));
            }
            true => {}
            false => is_inside = false,
        }
    }
    found
}

/// Compares the names that the document explains with those of the code.
fn assert_same(what: &str, explained: &BTreeSet<String>, code: impl IntoIterator<Item = impl ToString>) {
    let code: BTreeSet<String> = code.into_iter().map(|word| word.to_string()).collect();
    assert!(!code.is_empty(), "{what}");
    let missing: Vec<&String> = code.difference(explained).collect();
    let gone: Vec<&String> = explained.difference(&code).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md explains no {what} {missing:?}");
    assert!(gone.is_empty(), "docs/troubleshooting.md explains {what} that the code does not have: {gone:?}");
}

#[test]
fn packet_reasons_are_explained_exactly() {
    let text = document();
    let explained = |heading: &str, header: &str| column(section(&text, heading), header, 0);
    let refused = explained("### Well-formed packets", "reason");
    assert_same("drop reason", &refused, Refusal::ALL);
    let malformed = explained("### Malformed packets", "reason");
    assert_same("drop reason", &malformed, Malformed::ALL.iter().map(|reason| reason.as_str()));
    assert_same("punt reason", &explained("## Punt reasons", "reason"), PuntReason::ALL);
    let classes = PuntClass::ALL.map(PuntClass::as_str);
    assert_same("class of punted frames", &explained("## Punt reasons", "class"), classes);
    assert_same("transmit reason", &explained("## Transmit reasons", "reason"), TransmitReason::ALL);
    assert_same("kind of answers", &explained("## Transmit reasons", "kind"), AnswerKind::ALL);
    let evictions = EvictionReason::ALL.iter().map(|reason| reason.as_str());
    assert_same("eviction", &explained("## Evictions of flows", "reason"), evictions);
}

#[test]
fn backend_states_and_check_failures_are_explained_exactly() {
    let text = document();
    let states = every!(BackendWhy: Ready, TerminatingChosen, Terminating, NotReady, Unhealthy, FailOpen,
        Drained, WeightZero, OtherZone, OtherNode, Removed, NoNextHop,);
    let states = states.map(|why| format!("{why:?}"));
    assert_same("backend reason", &column(section(&text, "## Backends"), "reason", 0), states);
    let failures = every!(Failure: Timeout, Refused, Unreachable, Closed, Tls, NotHttp, NotOnVip, Status(503),
        System(None),);
    let failures = failures.map(|failure| failure.to_string().replace("503", "CODE"));
    let explained = column(section(&text, "## Failures of health checks"), "text", 0);
    assert_same("failure of a health check", &explained, failures);
}

#[test]
fn events_findings_and_conditions_are_explained_exactly() {
    let text = document();
    let findings = every!(Reason: AllocationFailed, FamilyFallback, ExternalIpDenied, Conflict, AddressNotShared, DscpConflict,
        InvalidValue, NotSupported, SourceRangesOtherFamily, SourceRangesNotApplied, LimitExceeded, PortNotProgrammed, EndpointRefused, NoMatchingPort,
        StatusAddressNotServed, HealthFailOpen, ClientAddressLost, HealthCheckNotAllowed, PodRouteRefused,
        AliasIgnored, FailedToStartServiceHealthcheck, PoolNotAccepted, PoolsOverlap, NoReplies,
        VipClaimed, NeighborMacDiffers, PartialChecksums, RouterAsClient, BackendNotFound, HostnameConflict,
        InvalidKind, InvalidParameters, InvalidRouteKinds, ListenersNotValid, NoMatchingParent, NotAllowed,
        NotAllowedByListeners, ParentNotAccepted, PortUnavailable, ProtocolConflict, RefNotPermitted, UnsupportedAddress,
        UnsupportedProtocol,);
    let findings = findings.map(Reason::as_str).into_iter().chain([CONFIGURATION_REFUSED]);
    assert_same("finding", &column(section(&text, "## Events and findings"), "reason", 0), findings);
    let events = EventReason::ALL.iter().map(|reason| reason.as_str());
    assert_same("event", &column(section(&text, "## Events about progress"), "reason", 0), events);

    let (_, conditions) = text.split_once("\n## Conditions\n").expect("the section of conditions");
    let types = ConditionType::ALL.iter().map(|one| one.as_str());
    assert_same("condition", &column(conditions, "condition", 0), types);
    // The reason of a missing heartbeat applies to all conditions, so the document has it below the table.
    assert!(conditions.contains("with the reason `NoHeartbeat`"), "NoHeartbeat");
    let mut reasons = column(conditions, "condition", 1);
    reasons.insert("NoHeartbeat".to_owned());
    let of_code = ConditionReason::ALL.iter().map(|one| one.as_str());
    assert_same("reason of a condition", &reasons, of_code);
    let errors = PortError::ALL.iter().map(|one| one.as_str());
    assert_same("error of a port", &column(conditions, "error", 0), errors);
}

#[test]
fn every_command_that_the_documents_name_is_one_of_the_binary() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("--help").output();
    let help = String::from_utf8(help.expect("the binary runs").stdout).expect("help is text");
    let commands: BTreeSet<&str> = help.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut named = 0;
    for name in ["README.md", "docs/troubleshooting.md"] {
        let text = std::fs::read_to_string(root().join(name)).expect("the document");
        for (at, _) in text.match_indices("`tidegate ") {
            let rest = &text[at + "`tidegate ".len()..];
            let command: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
            assert!(commands.contains(command.as_str()), "{name}: there is no command `tidegate {command}`");
            named += 1;
        }
    }
    assert!(named > 20, "commands were found: {named}");
}
