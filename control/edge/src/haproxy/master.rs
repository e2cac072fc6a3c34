//! Sends commands to the socket of HAProxy's master, with one connection per command (management guide, section 9.4).
//!
//! Invariant: a call returns within its time limit and reads a bounded number of bytes.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest answer: the state of 4,095 servers, with a wide margin.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How long HAProxy may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The processes of a master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// The pid of the worker that accepts connections, and how often the master was reloaded since it started. After a
    /// reload that failed, the number is not 0.
    pub current: Option<(u32, u32)>,
    /// How many replaced workers still serve connections.
    pub old: usize,
}

/// Sends a command to the master and returns the answer.
///
/// # Errors
/// If HAProxy does not answer in time.
pub fn query(socket: &Path, command: &str) -> io::Result<String> {
    let deadline = Instant::now() + ANSWER_MAX;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    stream.write_all(command.as_bytes())?;
    stream.write_all(b"\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(String::from_utf8_lossy(&answer).into_owned()),
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("the answer is too long"));
        }
    }
}

/// Sends a command to the worker that accepts connections.
///
/// # Errors
/// If HAProxy does not answer in time.
pub fn query_worker(socket: &Path, command: &str) -> io::Result<String> {
    query(socket, &format!("@1 {command}"))
}

/// The current processes.
///
/// # Errors
/// If HAProxy does not answer in time.
pub fn workers(socket: &Path) -> io::Result<Workers> {
    Ok(parse(&query(socket, "show proc")?))
}

/// Parses the answer to `show proc`: sections with a comment as the heading, and lines with pid, type and reloads.
fn parse(answer: &str) -> Workers {
    let mut workers = Workers::default();
    let mut is_old = false;
    for line in answer.lines() {
        if let Some(heading) = line.strip_prefix("# ") {
            is_old = heading.starts_with("old");
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [pid, "worker", reloads, ..] = words[..] else { continue };
        match (pid.parse(), reloads.parse()) {
            (Ok(pid), Ok(reloads)) if !is_old && workers.current.is_none() => {
                workers.current = Some((pid, reloads));
            }
            (Ok(_), Ok(_)) if is_old => workers.old += 1,
            _ => {}
        }
    }
    workers
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn processes_are_parsed() {
        let answer = "#<PID>          <type>          <reloads>       <uptime>        <version>      \n\
            14142           master          3 [failed: 1]   0d00h00m36s     2.6.12-1+deb12u4\n# workers\n\
            16291           worker          1               0d00h00m03s     2.6.12-1+deb12u4\n# old workers\n\
            14221           worker          2               0d00h00m33s     2.6.12-1+deb12u4\n\
            14222           worker          3               0d00h00m33s     2.6.12-1+deb12u4\n# programs\n\n";
        assert_eq!(parse(answer), Workers { current: Some((16291, 1)), old: 2 });
        assert_eq!(parse("no answer"), Workers::default());
    }

    #[test]
    fn a_master_that_is_silent_or_talks_without_end_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sock");
        let listener = UnixListener::bind(&path).expect("bound");
        let started = Instant::now();
        let error = query(&path, "show proc").expect_err("silent");
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        assert!(started.elapsed() >= ANSWER_MAX);
        let talks = std::thread::spawn(move || {
            // The first connection is the one above.
            let _ = listener.accept();
            let (mut stream, _) = listener.accept().expect("a connection");
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        });
        assert!(query(&path, "show proc").is_err());
        talks.join().expect("it ends with the connection");
    }
}
