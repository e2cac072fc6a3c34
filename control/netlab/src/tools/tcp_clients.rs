//! Keeps connections to `tcp-echo` open, pings them all the time, and executes the requests on its standard input, one
//! line each.
//!
//! A process has a limit of open files, so many connections need several of these. Each request gets one line as its
//! answer: `ok` with the result, or `error` with the reason. The process exits at the end of its input.

use crate::fleet::connections::Connections;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, Write};
use std::net::SocketAddr;

/// Serves until the end of `input`. The requests:
///
/// - `open FIRST END ADDRESS:PORT...`: the connections with these numbers ([`Connections::open`])
/// - `ping-round`: waits until every connection has been pinged
/// - `expect-loss BACKEND`
/// - `tally SERVICES`: JSON
///
/// # Errors
/// When the input cannot be read or the output not be written.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<()> {
    let connections = Connections::start();
    for line in input.lines() {
        let answer = match obey(&connections, &line?) {
            Ok(answer) => format!("ok {answer}"),
            Err(error) => format!("error {}", format!("{error:#}").replace('\n', " ")),
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

fn obey(connections: &Connections, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match &words[..] {
        ["open", first, end, vips @ ..] if !vips.is_empty() => {
            let vips: Vec<SocketAddr> =
                vips.iter().map(|vip| vip.parse()).collect::<Result<_, _>>().context("ADDRESS:PORT")?;
            let numbers = first.parse().context("FIRST")?..end.parse().context("END")?;
            connections.open(&vips, &numbers)?;
        }
        ["ping-round"] => connections.ping_round()?,
        ["expect-loss", backend] => connections.expect_loss(backend),
        ["tally", services] => {
            let tallies = connections.tally(services.parse().context("SERVICES")?);
            return serde_json::to_string(&tallies).context("cannot write the tallies as JSON");
        }
        _ => bail!("unknown request `{line}`"),
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::connections::Tally;

    #[test]
    fn each_request_gets_one_line_and_a_wrong_one_does_not_end_the_process() {
        let mut answers = Vec::new();
        let requests = "ping-round\nopen 0 x 192.0.2.1:80\nopen 0 1\n\nexpect-loss backend-1\ntally 2\n";
        serve(requests.as_bytes(), &mut answers).unwrap();
        let answers = String::from_utf8(answers).unwrap();
        let answers: Vec<&str> = answers.lines().collect();
        assert_eq!(answers.len(), 6, "{answers:?}");
        assert_eq!((answers[0], answers[4]), ("ok ", "ok "));
        for wrong in &answers[1..4] {
            assert!(wrong.starts_with("error "), "{wrong}");
        }
        let tallies: Vec<Tally> = serde_json::from_str(answers[5].strip_prefix("ok ").unwrap()).unwrap();
        assert_eq!(tallies, vec![Tally::default(); 2]);
    }
}
