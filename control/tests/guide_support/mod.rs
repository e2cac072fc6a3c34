//! The pages of `docs/guide` as lists of steps, so that tests follow them as a reader does.
//!
//! A comment directly above a fenced block says what the test does with the block:
//!
//! - `run: HOST, HOST ...`: runs it in a shell of each host. It must succeed.
//! - `until: TEXT`, below `run`: repeats it until its output contains the text.
//! - `fails: TEXT`, below `run`: it must fail, and print the text.
//! - `exit: any`, below `run`: it may fail, because that depends on the machine.
//! - `with: WORD=VALUE`, below `run`: runs it with this value in place of a word that the reader replaces.
//! - `instead: COMMANDS`, below `run`: runs these, because the block runs until the reader stops it.
//! - `file: HOST, HOST ... PATH`: writes it to a file of each host.
//! - `edit: HOST PATH`: replaces the lines of the file that begin with the same key, commented out or not.
//! - `output`: each line must occur in the output of the previous block; `...` stands for any text.
//! - `not run: REASON`: does nothing.
//!
//! Every block of shell commands needs one of these, and every block has a language. Nothing here runs anything.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::PathBuf;

/// The languages of blocks with commands.
const COMMANDS: [&str; 3] = ["sh", "bash", "console"];

/// The languages of blocks without commands.
const TEXTS: [&str; 4] = ["text", "yaml", "json", "python"];

/// What a step does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Run { hosts: Vec<String>, instead: Option<String>, expected: Expected },
    File { hosts: Vec<String>, path: String },
    Edit { hosts: Vec<String>, path: String },
    Output,
    NotRun { reason: String },
}

/// The expected end of commands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Success,
    Until(String),
    Failure(String),
    Any,
}

/// A block with the line on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) action: Action,
    pub(crate) text: String,
}

/// The directory of the guide.
pub(crate) fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/guide")
}

/// The steps of a page, by its name without `.md`.
///
/// # Panics
/// When there is no such page, or it has faults.
pub(crate) fn steps_of(page: &str) -> Vec<Step> {
    let path = directory().join(format!("{page}.md"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    steps(&text).unwrap_or_else(|faults| panic!("docs/guide/{page}.md: {}", faults.join("\n")))
}

/// The steps of a page, or its faults.
pub(crate) fn steps(page: &str) -> Result<Vec<Step>, Vec<String>> {
    let (mut steps, mut faults, mut comments) = (Vec::new(), Vec::new(), Vec::new());
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let trimmed = line.trim_start();
        if let Some(comment) = trimmed.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            comments.push(comment);
            continue;
        }
        if trimmed.starts_with("~~~") {
            faults.push(format!("line {}: accepted: blocks between ```", at + 1));
        }
        let Some(language) = trimmed.strip_prefix("```") else {
            if !comments.is_empty() {
                faults.push(format!("line {at}: a comment that is not directly above a block: {comments:?}"));
                comments.clear();
            }
            continue;
        };
        let indent = line.len() - trimmed.len();
        let block = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
        let text: String =
            block.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect();
        if !COMMANDS.contains(&language) && !TEXTS.contains(&language) {
            let accepted = [&COMMANDS[..], &TEXTS[..]].concat().join(", ");
            faults.push(format!("line {}: the language {language:?}; accepted: {accepted}", at + 1));
        }
        match action(&std::mem::take(&mut comments), &text) {
            Ok(Some(action)) => steps.push(Step { line: at + 1, action, text }),
            Ok(None) if COMMANDS.contains(&language) => {
                faults.push(format!("line {}: commands without a comment that says where they run", at + 1));
            }
            Ok(None) if language == "text" && text.lines().any(is_command) => {
                faults.push(format!("line {}: commands; accepted: {}", at + 1, COMMANDS.join(", ")));
            }
            Ok(None) => {}
            Err(fault) => faults.push(format!("line {}: {fault}", at + 1)),
        }
    }
    if faults.is_empty() { Ok(steps) } else { Err(faults) }
}

/// Whether a line of a block of text begins with a program of the guide. Configurations of routers have
/// lines that begin with `ip`.
fn is_command(line: &str) -> bool {
    let programs = ["$", "apt-get", "curl", "helm", "kubectl", "sysctl", "systemctl", "tidegate", "vtysh"];
    line.split_whitespace().next().is_some_and(|word| programs.contains(&word))
}

fn action(comments: &[&str], text: &str) -> Result<Option<Action>, String> {
    let Some((first, more)) = comments.split_first() else { return Ok(None) };
    let (key, value) = first.split_once(": ").unwrap_or((first, ""));
    let place = || {
        let place = value.rsplit_once(' ').map(|(hosts, path)| (names(hosts), path.to_owned()));
        place.ok_or_else(|| format!("{key}: accepted: HOST PATH"))
    };
    let action = match key {
        "run" => return run(value, more, text).map(Some),
        "file" => place().map(|(hosts, path)| Action::File { hosts, path })?,
        "edit" => place().map(|(hosts, path)| Action::Edit { hosts, path })?,
        "output" => Action::Output,
        "not run" if !value.is_empty() => Action::NotRun { reason: value.to_owned() },
        _ => return Err(format!("{first:?} is unknown")),
    };
    if more.is_empty() { Ok(Some(action)) } else { Err(format!("{more:?} below {key}")) }
}

fn names(hosts: &str) -> Vec<String> {
    hosts.split(", ").map(str::to_owned).collect()
}

fn run(hosts: &str, more: &[&str], text: &str) -> Result<Action, String> {
    let (mut instead, mut expected) = (None, Expected::Success);
    for comment in more {
        match comment.split_once(": ") {
            Some(("instead", commands)) => instead = Some(commands.to_owned()),
            Some(("with", replacement)) => {
                let (word, value) = replacement.split_once('=').ok_or("with: accepted: WORD=VALUE")?;
                let commands = instead.as_deref().unwrap_or(text);
                if !commands.contains(word) {
                    return Err(format!("the block has no {word}"));
                }
                instead = Some(commands.replace(word, value));
            }
            Some(("until", text)) => expected = Expected::Until(text.to_owned()),
            Some(("exit", "any")) => expected = Expected::Any,
            Some(("fails", text)) => expected = Expected::Failure(text.to_owned()),
            _ => return Err(format!("{comment:?} is unknown below run")),
        }
    }
    Ok(Action::Run { hosts: names(hosts), instead, expected })
}

/// Replaces lines of a file by those of a block that have the same key.
///
/// # Errors
/// When the file has no line with a key, or several.
pub(crate) fn edited(file: &str, block: &str) -> Result<String, String> {
    let key = |line: &str| {
        let plain = line.replacen("# ", "", 1);
        let commented = if line.trim_start().starts_with("# ") { plain.as_str() } else { line };
        commented.split_once(':').map(|(key, _)| key.to_owned())
    };
    let mut lines: Vec<&str> = file.lines().collect();
    for new in block.lines().filter(|line| !line.trim().is_empty()) {
        let same: Vec<usize> = (0..lines.len()).filter(|&at| key(lines[at]) == key(new)).collect();
        let [at] = same[..] else { return Err(format!("{} lines like {new:?} in\n{file}", same.len())) };
        lines[at] = new;
    }
    Ok(lines.join("\n") + "\n")
}

/// The first line of an expected output that the real one doesn't contain.
pub(crate) fn missing_line<'a>(expected: &'a str, output: &str) -> Option<&'a str> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let real: Vec<String> = output.lines().map(words).collect();
    let is_like = |real: &str, pattern: &str| {
        let mut rest = real;
        let mut parts = pattern.split("...").map(str::trim);
        parts.all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    };
    expected.lines().find(|line| {
        let pattern = words(line);
        !real.iter().any(|real| is_like(real, &pattern))
    })
}
