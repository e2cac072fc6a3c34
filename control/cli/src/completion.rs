//! `completion` and `man`: what a shell and `man` know about the commands.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use clap_complete::Shell;

/// Options of `completion`.
#[derive(Debug, Clone, Copy, Args)]
pub struct CompletionArgs {
    /// The shell
    shell: CompletedShell,
}

/// A shell for which completion exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page per command to this directory
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
}

/// Prints the completion script of a shell for `command`.
pub(super) fn completion(args: CompletionArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let shell = match args.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the man pages of `command` and its subcommands.
pub(super) fn man(args: &ManArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
