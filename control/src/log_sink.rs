//! Where log lines go: standard error, whose reader may be slow, stopped or gone.
//!
//! A write to a full pipe blocks until somebody reads. A thread that logs would hang there, and with it all others that
//! log: the daemon's loop, the announcer, the slow path. So a line waits for [`WAIT`] at most. After that, lines are
//! lost and counted at once until there is space again; then a line reports how many were lost. `tracing-appender` would
//! not do: lines that its thread has not written yet are lost when the process is killed.
//!
//! Invariant: a write never fails, and waits no longer than [`WAIT`], unless standard error is a file on a disk that
//! does not answer.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long a line waits for space.
const WAIT: Duration = Duration::from_millis(100);
/// The bytes of one write: a pipe or socket that is writable has at least this much space (`PIPE_BUF`), so the write
/// does not block.
const CHUNK: usize = 4096;

/// Formats the line that reports how many lines were lost.
pub(crate) type Note = fn(u64) -> String;

/// The output.
#[derive(Debug)]
pub(crate) struct LogSink {
    out: File,
    note: Note,
    /// How many lines were lost since the last one that was written, and since when.
    lost: Option<(u64, Timestamp)>,
    /// The total number of lost lines.
    lost_in_total: u64,
    /// Whether the last line was truncated.
    is_cut: bool,
}

impl LogSink {
    pub(crate) fn new(out: File, note: Note) -> Self {
        Self { out, note, lost: None, lost_in_total: 0, is_cut: false }
    }

    /// The total number of lost lines.
    pub(crate) fn lost_in_total(&self) -> u64 {
        self.lost_in_total
    }

    /// How many lines were lost and since when; `None` if they could be reported.
    pub(crate) fn trouble(&mut self) -> Option<(u64, Timestamp)> {
        if self.report_lost() { None } else { self.lost }
    }

    /// Reports lost lines, if any. Returns false if there is no space for that.
    fn report_lost(&mut self) -> bool {
        let Some((lines, _)) = self.lost else { return true };
        let is_reported = self.put((self.note)(lines).as_bytes(), Duration::ZERO);
        if is_reported {
            self.lost = None;
        }
        is_reported
    }

    /// Writes all of the text. Returns false if there is no space in time, or no reader.
    fn put(&mut self, text: &[u8], wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let end: &[u8] = if self.is_cut { b"\n" } else { b"" };
        // Ends a truncated line before anything else.
        for (n, chunk) in end.chunks(1).chain(text.chunks(CHUNK)).enumerate() {
            let is_within_line = n > end.len();
            if !has_space(&self.out, until) {
                self.is_cut |= is_within_line;
                return false;
            }
            if self.out.write_all(chunk).is_err() {
                self.is_cut |= n >= end.len();
                return false;
            }
            self.is_cut &= n >= end.len();
        }
        self.is_cut = false;
        true
    }
}

impl Write for LogSink {
    /// Writes a line, or counts it as lost.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.report_lost() || !self.put(line, WAIT) {
            let (lines, since) = self.lost.unwrap_or((0, Timestamp::now()));
            self.lost = Some((lines + 1, since));
            self.lost_in_total += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a chunk can be written without blocking, by `until` at the latest.
fn has_space(out: &File, until: Instant) -> bool {
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(remaining.subsec_nanos()) };
        let mut fds = [PollFd::new(out, PollFlags::OUT)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => return fds[0].revents().contains(PollFlags::OUT),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    use super::*;

    const NOTE: Note = |lines| format!("{lines} lines were lost\n");

    /// Runs a task on another thread, and fails if it does not end.
    fn within_a_minute<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, waits) = mpsc::channel();
        std::thread::spawn(move || done.send(task()));
        waits.recv_timeout(Duration::from_secs(60)).expect("a line waited for its reader")
    }

    #[test]
    fn unread_lines_are_lost_without_blocking_and_counted_afterwards() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut sink = LogSink::new(File::from(OwnedFd::from(writer)), NOTE);
        let line = |n: u32| format!("line {n} {}\n", "x".repeat(10_000));
        let mut sink = within_a_minute(move || {
            (0..200).for_each(|n| sink.write_all(line(n).as_bytes()).expect("it never fails"));
            sink
        });
        let lost = sink.lost_in_total();
        assert!((1..200).contains(&lost), "{lost} lines were lost");
        assert_eq!(sink.trouble().map(|(lines, _)| lines), Some(lost));

        let mut taken = vec![0; 20_000];
        reader.read_exact(&mut taken).expect("the pipe is full");
        assert_eq!(sink.trouble(), None, "there is space again");
        let mut text = String::from_utf8(taken).expect("text");
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            reader.read_to_string(&mut rest).expect("text");
            rest
        });
        sink.write_all(b"the last line\n").expect("it never fails");
        assert_eq!(sink.lost_in_total(), lost);
        drop(sink);
        text += &rest.join().expect("it reads");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[lines.len() - 2..], [NOTE(lost).trim_end(), "the last line"]);
        let whole = |n: u32, text: &str| text == line(n).trim_end();
        let written = (0..).zip(&lines).take_while(|(n, text)| whole(*n, text)).count();
        assert_eq!(written as u64, 200 - lost, "those before are complete");
        // The rest is the truncated line.
        assert!(lines.len() - 2 - written <= 1, "{} lines", lines.len());
    }

    #[test]
    fn a_closed_reader_is_not_an_error() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut sink = LogSink::new(File::from(OwnedFd::from(writer)), NOTE);
        sink.write_all(b"one\n").expect("it never fails");
        let mut lines = BufReader::new(reader);
        let mut line = String::new();
        lines.read_line(&mut line).expect("it is there");
        assert_eq!((line.as_str(), sink.trouble()), ("one\n", None));
        drop(lines);
        (0..3).for_each(|_| sink.write_all(b"two\n").expect("it never fails"));
        assert_eq!(sink.lost_in_total(), 3);
        assert_eq!(sink.trouble().map(|(lines, _)| lines), Some(3));
    }
}
