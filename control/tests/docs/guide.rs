//! Checks the pages of `docs/guide`: every block of commands says where a test runs it, or why none does, and a test
//! runs every page that has such blocks.

use std::collections::BTreeSet;

use crate::guide_support::{Action, Expected, Step, directory, edited, missing_line, steps};
use crate::repository::{File, files, root};

/// The pages, in the order of the guide.
fn pages() -> Vec<(String, String)> {
    let files = files().into_iter().filter(|file| file.path.starts_with("docs/guide/"));
    let pages: Vec<_> =
        files.filter(|file| file.has_extension("md")).map(|file| (file.path, file.text)).collect();
    assert!(!pages.is_empty() && directory().is_dir(), "the pages were read");
    pages
}

#[test]
fn every_block_of_commands_in_the_guide_is_run_or_says_why_not() {
    let faults: Vec<String> = pages()
        .iter()
        .filter_map(|(path, text)| Some(format!("{path}: {}", steps(text).err()?.join("\n"))))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_test_follows_every_page_of_the_guide_that_has_steps() {
    let tests: String = files()
        .into_iter()
        .filter(|file| file.path.starts_with("control/tests/"))
        .map(|file| file.text)
        .collect();
    let has_steps = |text: &str| {
        let steps = steps(text).unwrap_or_default();
        steps.iter().any(|step| matches!(step.action, Action::Run { .. }))
    };
    let missing: BTreeSet<String> = pages()
        .into_iter()
        .filter(|(path, text)| {
            let name = path.trim_start_matches("docs/guide/").trim_end_matches(".md");
            has_steps(text) && !tests.contains(&format!("follow(\"{name}\""))
        })
        .map(|(path, _)| path)
        .collect();
    assert!(missing.is_empty(), "no test follows {missing:?}");
}

/// What a reason names: files, targets of make, and tests.
fn named(reason: &str) -> Vec<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let words: Vec<&str> = reason
        .split(|c: char| !is_of_name(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| !word.is_empty())
        .collect();
    let targets = words.windows(2).filter(|pair| pair[0] == "make").map(|pair| pair[1]);
    words.iter().copied().filter(|word| word.contains(['/', '_'])).chain(targets).collect()
}

#[test]
fn the_tests_that_run_commands_in_place_of_the_guide_exist() {
    let files = files();
    let makefile = &files.iter().find(|file| file.path == "Makefile").expect("the file").text;
    let exists = |name: &str| {
        let is_test = |file: &File| {
            file.path.starts_with("control/tests/") && file.text.contains(&format!("fn {name}()"))
        };
        let is_target = makefile.lines().any(|line| line.starts_with(&format!("{name}:")));
        root().join(name).exists() || is_target || files.iter().any(is_test)
    };
    let (mut seen, mut missing) = (0, Vec::new());
    for (path, text) in pages() {
        for step in steps(&text).unwrap_or_default() {
            let Action::NotRun { reason } = &step.action else { continue };
            for name in named(reason) {
                seen += 1;
                if !exists(name) {
                    missing.push(format!("{path}:{}: {name}", step.line));
                }
            }
        }
    }
    assert!(seen > 10, "the reasons were read: {seen}");
    assert!(missing.is_empty(), "no such file, test or target of make:\n{}", missing.join("\n"));
}

#[test]
fn faults_of_a_page_are_found() {
    let page = "<!-- run: client -->\n<!-- until: 200 -->\n```sh\ncurl x\n```\n\n  <!-- file: edge-1, edge-2 /etc/a.yaml -->\n  ```yaml\n  a: 1\n  ```\n";
    let run = |expected| Action::Run { hosts: vec!["client".to_owned()], instead: None, expected };
    let hosts = vec!["edge-1".to_owned(), "edge-2".to_owned()];
    let file = Action::File { hosts, path: "/etc/a.yaml".to_owned() };
    let expected = [
        Step { line: 3, action: run(Expected::Until("200".to_owned())), text: "curl x\n".to_owned() },
        Step { line: 8, action: file, text: "a: 1\n".to_owned() },
    ];
    assert_eq!(steps(page), Ok(expected.into()));
    let page = "<!-- run: client -->\n<!-- with: KEY=1 -->\n```sh\nuse 'KEY'\n```\n";
    let steps_with_value = steps(page).expect("it has no fault");
    let Action::Run { instead, .. } = &steps_with_value[0].action else { panic!("{steps_with_value:?}") };
    assert_eq!(instead.as_deref(), Some("use '1'\n"));
    for (page, fault) in [
        ("```sh\nls\n```\n", "line 1: commands without a comment"),
        ("<!-- run: client -->\n\n```sh\nls\n```\n", "not directly above a block"),
        ("<!-- runs: client -->\n```sh\nls\n```\n", "\"runs: client\" is unknown"),
        ("<!-- not run: -->\n```sh\nls\n```\n", "is unknown"),
        ("```\nls\n```\n", "accepted: sh, bash, console, text, yaml"),
        ("~~~sh\nls\n~~~\n", "accepted: blocks between ```"),
        ("```text\nkubectl get pods\n```\n", "line 1: commands; accepted: sh"),
        ("<!-- run: client -->\n<!-- with: KEY=1 -->\n```sh\nls\n```\n", "the block has no KEY"),
        ("<!-- file: gateway -->\n```yaml\na: 1\n```\n", "accepted: HOST PATH"),
    ] {
        let faults = steps(page).expect_err("it has a fault");
        assert!(faults[0].contains(fault), "{faults:?}");
    }
}

#[test]
fn edits_replace_lines_by_key_and_outputs_are_compared_by_line() {
    let file = "a: 1\nb:\n  # c: [2]  # why\n  d: 3\n";
    assert_eq!(edited(file, "  c: [4]\n").as_deref(), Ok("a: 1\nb:\n  c: [4]\n  d: 3\n"));
    assert!(edited(file, "c: [4]\n").is_err(), "another level");
    assert!(edited("a: 1\na: 2\n", "a: 3\n").is_err(), "two lines");
    let output = "NAME     VIP\nweb  192.0.2.240   1 backend\n";
    assert_eq!(missing_line("NAME VIP\nweb ... 1 backend\n", output), None);
    assert_eq!(missing_line("NAME VIP\nweb ... 2 backends\n", output), Some("web ... 2 backends"));
}
