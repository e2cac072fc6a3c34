//! Compares `docs/metrics.md` with a page that contains every family: names, types, labels and HELP texts.

use std::path::Path;

use super::*;

const BEGIN: &str = "<!-- begin: written by `UPDATE_DOCS=1 cargo test -p tidegate document` -->\n";
const END: &str = "<!-- end -->\n";

/// A page with a series of every family.
fn whole_page() -> String {
    let mut world = world();
    let service = Arc::make_mut(&mut world.services[0]);
    service.ports[0].app_protocol = Some("http".into());
    let backend_flows = [BackendFlowStats {
        backend: BackendId::new(0, 0),
        local: Some("192.0.2.3".parse::<std::net::IpAddr>().unwrap().into()),
        flows: [(Phase::Closed, 1), (Phase::Opening, 2), (Phase::Closing, 3), (Phase::Established, 4)],
    }];
    let process = Process {
        cpu_seconds: 1.0,
        resident_bytes: 1,
        virtual_bytes: 1,
        open_fds: 1,
        max_fds: Some(1),
        threads: 1,
        start_time_seconds: 1.0,
    };
    let cluster = Some(tidegate_cluster::Counts::default().read());
    let limited = service_limits::limited();
    let dataplane =
        DataplaneSample { backend_flows: &backend_flows, limited: &limited, ..world.sample().dataplane };
    let status = announcing::status();
    let announce = Some(AnnounceSample { status: &status, withheld: &[(Withheld::NoEndpoints, 2)] });
    render(&Sample { announce, dataplane, process: Some(&process), cluster, ..world.sample() })
}

/// The HELP texts of a page, by name.
fn help(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' ')).collect()
}

/// One table line for each family, sorted by name.
fn table() -> String {
    let text = whole_page();
    let page = Page::parse(&text);
    let mut lines = String::from("| name | type | labels | meaning |\n|---|---|---|---|\n");
    for (name, meaning) in help(&text) {
        let kind = &page.families[name];
        let sample = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let (labels, _) =
            page.of(&sample).next().unwrap_or_else(|| panic!("no series shows the labels of {name}"));
        let labels: Vec<String> = labels.iter().map(|(label, _)| format!("`{label}`")).collect();
        lines.push_str(&format!("| `{name}` | {kind} | {} | {meaning} |\n", labels.join(", ")));
    }
    lines
}

#[test]
fn docs_metrics_md_matches_the_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(&path).expect("docs/metrics.md");
    let (before, rest) = text.split_once(BEGIN).expect("the begin of the table");
    let (written, after) = rest.split_once(END).expect("the end of the table");
    let table = format!("\n{}\n", table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}"))
            .expect("docs/metrics.md is written");
        return;
    }
    assert!(written == table, "docs/metrics.md differs from the code: {}", BEGIN.trim());
}

#[test]
fn a_help_text_stands_alone() {
    let text = whole_page();
    let help = help(&text);
    assert!(help.len() > 50, "{}", help.len());
    for (name, meaning) in &help {
        let begins = |words: &[&str]| words.iter().any(|word| meaning.starts_with(word));
        assert!(!begins(&["Those", "The same", "Them", "It ", "Its "]), "{name}: {meaning}");
        assert!(!meaning.contains("tidegate_") && !meaning.contains("of them"), "{name}: {meaning}");
        assert!(!meaning.contains('|'), "{name}: {meaning}");
    }
    let texts: BTreeSet<&&str> = help.values().collect();
    assert_eq!(texts.len(), help.len(), "each family has a text of its own");
}
