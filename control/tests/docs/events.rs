//! Compares the table of events with the code and with the alerts.

use std::collections::BTreeSet;

use tidegate_events::Reason;

use crate::repository::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_table_of_events_has_every_reason_with_its_level_and_alert() {
    let document = read("docs/events.md");
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<[String; 4]> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let [_, reason, level, when, alert, _] = cells[..] else { panic!("{row}: four cells") };
            assert!(!when.is_empty(), "{row}");
            [reason, level, alert, when].map(str::to_owned)
        })
        .collect();
    let of_code = Reason::ALL.map(|reason| {
        [reason.as_str(), reason.level().as_str(), reason.alert().unwrap_or_default()].map(str::to_owned)
    });
    let of_document: Vec<[String; 3]> =
        rows.into_iter().map(|[reason, level, alert, _]| [reason, level, alert]).collect();
    assert_eq!(of_document, of_code);
}

#[test]
fn the_alerts_of_events_are_rules() {
    let rules = read("deploy/prometheus/rules.yaml");
    let alerts: BTreeSet<&str> = Reason::ALL.into_iter().filter_map(Reason::alert).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(rules.contains(&format!("- alert: {alert}\n")), "{alert}");
    }
    // The reasons that the rules select exist.
    for selected in rules.split("tidegate_recorded_events_total{reason=\"").skip(1) {
        let reason = selected.split('"').next().unwrap_or_default();
        assert!(Reason::named(reason).is_some(), "{reason}");
    }
}
