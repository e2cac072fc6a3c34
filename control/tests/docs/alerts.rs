//! Checks the alert rules and the Grafana dashboard: they use existing metrics and label values; each alert fires when
//! it should and not before, and has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use tidegate_spec::verdict::DropReason;

use crate::repository::root;

/// Metrics of Prometheus itself.
const OF_PROMETHEUS: [&str; 1] = ["up"];

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rules: name and expression.
fn rules() -> Vec<(String, String)> {
    let text = read("deploy/prometheus/rules.yaml");
    let rules = text.split("      - alert: ").skip(1).map(|rule| {
        let (name, rest) = rule.split_once('\n').expect("a rule has several lines");
        let (_, expr) = rest.split_once("        expr: ").expect("a rule has an expression");
        let lines = expr.lines().enumerate();
        let expr = lines.take_while(|(n, line)| *n == 0 || line.starts_with("          "));
        let expr: Vec<&str> = expr.map(|(_, line)| line.trim()).collect();
        (name.trim().to_owned(), expr.join(" ").trim_start_matches(">- ").to_owned())
    });
    let rules: Vec<_> = rules.collect();
    assert!(rules.len() > 30, "the rules were read: {}", rules.len());
    rules
}

/// The labels of each metric that docs/metrics.md lists, which another test compares with the code.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let text = read("docs/metrics.md");
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().strip_suffix('`')?.to_owned();
        let labels = cells.nth(1)?.split(',').map(|label| label.trim().trim_matches('`').to_owned());
        Some((name, labels.collect()))
    });
    rows.collect()
}

/// The selectors of an expression: each metric with its matchers, as `label` and `value`.
fn selectors(expr: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let word = &rest[at..];
        let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        rest = after;
        if name.starts_with("tidegate_") || OF_PROMETHEUS.contains(&name) {
            let matchers = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
            let matchers = matchers.map_or("", |(inside, _)| inside);
            let matchers = matchers.split(',').filter_map(|one| {
                let (label, value) = one.split_once('=')?;
                Some((label.trim().trim_end_matches('!'), value.trim_start_matches('~').trim_matches('"')))
            });
            found.push((name, matchers.collect()));
        }
        // Text in quotes is not a metric.
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside.split_once('}').map_or("", |(_, after)| after);
        }
    }
    found
}

/// Fails if an expression uses a metric, a label or a drop reason that doesn't exist.
fn assert_known(of: &str, expr: &str, metrics: &BTreeMap<String, BTreeSet<String>>) {
    let drops: BTreeSet<&str> = DropReason::all().map(DropReason::as_str).collect();
    let selectors = selectors(expr);
    assert!(!selectors.is_empty(), "{of}: {expr}");
    for (metric, matchers) in selectors.into_iter().filter(|(metric, _)| !OF_PROMETHEUS.contains(metric)) {
        let of_histogram =
            ["_bucket", "_count", "_sum"].iter().find_map(|suffix| metric.strip_suffix(suffix));
        let labels = metrics.get(metric).or_else(|| metrics.get(of_histogram?));
        let labels = labels.unwrap_or_else(|| panic!("{of}: there is no metric {metric}"));
        for (label, values) in matchers {
            let is_of_prometheus = ["job", "instance"].contains(&label);
            assert!(is_of_prometheus || labels.contains(label), "{of}: {metric} has no label {label}");
            let is_known =
                |value| metric != "tidegate_drops_total" || label != "reason" || drops.contains(value);
            assert!(values.split('|').all(is_known), "{of}: {metric} has no reason {values}");
        }
    }
}

#[test]
fn every_alert_uses_metrics_and_labels_that_the_code_has() {
    let metrics = metrics();
    rules().iter().for_each(|(alert, expr)| assert_known(alert, expr, &metrics));
}

/// The expressions of the dashboard, each with the title of its panel or the name of its variable.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/tidegate.json")).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for panel in list(&dashboard["panels"]) {
        let targets = list(&panel["targets"]);
        assert!(
            panel["type"] == "row" || !targets.is_empty() && !text(&panel["description"]).is_empty(),
            "{panel}"
        );
        found.extend(targets.iter().map(|target| (text(&panel["title"]), text(&target["expr"]))));
    }
    for variable in list(&dashboard["templating"]["list"]) {
        if let Some(query) = variable["query"]["query"].as_str() {
            let series = query.strip_prefix("label_values(").and_then(|query| query.rsplit_once(','));
            found.push((text(&variable["name"]), series.expect("the values of a label").0.to_owned()));
        }
    }
    assert!(found.len() > 40, "the dashboard was read: {}", found.len());
    found
}

#[test]
fn every_panel_of_the_dashboard_uses_metrics_and_labels_that_the_code_has() {
    let metrics = metrics();
    let mut rules = String::from("groups: [{name: dashboard, rules: [\n");
    for (n, (title, expr)) in panels().iter().enumerate() {
        assert_known(title, expr, &metrics);
        let expr = Value::from(expr.replace("$__rate_interval", "5m"));
        rules += &format!("{{record: 'panel:{n}', expr: {expr}}},\n");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("dashboard.yaml");
    std::fs::write(&file, rules + "]}]\n").expect("a file");
    promtool(&["check", "rules", "--lint=none", file.to_str().expect("UTF-8")]);
}

#[test]
fn every_alert_has_a_runbook_with_a_command() {
    let text = read("docs/guide/12-runbooks.md");
    let sections = text.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    let runbooks: BTreeSet<&str> = sections
        .map(|(name, rest)| {
            assert!(rest.contains("```sh\n"), "the runbook of {name} has no command");
            name
        })
        .collect();
    let rules = rules();
    let alerts: BTreeSet<&str> = rules.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(alerts, runbooks);
}

#[test]
fn every_alert_fires_when_it_should_and_not_before() {
    let tests = read("deploy/prometheus/rules_test.yaml");
    for (alert, _) in rules() {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "rules_test.yaml has no test of {alert}");
    }
    promtool(&["test", "rules", "rules_test.yaml"]);
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool")
        .current_dir(root().join("deploy/prometheus"))
        .args(arguments)
        .output()
        .expect("promtool runs (Debian's package prometheus, which `make setup` installs)");
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}", printed.concat());
}
