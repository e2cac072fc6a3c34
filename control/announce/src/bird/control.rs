//! Sends commands to BIRD's control socket, with one connection per command.
//!
//! The protocol is line-based: `CCCC-text` continues a reply and `CCCC text` ends it, where `CCCC` is a code. A line
//! that starts with a space has the code of the previous line (BIRD 2 programmer's documentation, "Command line
//! interface").
//!
//! Invariant: a call returns within its time limit and reads a bounded number of bytes.

use std::io::{self, BufRead as _, BufReader, Read as _, Take, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest reply: about 2 KiB for each of 64 peers, with a wide margin.
const REPLY_BYTES_MAX: u64 = 4 << 20;

/// A reply: lines with their codes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply(pub Vec<(u16, String)>);

impl Reply {
    /// Whether BIRD accepted a `configure` command: it has loaded the new configuration or will do so soon.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        // Codes 3 to 5: "Reconfigured", "in progress", "already in progress, queued". Code 6 is "ignored, shutting
        // down".
        self.0.last().is_some_and(|(code, _)| matches!(code, 3..=5))
    }

    /// The last lines, for error messages.
    #[must_use]
    pub fn text(&self) -> String {
        let lines: Vec<&str> = self.0.iter().rev().take(3).map(|(_, text)| text.as_str()).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }
}

/// Sends a command and returns the reply.
///
/// # Errors
/// If BIRD does not answer in time, or closes the connection early.
pub fn query(socket: &Path, command: &str, within: Duration) -> io::Result<Reply> {
    let deadline = Instant::now() + within;
    let mut request = Request::send(socket, command, within)?;
    let reply = request.reply(deadline.saturating_duration_since(Instant::now()))?;
    reply.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// A command that was sent and whose reply may still be pending.
#[derive(Debug)]
pub struct Request {
    lines: BufReader<Take<UnixStream>>,
    /// The incomplete last line.
    line: Vec<u8>,
    /// The lines of the reply received so far.
    reply: Reply,
    is_greeted: bool,
}

impl Request {
    /// Sends a command.
    ///
    /// # Errors
    /// If BIRD does not accept the connection or the command within this time.
    pub fn send(socket: &Path, command: &str, within: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(within))?;
        (&stream).write_all(format!("{command}\n").as_bytes())?;
        let lines = BufReader::new(stream.take(REPLY_BYTES_MAX));
        Ok(Self { lines, line: Vec::new(), reply: Reply::default(), is_greeted: false })
    }

    /// The reply, or `None` if it has not arrived within this time; then you can call this again.
    ///
    /// # Errors
    /// If BIRD has closed the connection early.
    pub fn reply(&mut self, within: Duration) -> io::Result<Option<Reply>> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.lines.get_ref().get_ref().set_read_timeout(Some(left))?;
            // The part of a line that arrived in time stays in `line`.
            match self.lines.read_until(b'\n', &mut self.line) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            let is_last = self.reply.push(String::from_utf8_lossy(&self.line).trim_end_matches('\n'));
            self.line.clear();
            if is_last {
                let reply = std::mem::take(&mut self.reply);
                // The greeting is a separate reply.
                if std::mem::replace(&mut self.is_greeted, true) {
                    return Ok(Some(reply));
                }
            }
        }
    }
}

impl Reply {
    /// Adds a line. Returns whether it completes the reply.
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
        let error = query(&path, "show status", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(listener);
        assert!(query(&path, "show status", Duration::from_secs(5)).is_err());
    }

    #[test]
    fn a_reply_that_arrives_late_and_in_parts_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ctl");
        let listener = UnixListener::bind(&path).unwrap();
        let mut request = Request::send(&path, "configure", Duration::from_secs(5)).unwrap();
        let (mut bird, _) = listener.accept().unwrap();
        let short = Duration::from_millis(20);
        for part in ["0001 BIRD ready.\n0002-Read", "ing\n000"] {
            bird.write_all(part.as_bytes()).unwrap();
            assert_eq!(request.reply(short).unwrap(), None, "{part}");
        }
        bird.write_all(b"3 Reconfigured\n").unwrap();
        let reply = request.reply(Duration::from_secs(5)).unwrap().expect("a reply");
        assert_eq!(reply, reply_of("0002-Reading\n0003 Reconfigured"));
        drop(bird);
        assert!(request.reply(Duration::from_secs(5)).is_err());
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
