//! How the process was called, and how it exits.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

/// Exit code for input that is refused.
pub const REFUSED: u8 = 2;

/// The command name if kubectl runs this binary as a plugin: `kubectl tidegate` if the binary was started as
/// `kubectl-tidegate`.
pub(super) fn plugin_name(program: Option<&OsStr>) -> Option<String> {
    let file = Path::new(program?).file_name()?.to_str()?;
    // kubectl replaces a dash in a command name with an underscore in the file name of the plugin.
    Some(format!("kubectl {}", file.strip_prefix("kubectl-")?.replace('_', "-")))
}

/// Parses the command line of this process. Exits if it is wrong or asks for help.
#[must_use]
pub fn parse<C: CommandFactory + FromArgMatches>() -> C {
    let command = without_empty_variables(C::command());
    let command = match plugin_name(std::env::args_os().next().as_deref()) {
        Some(name) => with_examples_of(command.bin_name(name.as_str()), &name),
        None => command,
    };
    C::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Replaces the name of the program in the examples of all subcommands.
fn with_examples_of(command: clap::Command, name: &str) -> clap::Command {
    command.mut_subcommands(|subcommand| {
        let subcommand = with_examples_of(subcommand, name);
        let Some(examples) = subcommand.get_after_help().map(ToString::to_string) else { return subcommand };
        subcommand.after_help(examples.replace("\n  tidegate ", &format!("\n  {name} ")))
    })
}

/// Ignores environment variables that are empty: clap would reject their value.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| {
        let value = argument.get_env().and_then(std::env::var_os);
        let is_empty = value.is_some_and(|value| value.is_empty());
        if is_empty { argument.env(None::<&'static str>) } else { argument }
    })
}

/// The exit code of a command. `report` prints why it failed.
pub fn exit_code(result: anyhow::Result<ExitCode>, report: impl FnOnce(&str)) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&text_of(&error));
            ExitCode::FAILURE
        }
    }
}

/// The text of an error with its causes. Errors that already include the text of their cause do not repeat it.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.as_str() {
            "" => text = cause,
            before if before.contains(&cause) => {}
            _ => text = format!("{text}: {cause}"),
        }
    }
    text
}

/// Whether the error is a write to an output that the reader has closed (`tidegate ... | head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.into_iter().any(|io| io.kind() == io::ErrorKind::BrokenPipe)
}
