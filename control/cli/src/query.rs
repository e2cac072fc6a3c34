//! Runs a query to a gateway or an API server, and reports its failure in the style of kubectl.

use std::io::{self, BufRead, IsTerminal as _, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;
use tidegate_admin_api::ClientError;

use super::failure::Failure;
use super::output::Style;

/// Exit code of `drain` if packets still arrive, or connections are left, at the timeout.
const NOT_DRAINED: u8 = 3;

/// Runs a query to completion. Prints an error of the daemon in the style of kubectl.
pub(super) fn run_query(query: impl Future<Output = Result<(), Failure>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match runtime.block_on(query) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Failure::Output(error)) => Err(error.into()),
        Err(Failure::Gateway(error)) => {
            eprintln!("{}", described(&error));
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Cluster(why)) => {
            eprintln!("Error from cluster: {why}");
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Cancelled(why)) => {
            eprintln!("Error from gateway (Conflict): {why}");
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Declined) => Ok(ExitCode::FAILURE),
        Err(Failure::NotDrained) => Ok(ExitCode::from(NOT_DRAINED)),
        Err(Failure::NotFound(missing)) => {
            missing.iter().for_each(|what| eprintln!("Error from gateway (NotFound): {what} not found"));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn described(error: &ClientError) -> String {
    match error {
        ClientError::Refused { status, message } => {
            let reason = match status {
                400 => "BadRequest",
                404 => "NotFound",
                409 => "Conflict",
                503 => "ServiceUnavailable",
                _ => "InternalError",
            };
            format!("Error from gateway ({reason}): {message}")
        }
        other => format!("Error from gateway: {other}"),
    }
}

/// Fails if any requested name is not found.
pub(super) fn found_all(
    what: &str,
    names: &[String],
    is_found: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let missing = names.iter().filter(|name| !is_found(name));
    let missing: Vec<String> = missing.map(|name| format!("{what} {name:?}")).collect();
    if missing.is_empty() { Ok(()) } else { Err(Failure::NotFound(missing)) }
}

/// Whether `wanted` (`NAME` or `NAMESPACE/NAME`) is this object.
pub(super) fn is_named(wanted: &str, namespace: Option<&str>, name: &str) -> bool {
    // The name of a Gateway contains a slash: `gateway/NAME`.
    let is_qualified = |(of, wanted)| Some(of) == namespace && wanted == name;
    wanted == name || wanted.split_once('/').is_some_and(is_qualified)
}

/// Reports an empty list on standard error, like kubectl. An empty list is not an error.
pub(super) fn report_if_empty(shown: usize, namespace: Option<&str>) {
    match (shown, namespace) {
        (0, Some(namespace)) => eprintln!("No resources found in {namespace} namespace."),
        (0, None) => eprintln!("No resources found"),
        _ => {}
    }
}

/// Prints the result of a change: the answer as data, or the line `done`.
pub(super) fn print_change<T: Serialize>(
    style: Style,
    out: &mut impl Write,
    answer: &T,
    done: &str,
) -> io::Result<()> {
    if style.is_data() { style.print_data(out, answer) } else { writeln!(out, "{done}") }
}

/// Asks the operator on the terminal, and returns whether the answer is yes.
///
/// # Errors
/// Nobody can answer because standard input is not a terminal; `accepted` says what to do.
pub(super) fn confirmed_on_terminal(question: &str, accepted: &str) -> io::Result<bool> {
    let stdin = io::stdin();
    let is_terminal = stdin.is_terminal();
    confirmed(question, accepted, is_terminal, &mut stdin.lock(), &mut io::stderr())
}

fn confirmed(
    question: &str,
    accepted: &str,
    is_terminal: bool,
    input: &mut impl BufRead,
    out: &mut impl Write,
) -> io::Result<bool> {
    if !is_terminal {
        let what = "this command asks for confirmation, but standard input is not a terminal";
        return Err(io::Error::other(format!("{what}; accepted: {accepted}")));
    }
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_confirms_and_it_needs_a_terminal() {
        let ask = |is_terminal, answer: &str| {
            let mut out = Vec::new();
            let confirmed = confirmed("Go?", "--yes", is_terminal, &mut answer.as_bytes(), &mut out);
            (confirmed.map_err(|error| error.to_string()), String::from_utf8_lossy(&out).into_owned())
        };
        for (answer, is_yes) in
            [("y\n", true), ("Yes\n", true), ("n\n", false), ("\n", false), ("", false), ("yess", false)]
        {
            let (confirmed, out) = ask(true, answer);
            assert_eq!((confirmed, out.as_str()), (Ok(is_yes), "Go? [y/N] "), "{answer:?}");
        }
        let (confirmed, out) = ask(false, "y\n");
        assert!(
            confirmed.is_err_and(|why| why.contains("not a terminal; accepted: --yes")) && out.is_empty()
        );
    }

    #[test]
    fn a_name_may_have_a_namespace() {
        for (wanted, is_it) in [("web", true), ("shop/web", true), ("shop/api", false), ("other/web", false)]
        {
            assert_eq!(is_named(wanted, Some("shop"), "web"), is_it, "{wanted}");
        }
        assert!(!is_named("shop/public", None, "public"));
    }
}
