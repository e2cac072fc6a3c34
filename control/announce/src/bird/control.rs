//! Commands for BIRD by its control socket: one connection for each command.
//!
//! The protocol is lines: `CCCC-text` continues a reply and `CCCC text` ends it, where `CCCC` is a code, and a line that
//! begins with a space has the code of the line before it (BIRD 2 programmer's documentation, "Command line interface").
//!
//! Invariant: a call ends within its time, and reads a bounded number of bytes.

use std::io::{self, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest reply: some 64 peers have 2 KiB each.
const REPLY_BYTES_MAX: u64 = 4 << 20;

/// A reply: lines with their codes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply(pub Vec<(u16, String)>);

impl Reply {
    /// Whether BIRD does what `configure` asked for: it has a new configuration, or will have it soon.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        // "Reconfigured", "in progress", "already in progress, queued", "ignored, shutting down" is 6.
        self.0.last().is_some_and(|(code, _)| matches!(code, 3..=5))
    }

    /// The last lines, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let lines: Vec<&str> = self.0.iter().rev().take(3).map(|(_, text)| text.as_str()).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }
}

/// Sends a command, and returns the reply.
///
/// # Errors
/// When BIRD does not answer in time, or closes the connection early.
pub fn ask(socket: &Path, command: &str, within: Duration) -> io::Result<Reply> {
    let deadline = Instant::now() + within;
    let stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(within))?;
    (&stream).write_all(format!("{command}\n").as_bytes())?;
    let mut lines = BufReader::new((&stream).take(REPLY_BYTES_MAX));
    // The greeting is a reply of its own.
    read_reply(&stream, &mut lines, deadline)?;
    read_reply(&stream, &mut lines, deadline)
}

fn read_reply(stream: &UnixStream, lines: &mut impl io::BufRead, deadline: Instant) -> io::Result<Reply> {
    let mut reply = Reply::default();
    let mut bytes = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        bytes.clear();
        if lines.read_until(b'\n', &mut bytes)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&bytes);
        if reply.push(line.trim_end_matches('\n')) {
            return Ok(reply);
        }
    }
}

impl Reply {
    /// Adds a line. Returns whether it is the last one.
    pub(crate) fn push(&mut self, line: &str) -> bool {
        let code = line.get(..4).and_then(|code| code.parse::<u16>().ok());
        match (code, line.as_bytes().get(4)) {
            (Some(code), Some(kind @ (b' ' | b'-'))) => {
                self.0.push((code, line[5..].to_owned()));
                *kind == b' '
            }
            _ => {
                let code = self.0.last().map_or(0, |(code, _)| *code);
                self.0.push((code, line.strip_prefix(' ').unwrap_or(line).to_owned()));
                false
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn reply_of(text: &str) -> Reply {
    let mut reply = Reply::default();
    for line in text.lines() {
        if reply.push(line) {
            break;
        }
    }
    reply
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_bird_that_is_silent_or_hangs_up_is_an_error_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ctl");
        let listener = UnixListener::bind(&path).unwrap();
        let error = ask(&path, "show status", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(listener);
        assert!(ask(&path, "show status", Duration::from_secs(5)).is_err());
    }

    #[test]
    fn lines_continue_a_reply_until_one_ends_it() {
        let reply = reply_of("0002-Reading configuration from bird.conf\n0003 Reconfigured\n0001 more");
        assert_eq!(reply.0.len(), 2);
        assert!(reply.is_accepted());
        let refused = reply_of("0002-Reading configuration from bird.conf\n8002 bird.conf:7:31 syntax error");
        assert!(!refused.is_accepted() && refused.text().contains("7:31"));
        let continued = reply_of("1002-peer1 BGP\n1006-  BGP state: Idle\n   Neighbor\n \n0000 ");
        assert_eq!(continued.0[2], (1006, "  Neighbor".to_owned()));
    }
}
