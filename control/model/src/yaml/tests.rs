//! Tests of reading YAML as kubectl does, and of decoding with every fault recorded.

use std::time::Duration;

use super::*;

fn scalar_of(text: &str) -> ScalarKind {
    let parsed = parse(&format!("v: {text}\n"));
    assert_eq!(parsed.faults, [], "{text}");
    match &parsed.documents[0].entry("v").expect("has v").node.value {
        Value::Scalar(s) => s.kind,
        other => panic!("{other:?}"),
    }
}

fn faults(text: &str) -> Vec<String> {
    parse(text).faults.iter().map(|f| format!("{}:{}: {}", f.at.line, f.at.column, f.what)).collect()
}

#[test]
fn plain_scalars_have_the_meaning_that_they_have_in_kubectl() {
    use ScalarKind::{Bool, Float, Int, Null, Text};
    for (text, kind) in [
        ("true", Bool(true)),
        ("yes", Bool(true)),
        ("On", Bool(true)),
        ("y", Bool(true)),
        ("off", Bool(false)),
        ("N", Bool(false)),
        ("\"true\"", Text),
        ("'on'", Text),
        ("!!str 80", Text),
        ("80", Int(80)),
        ("-1", Int(-1)),
        ("0x1F", Int(31)),
        ("0o17", Int(15)),
        ("017", Int(15)),
        ("0b11", Int(3)),
        ("1_000", Int(1000)),
        ("1.5", Float(1.5)),
        ("1e3", Float(1000.0)),
        ("99999999999999999999", Float(1e20)),
        ("192.0.2.1", Text),
        ("2001:db8::1", Text),
        ("12:30:45", Text),
        ("2026-01-01T00:00:00Z", Text),
        ("10s", Text),
        ("0x", Text),
        ("null", Null),
        ("~", Null),
        ("", Null),
        ("trueish", Text),
    ] {
        assert_eq!(scalar_of(text), kind, "{text}");
    }
}

#[test]
fn json_is_read_with_tabs_and_escapes() {
    let parsed = parse("{\n\t\"kind\": \"Service\",\n\t\"a/b\": [1, {\"x\": \"\\u00e9\\/\"}]\n}\n");
    assert_eq!(parsed.faults, []);
    let list = &parsed.documents[0].entry("a/b").expect("has it").node;
    assert_eq!(list.at, Position { line: 3, column: 9 });
}

#[test]
fn a_json_surrogate_pair_is_one_character_and_other_text_is_unchanged() {
    let value = |text: &str| {
        let parsed = parse(text);
        assert_eq!(parsed.faults, [], "{text}");
        let node = &parsed.documents[0].entry("a").expect("it has one").node;
        (node.text().expect("a text").to_owned(), node.at.line)
    };
    let json =
        "{\n  \"emoji\": \"\\uD83D\\ude00\",\n  \"a\": \"x \\ud83d\\ude00\\u00e9 \\\\ud83d\\\\ude00\"\n}\n";
    assert_eq!(value(json), ("x \u{1f600}\u{e9} \\ud83d\\ude00".to_owned(), 3));
    assert_eq!(value("{a: '\\ud83d\\ude00'}\n").0, "\\ud83d\\ude00", "YAML, not JSON");
    let alone = r#"{"a": "\ud83d"}"#;
    assert!(faults(alone)[0].contains("escape"), "{:?}", faults(alone));
}

#[test]
fn consecutive_json_values_are_documents_with_positions() {
    let text = "{\"a\": 1}\n{\n \"b\": 2}\r\n\r\n  {\"\u{e9}\": \"\\ud83d\\ude00\"} [{\"d\": 1, \"d\": 2}]{\"e\": 3}\n";
    let parsed = parse(text);
    let at = |line, column| Position { line, column };
    let places: Vec<Position> = parsed.documents.iter().map(|document| document.at).collect();
    assert_eq!(places, [at(1, 1), at(2, 1), at(5, 3), at(5, 25), at(5, 43)]);
    assert_eq!(parsed.documents[1].entry("b").expect("it has one").at, at(3, 2));
    assert_eq!(parsed.documents[2].entry("\u{e9}").expect("it has one").node.text(), Some("\u{1f600}"));
    assert_eq!(faults(text), ["5:35: duplicate key \"d\""]);
    assert_eq!(parsed.flawed, [(3, 0..1)]);

    for other in ["{\"a\": 1}\n---\n{\"b\": 2}\n", "{a: 1}\n---\n{b: 2}\n", "{\"a\": 1} # one\n"] {
        assert_eq!(faults(other), [] as [&str; 0], "{other}");
    }
    let broken = "{\"a\": 1}\n{\"b\": 2\n{\"c\": 3}\n";
    assert_eq!(parse(broken).documents.len(), 1, "the value before it counts");
    assert!(faults(broken).len() == 1 && faults(broken)[0].contains("not YAML"), "{:?}", faults(broken));
}

#[test]
fn json_values_have_the_limits_of_one_text_together() {
    let deep = format!("{}{}\n{{\"a\": 1}}\n", "[".repeat(70), "]".repeat(70));
    assert_eq!((parse(&deep).documents.len(), parse(&deep).faults.len()), (0, 1), "the rest is not read");
    // Half of a surrogate pair is valid JSON but not YAML.
    let many = faults(&"{\"a\": \"\\ud83d\"}\n".repeat(1000));
    assert_eq!(many.len(), 101);
    assert!(many[99].starts_with("100:") && many[100].contains("more than 100 syntax errors"), "{many:?}");
}

#[test]
fn empty_documents_are_left_out_and_a_byte_order_mark_is_no_text() {
    assert_eq!(parse("---\n---\na: 1\n---\n# nothing\n").documents.len(), 1);
    assert_eq!(parse("").documents.len(), 0);
    assert!(parse("\u{feff}a: 1\n").documents[0].entry("a").is_some());
}

#[test]
fn anchors_aliases_and_merge_keys_are_resolved() {
    let parsed = parse("base: &b {x: 1, z: 2}\nuse:\n  <<: *b\n  z: 3\nagain: *b\n");
    assert_eq!(parsed.faults, []);
    let text = |node: &Node, key: &str| match &node.entry(key).expect("has it").node.value {
        Value::Scalar(s) => s.text.clone(),
        _ => panic!("not a scalar"),
    };
    let used = &parsed.documents[0].entry("use").expect("has it").node;
    assert_eq!((text(used, "x"), text(used, "z")), ("1".into(), "3".into()));
    assert_eq!(text(&parsed.documents[0].entry("again").expect("has it").node, "z"), "2");
}

#[test]
fn faults_of_the_text_have_a_position() {
    assert_eq!(faults("a: 1\nb: 2\na: 3\n"), ["3:1: duplicate key \"a\""]);
    assert_eq!(faults("x:\n  {c: 1, c: 2}\n"), ["2:10: duplicate key \"c\""]);
    assert_eq!(faults("? [a]\n: 1\n"), ["1:3: a list is used as a key"]);
    assert_eq!(faults("<<: 3\n"), ["1:5: << merges something that is not a mapping"]);
    let syntax = faults("ok: 1\n---\na: [1\nb: }\n");
    assert!(syntax.len() == 1 && syntax[0].contains("not YAML"), "{syntax:?}");
    assert_eq!(parse("ok: 1\n---\na: [1\nb: }\n").documents.len(), 1, "the document before it counts");
}

#[test]
fn a_syntax_error_costs_its_document_and_no_other() {
    // Unclosed brackets, braces and quotes, wrong indentation, a tab, an unknown alias, and an invalid value.
    let broken = [
        "a: [1\nb: 2\n",
        "a: {b: 1\n",
        "a: \"b\nc: d\n",
        "a: 'b\n",
        "a:\n  b: 1\n c: 2\n",
        "a:\n\tb: 1\n",
        "a: *unknown\n",
        "a: @b\n",
        "a: b: c\n",
        "[1, 2]]\nmore: 3\n",
        "|\n  text\n x: [\n",
    ];
    for (line_break, end) in [("\n", "---\n"), ("\r\n", "--- # next\n"), ("\n", "...\n")] {
        for one in broken {
            let text = format!("first: 1\n---\n{one}{end}last: 2\nlast: 3\n---\nend: |\n  ---\n  x\n");
            let text = text.replace('\n', line_break);
            let parsed = parse(&text);
            let lines = u32::try_from(text.lines().count()).expect("a few");
            let keys: Vec<&str> = parsed
                .documents
                .iter()
                .filter_map(|document| match &document.value {
                    Value::Mapping(entries) => Some(entries[0].key.as_str()),
                    _ => None,
                })
                .filter(|key| !matches!(*key, "a" | "more"))
                .collect();
            assert_eq!(keys, ["first", "last", "end"], "{text}");
            let faults = faults(&text);
            assert!(faults[0].contains("not YAML"), "{text}{faults:?}");
            let duplicate = format!("{}:1: duplicate key \"last\"", lines - 4);
            assert_eq!(faults.last(), Some(&duplicate), "{text}");
        }
    }
}

#[test]
fn each_syntax_error_of_a_file_is_reported_up_to_a_limit() {
    let two = "a: [\n---\nok: 1\n---\nb: }\n---\nend: 2\n";
    let found = faults(two);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("2:1: not YAML") && found[1].starts_with("5:4: not YAML"), "{found:?}");
    assert_eq!(parse(two).documents.len(), 2);

    let many = faults(&"a: [\n---\n".repeat(1000));
    assert_eq!(many.len(), 101);
    assert!(many[100].ends_with("more than 100 syntax errors: the rest of the file is not read"), "{many:?}");
}

#[test]
fn a_duplicate_among_60_000_keys_is_found_in_linear_time() {
    // Scanning all keys for each key would take 1.8 billion comparisons of equal prefixes. That is minutes in a debug
    // build, while a linear reader takes less than a second.
    let mut text: String = (0..60_000).map(|n| format!("a-key-with-a-long-common-prefix-{n}: 1\n")).collect();
    text.push_str("a-key-with-a-long-common-prefix-59999: 2\n");
    let parsed = parse(&text);
    assert_eq!(parsed.faults.len(), 1);
    assert_eq!(parsed.faults[0].at, Position { line: 60_001, column: 1 });
    let Value::Mapping(entries) = &parsed.documents[0].value else { panic!("not a mapping") };
    assert_eq!(entries.len(), 60_000);
}

#[test]
fn aliases_repeat_a_bounded_number_of_bytes() {
    // 115 KB of text that would expand to 500 MB.
    let long = "x".repeat(100_000);
    let text = format!("a: &a {long}\nb: [{}]\n", vec!["*a"; 5_000].join(", "));
    assert!(
        faults(&text)[0].contains("anchors and aliases expand to more than 8388608 bytes"),
        "{:?}",
        &faults(&text)[0]
    );
    // Nested anchors store their content once per level, without any alias.
    let levels: String = (0..60).map(|n| format!("&l{n} [")).collect();
    let text = format!("v: {levels}{}{}", vec![format!("\"{long}\""); 3].join(", "), "]".repeat(60));
    assert!(
        faults(&text)[0].contains("anchors and aliases expand to more than 8388608 bytes"),
        "{:?}",
        &faults(&text)[0]
    );
}

#[test]
fn depth_and_aliases_are_bounded() {
    let deep = format!("a: {}1{}\n", "[".repeat(70), "]".repeat(70));
    assert!(faults(&deep)[0].contains("nested deeper"), "{:?}", faults(&deep));
    let mut laughs = String::from("l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..9 {
        let aliases = vec![format!("*l{}", i - 1); 10].join(", ");
        laughs.push_str(&format!("l{i}: &l{i} [{aliases}]\n"));
    }
    assert!(
        faults(&laughs)[0].contains("anchors and aliases expand to more than 100000 values"),
        "{:?}",
        faults(&laughs)
    );
    assert!(!faults("a: &x [*x]\n").is_empty());
}

#[test]
fn an_origin_finds_fields_where_readers_look_for_them() {
    let text = "metadata:\n  annotations:\n    tidegate.dev/forwarding: nat\nspec:\n  ports:\n  - port: 80\n    protocol: TCP\n  - port: 81\n";
    let origin = parse(text).documents[0].origin("f.yaml".into());
    let place = |path: &str| origin.field(path).expect("has a file").to_string();
    assert_eq!(place("metadata.annotations[tidegate.dev/forwarding]"), "f.yaml:3:30");
    assert_eq!(place("spec.ports[0].protocol"), "f.yaml:7:15");
    assert_eq!(place("spec.ports[1].protocol"), "f.yaml:8:5");
    assert_eq!(place("spec.ports"), "f.yaml:5:3");
    assert_eq!(place("status.x"), "f.yaml:1:1");
}

#[test]
fn decoding_records_every_fault_and_continues() {
    let text = "port: 70000\nproto: tpc\nname: 7\non: maybe\nips: [10.0.0.1, 10.0.0.999, ~]\nnet: 10.0.0.1/8\nwait: 90000s\nmac: 01:00:00:00:00:01\nlabels: {a: 1, b: x}\nprot: x\nzzz: 1\n";
    let sheet = Sheet::new("f.yaml");
    let documents = sheet.documents(text);
    let fields = Field::document(&sheet, &documents[0]).fields().expect("a mapping");
    assert_eq!(fields.get("port").and_then(|f| f.port()), None);
    assert_eq!(fields.get("proto").and_then(|f| f.one_of(&[("TCP", 6), ("UDP", 17)])), None);
    assert_eq!(fields.get("name").and_then(|f| f.string()), None);
    assert_eq!(fields.get("true").and_then(|f| f.boolean()), None);
    assert_eq!(fields.items("ips").iter().filter_map(Field::ip).count(), 1);
    assert_eq!(fields.get("net").and_then(|f| f.network()), None);
    let range = Duration::from_secs(1)..=Duration::from_secs(60);
    assert_eq!(fields.get("wait").and_then(|f| f.duration(range)), None);
    assert_eq!(fields.get("mac").and_then(|f| f.parsed(text::mac, text::MAC)), None);
    assert_eq!(fields.get("labels").map(|f| f.labels().len()), Some(1));
    assert!(fields.required("missing", "a value").is_none());
    fields.finish(Unknown::Refused);
    let report: Vec<String> = sheet.into_report().iter().map(ToString::to_string).collect();
    assert_eq!(
        report,
        [
            "f.yaml:1:1: error: missing is missing; accepted: a value",
            "f.yaml:1:7: error: port: the number 70000 is not accepted; accepted: a whole number from 1 to 65535",
            "f.yaml:2:8: error: proto: the text \"tpc\" is not accepted; accepted: TCP, UDP",
            "f.yaml:3:7: error: name: the number 7 is not accepted; accepted: text in quotes: \"7\"",
            "f.yaml:4:5: error: true: the text \"maybe\" is not accepted; accepted: true or false",
            "f.yaml:5:17: error: ips[1]: the text \"10.0.0.999\" is not accepted; accepted: an IPv4 or IPv6 address",
            "f.yaml:5:29: error: ips[2]: an empty item is not accepted; accepted: a value, or a list without this item",
            "f.yaml:6:6: error: net: 10.0.0.1/8 has host bits set; accepted: 10.0.0.0/8",
            "f.yaml:7:7: error: wait: the text \"90000s\" is not accepted; accepted: a duration from 1s to 1m",
            "f.yaml:8:6: error: mac: the text \"01:00:00:00:00:01\" is not accepted; accepted: a unicast MAC address such as 02:00:00:00:00:01",
            "f.yaml:9:13: error: labels[a]: the number 1 is not accepted; accepted: text in quotes: \"1\"",
            "f.yaml:10:1: error: unknown key \"prot\"; accepted: proto, port",
            "f.yaml:11:1: error: unknown key \"zzz\"; accepted: port, proto, name, true, ips, net, wait, mac, labels, missing",
        ]
    );
}

#[test]
fn entries_that_were_not_read_are_listed_with_their_paths() {
    let sheet = Sheet::new("a.yaml");
    let documents =
        sheet.documents("spec:\n  read: 1\n  known: 2\n  absent: null\n  labels: {a: b}\n  other: [3]\n");
    let root = Field::document(&sheet, &documents[0]).fields().expect("a mapping");
    let spec = root.mapping("spec").expect("a mapping");
    assert!(spec.get("read").is_some());
    spec.allow(&["known"]);
    let unread: Vec<_> =
        spec.unread().into_iter().map(|(entry, value)| (entry.at.line, value.path)).collect();
    assert_eq!(unread, [(5, "spec.labels".to_owned()), (6, "spec.other".to_owned())]);
    assert!(root.unread().is_empty());
}

#[test]
fn durations_are_whole_numbers_with_units_largest_first() {
    for (text, ms) in
        [("2s", 2000), ("300s", 300_000), ("1m30s", 90_000), ("500ms", 500), ("1h1ms", 3_600_001), ("0s", 0)]
    {
        assert_eq!(text::duration(text), Some(Duration::from_millis(ms)), "{text}");
        let shown = text::show_duration(Duration::from_millis(ms));
        assert_eq!(text::duration(&shown), Some(Duration::from_millis(ms)), "{text} shown as {shown}");
    }
    for text in [
        "",
        "5",
        "s",
        "1.5s",
        "-1s",
        "1s1m",
        "1s1s",
        "1d",
        "2 s",
        "99999999999999999999s",
        "9999999999999999h",
    ] {
        assert_eq!(text::duration(text), None, "{text}");
    }
}

#[test]
fn macs_are_six_pairs_and_unicast() {
    assert_eq!(text::mac("02:00:0a:Fe:00:01"), Some([2, 0, 10, 254, 0, 1]));
    assert_eq!(text::mac("02-00-00-00-00-01"), Some([2, 0, 0, 0, 0, 1]));
    for text in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "2:0:0:0:0:1",
        "03:00:00:00:00:01",
        "00:00:00:00:00:00",
        "02:00:00:00:00:0g",
        "02:00-00:00:00:01",
    ] {
        assert_eq!(text::mac(text), None, "{text}");
    }
}

#[test]
fn names_follow_their_rfc() {
    for (text, rfc1123, port) in [
        ("web", true, true),
        ("web-1", true, true),
        ("1web", true, true),
        ("80", true, false),
        ("a--b", true, false),
        ("-a", false, false),
        ("a-", false, false),
        ("Web", false, false),
        ("a_b", false, false),
        ("", false, false),
        ("a-name-of-seventeen", true, false),
    ] {
        let got = (text::is_rfc1123_label(text), text::is_port_name(text));
        assert_eq!(got, (rfc1123, port), "{text}");
    }
    assert!(!text::is_rfc1123_label(&"a".repeat(64)));
    assert!(
        text::is_qualified_name("a.b/C_d")
            && !text::is_qualified_name("a_b/c")
            && !text::is_qualified_name("a/")
    );
    assert!(text::is_label_value("") && text::is_label_value("a_B.1") && !text::is_label_value("_a"));
}

#[test]
fn stored_addresses_are_read_as_kube_proxy_reads_them() {
    for (text, meant) in [
        ("192.0.2.1", Some("192.0.2.1")),
        ("192.000.002.010", Some("192.0.2.10")),
        ("0192.0.2.1", Some("192.0.2.1")),
        ("::ffff:192.0.2.1", Some("192.0.2.1")),
        ("::ffff:192.000.2.01", Some("192.0.2.1")),
        ("2001:db8::00001", Some("2001:db8::1")),
        ("2001:0db8::0000", Some("2001:db8::")),
        ("::", Some("::")),
        ("192.0.2.256", None),
        ("192.0.2", None),
        ("192.0.2.1.1", None),
        ("192.0.2.", None),
        ("192.0.2.0x1", None),
        ("2001:db8::g", None),
        ("x", None),
        ("", None),
    ] {
        assert_eq!(text::stored_ip(text).map(|ip| ip.to_string()).as_deref(), meant, "{text}");
    }
    for (text, meant) in [
        (" 010.0.0.0/08 ", Some("10.0.0.0/8")),
        ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
        ("2001:db8::/032", Some("2001:db8::/32")),
        ("::ffff:10.0.0.0/64", None),
        ("10.0.0.0/33", None),
        ("10.0.0.0/", None),
        ("10.0.0.0/-1", None),
        ("10.0.0.0", None),
    ] {
        assert_eq!(text::stored_cidr(text).map(|net| net.to_string()).as_deref(), meant, "{text}");
    }
}

#[test]
fn only_the_whole_of_a_subdomain_has_a_limit_and_no_part_of_it() {
    let part = "a".repeat(100);
    assert!(text::is_rfc1123_subdomain(&part) && text::is_rfc1123_subdomain(&format!("{part}.{part}")));
    assert!(!text::is_rfc1123_subdomain(&format!("{part}.{part}.{part}")));
    assert!(text::is_qualified_name(&format!("{part}.{part}/name")));
    assert!(!text::is_qualified_name(&part), "a name without a prefix is no subdomain");
}

#[test]
fn bytes_that_are_not_utf8_are_found_at_their_line_and_column() {
    let at = |bytes: &[u8]| not_utf8(bytes).map(|(at, what)| (at.line, at.column, what));
    let byte = |hex: &str| format!("the byte 0x{hex} is not UTF-8");
    assert_eq!(at("a: \u{e9}\n".as_bytes()), None);
    assert_eq!(at(b"\xff"), Some((1, 1, byte("ff"))));
    assert_eq!(at(b"a: 1\nb: \xe9t\xe9\n"), Some((2, 4, byte("e9"))));
    assert_eq!(
        at("\u{e9}\u{e9}".as_bytes().split_last().expect("bytes").1),
        Some((1, 2, byte("c3"))),
        "a cut one"
    );
}
