//! `--log-format` and `TIDEGATE_LOG_FORMAT`, with the built binary. The configurations are invalid, so no port is
//! needed; `kubernetes::json_log` reads the log of a gateway that forwards.

use std::io::{self, PipeWriter, Write as _};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

const FAULTY: &str =
    "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nmetadata: {name: edge-1}\nnot-a-key: 1\n";

fn run(arguments: &[&str], variable: Option<&str>) -> Output {
    run_with(arguments, variable.map(|format| ("TIDEGATE_LOG_FORMAT", format)))
}

fn run_with(arguments: &[&str], variable: Option<(&str, &str)>) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("gateway.yaml");
    std::fs::write(&config, FAULTY).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env_remove("RUST_LOG").env_remove("TIDEGATE_LOG_FORMAT").args(["run", "-c"]).arg(&config);
    command.args(arguments).envs(variable);
    command.output().expect("the binary runs")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(!lines.is_empty(), "nothing was logged");
    lines
}

#[test]
fn a_json_log_line_is_an_object_with_level_target_message_and_fields() {
    for output in [run(&["--log-format", "json"], None), run(&[], Some("json"))] {
        assert_eq!(output.status.code(), Some(2));
        let lines = lines(&output);
        for line in &lines {
            assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
            assert!(line["target"].is_string() && line["fields"]["message"].is_string(), "{line}");
        }
        let fault = lines.iter().find(|line| line["level"] == "ERROR").expect("the unknown key is an error");
        assert_eq!(fault["target"], "tidegate::diagnostics");
        assert!(fault["fields"]["message"].as_str().is_some_and(|m| m.contains("not-a-key")), "{fault}");
        assert!(
            fault["fields"]["place"].as_str().is_some_and(|p| p.ends_with("gateway.yaml:4:1")),
            "{fault}"
        );
        assert!(fault["fields"]["accepted"].is_string(), "{fault}");
    }
}

#[test]
fn the_option_overrides_the_variable_and_text_is_the_default() {
    for output in [run(&["--log-format", "text"], Some("json")), run(&[], None)] {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            text.contains(" ERROR tidegate::diagnostics: ") && text.contains("gateway.yaml:4:1"),
            "{text}"
        );
    }
}

#[test]
fn an_empty_rust_log_is_none_and_an_invalid_one_is_reported() {
    let log = |filter: &str| {
        let output = run_with(&[], Some(("RUST_LOG", filter)));
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for filter in ["", " ", ","] {
        assert!(log(filter).contains(" ERROR tidegate::diagnostics: "), "{:?}", log(filter));
    }
    let log_text = log("tidegate=verbose");
    assert!(
        log_text.contains(" WARN ") && log_text.contains("invalid RUST_LOG \"tidegate=verbose\""),
        "{log_text}"
    );
    assert!(
        log_text.contains("accepted=") && log_text.contains(" ERROR tidegate::diagnostics: "),
        "{log_text}"
    );
}

#[test]
fn an_unknown_word_in_rust_log_is_reported_and_the_default_applies() {
    let log = |filter: &str| {
        let output = run_with(&[], Some(("RUST_LOG", filter)));
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (filter, unknown) in [("inof", "inof"), ("tidegate=debug,debgu", "debgu"), ("9", "9")] {
        let log_text = log(filter);
        assert!(log_text.contains(&format!("invalid RUST_LOG {filter:?}")), "{log_text}");
        assert!(log_text.contains(&format!("{unknown:?} is neither a level nor a target")), "{log_text}");
        assert!(log_text.contains(" ERROR tidegate::diagnostics: "), "{log_text}");
    }
    for filter in ["error ", " warn , tidegate_source=debug ", "tidegate"] {
        let log_text = log(filter);
        assert!(!log_text.contains("invalid RUST_LOG"), "{log_text}");
        assert!(log_text.contains(" ERROR tidegate::diagnostics: "), "{log_text}");
    }
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let output = run(&[], Some(""));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(" ERROR tidegate::diagnostics: "), "{text}");
    let log_text = lines(&run(&["--log-format", "json"], Some("")));
    assert!(log_text.iter().any(|line| line["level"] == "ERROR"), "{log_text:?}");
}

#[test]
fn an_unknown_log_format_is_refused_with_the_accepted_ones() {
    for output in [run(&["--log-format", "xml"], None), run(&[], Some("xml"))] {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("'xml'") && text.contains("[possible values: text, json]"), "{text}");
    }
}

#[test]
fn the_final_error_of_any_command_is_an_object_too() {
    let none = "/nonexistent/tidegate.sock";
    let arguments = ["--log-format", "json", "uninstall", "-c", none];
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let lines = lines(&output);
    assert_eq!((lines.len(), &lines[0]["level"]), (1, &Value::from("ERROR")), "{lines:?}");
}

/// Runs with this pipe as standard error, and returns the exit code.
fn run_with_stderr(stderr: &PipeWriter, format: &str) -> Option<i32> {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("gateway.yaml");
    std::fs::write(&config, FAULTY).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env_remove("RUST_LOG").args(["--log-format", format, "run", "-c"]).arg(&config);
    let mut child = command.stderr(stderr.try_clone().expect("a copy")).spawn().expect("the binary runs");
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status.code();
        }
        if Instant::now() >= until {
            child.kill().and_then(|()| child.wait()).expect("it is ours");
            panic!("{format}: it waits for the reader of its log");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_log_without_a_reader_neither_blocks_nor_fails_the_gateway() {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(&writer, PollFlags::OUT)], Some(&now)) == Ok(1) {
        writer.write_all(&[b'x'; 4096]).expect("somebody could read it");
    }
    for format in ["text", "json"] {
        assert_eq!(run_with_stderr(&writer, format), Some(2), "{format}");
    }
    drop(reader);
    for format in ["text", "json"] {
        assert_eq!(run_with_stderr(&writer, format), Some(2), "{format}");
    }
}
