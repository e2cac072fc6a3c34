//! The file with the last events: one JSON object per line.
//!
//! One thread reads and writes it, and gets the events through a queue of limited length. If the disk is slow, events
//! wait there; if it is full or hangs, they are counted as lost. When the file has twice as many lines as events are
//! kept, it is replaced by those in memory, so it has the same fair shares and a limited length.
//!
//! Invariant: a damaged line costs only itself. Only this thread waits for the disk.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_host::atomic_file;

use super::event::Event;
use super::kept::{Kept, Selection};

/// The number of events that may wait for the disk.
const QUEUE: usize = 4096;
/// The maximum length of a line that is read, in bytes. Longer ones are damaged.
const LINE_BYTES_MAX: u64 = 16 * 1024;
/// How long to wait after a failed write.
const RETRY: Duration = Duration::from_secs(10);

/// The writer of the file.
#[derive(Debug)]
pub(crate) struct Disk {
    queue: SyncSender<Item>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Item {
    Event(Arc<Event>),
    /// Answers when everything before it was written.
    Flush(SyncSender<()>),
}

#[derive(Debug, Default)]
struct Shared {
    lost: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Shared {
    fn set(&self, trouble: Option<String>) {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some() != trouble.is_some() {
            match &trouble {
                Some(trouble) => tracing::warn!("{trouble}"),
                None => tracing::info!("events are saved to disk again"),
            }
        }
        *last = trouble;
    }
}

/// Starts the thread that loads the file and then appends to it.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(path: PathBuf, keep: usize, kept: Arc<Mutex<Kept>>) -> io::Result<Disk> {
    let (queue, items) = sync_channel(QUEUE);
    let shared = Arc::new(Shared::default());
    let log = Log {
        path,
        keep,
        kept,
        shared: Arc::clone(&shared),
        file: None,
        lines: 0,
        replaced_at: 0,
        retry_at: None,
    };
    std::thread::Builder::new().name("tg-events".to_owned()).spawn(move || log.run(&items))?;
    Ok(Disk { queue, shared })
}

impl Disk {
    /// Appends an event, or counts it as lost if too many wait for the disk.
    pub(crate) fn append(&self, event: Arc<Event>) {
        if self.queue.try_send(Item::Event(event)).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Why events are not saved, as text for display.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        trouble.or_else(|| match self.shared.lost.load(Ordering::Relaxed) {
            0 => None,
            lost => Some(format!(
                "cannot save events: the disk is slow or hangs, and {lost} events wait in memory only"
            )),
        })
    }

    /// Waits for the disk, up to a limit.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let (done, written) = sync_channel(1);
        let until = Instant::now() + limit;
        let mut item = Item::Flush(done);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(item) {
            if Instant::now() >= until {
                return false;
            }
            item = back;
            std::thread::yield_now();
        }
        written.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok()
    }
}

/// The file, as its thread sees it.
struct Log {
    path: PathBuf,
    keep: usize,
    kept: Arc<Mutex<Kept>>,
    shared: Arc<Shared>,
    file: Option<File>,
    /// The number of lines of the file.
    lines: usize,
    /// The number of the last event that was in memory when the file was replaced. It may still be in the queue.
    replaced_at: u64,
    /// After a failure, when to write again.
    retry_at: Option<Instant>,
}

impl Log {
    fn run(mut self, items: &Receiver<Item>) {
        self.load();
        self.rewrite();
        while let Some(item) = self.next(items) {
            // What waits is written at once.
            let (mut text, mut lines, mut flushes) = (Vec::new(), 0, Vec::new());
            for item in item.into_iter().chain(items.try_iter().take(QUEUE)) {
                match item {
                    Item::Flush(done) => flushes.push(done),
                    Item::Event(event) if event.number <= self.replaced_at => {}
                    Item::Event(event) => {
                        serde_json::to_writer(&mut text, &*event).expect("an event can be serialized");
                        text.push(b'\n');
                        lines += 1;
                    }
                }
            }
            self.append(&text, lines);
            for done in flushes {
                // If this fails, nobody waits anymore.
                let _ = done.try_send(());
            }
        }
    }

    /// Waits for the next item; `Some(None)` if a retry is due first, `None` when the recorder is gone.
    fn next(&self, items: &Receiver<Item>) -> Option<Option<Item>> {
        use std::sync::mpsc::RecvTimeoutError;
        let Some(at) = self.retry_at else { return items.recv().ok().map(Some) };
        match items.recv_timeout(at.saturating_duration_since(Instant::now())) {
            Ok(item) => Some(Some(item)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Adds the events of earlier processes to those in memory.
    fn load(&mut self) {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot read the events of earlier processes");
                return;
            }
        };
        let (mut reader, mut damaged) = (BufReader::new(file), 0_u64);
        // The file has at most twice the kept events, and some that were waiting.
        for _ in 0..2 * self.keep + QUEUE {
            let mut line = Vec::new();
            match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "cannot read all events of earlier processes");
                    break;
                }
            }
            match serde_json::from_slice::<Event>(&line) {
                Ok(event) => self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::new(event)),
                Err(_) => damaged += 1,
            }
        }
        if damaged > 0 {
            tracing::warn!(path = %self.path.display(), lines = damaged, "ignored damaged lines of the file of events");
        }
    }

    /// Replaces the file by the events in memory.
    fn rewrite(&mut self) {
        // Those that did not fit into the queue are in memory, unless they were evicted.
        self.shared.lost.store(0, Ordering::Relaxed);
        let events = self.kept.lock().unwrap_or_else(PoisonError::into_inner).select(&Selection::default());
        let replaced = atomic_file::replace(&self.path, |out| {
            for event in &events {
                serde_json::to_writer(&mut *out, &**event)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        });
        if replaced.is_ok() {
            self.lines = events.len();
            self.replaced_at = events.last().map_or(0, |event| event.number);
        }
        self.written(replaced.map(Some));
    }

    fn append(&mut self, text: &[u8], lines: usize) {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let is_long = self.lines + lines > 2 * self.keep;
        match &mut self.file {
            // Events that were not written are in memory, unless they were evicted.
            None => self.rewrite(),
            Some(_) if is_long || self.shared.lost.load(Ordering::Relaxed) > 0 => self.rewrite(),
            Some(file) => {
                let written = file.write_all(text);
                self.lines += lines;
                if let Err(error) = written {
                    self.written(Err(error));
                }
            }
        }
    }

    /// Records the result of a write.
    fn written(&mut self, file: io::Result<Option<File>>) {
        let trouble = match file {
            Ok(file) => {
                self.file = file;
                None
            }
            Err(error) => {
                self.file = None;
                Some(format!(
                    "cannot save events; a restart would lose them: {}: {error}",
                    self.path.display()
                ))
            }
        };
        self.retry_at = trouble.is_some().then(|| Instant::now() + RETRY);
        self.shared.set(trouble);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use crate::event::{Event, ObjectKind};
    use crate::kept::Selection;
    use crate::reason::Reason;
    use crate::recorder::Recorder;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn event(namespace: &str) -> Event {
        let event = Event::new(Reason::BackendDown, ObjectKind::Backend, "10.0.0.1:80", "a backend is down");
        event.of_service(namespace, "web")
    }

    fn of(recorder: &Recorder, namespace: &str) -> usize {
        let all = recorder.select(&Selection::default());
        all.iter().filter(|event| event.namespace() == namespace).count()
    }

    #[test]
    fn events_survive_a_restart_and_a_damaged_line_costs_only_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("missing").join("edge.events");
        let recorder = Recorder::new(100, Some(path.clone())).expect("a thread");
        (0..3).for_each(|_| recorder.record(event("shop")));
        assert!(recorder.flush(SOON));
        let before = recorder.select(&Selection::default());
        drop(recorder);

        let mut text = fs::read(&path).expect("the file");
        text.splice(0..0, *b"{\"number\": 1, \"reason\": \"Unknown\"}\n\xff\xfe\n");
        text.extend(b"{\"number\": 17");
        fs::write(&path, &text).expect("ours");
        let recorder = Recorder::new(100, Some(path.clone())).expect("a thread");
        recorder.record(event("blog"));
        assert!(recorder.flush(SOON));
        let after = recorder.select(&Selection::default());
        assert_eq!((&after[..3], of(&recorder, "blog"), after.len()), (&before[..], 1, 4));
        let lines = fs::read_to_string(&path).expect("only valid lines are left");
        assert_eq!(
            lines.lines().filter(|line| serde_json::from_str::<Event>(line).is_ok()).count(),
            4,
            "{lines}"
        );
    }

    #[test]
    fn the_file_stays_short_and_keeps_the_events_of_quiet_namespaces() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("edge.events");
        let recorder = Recorder::new(50, Some(path.clone())).expect("a thread");
        recorder.record(event("quiet"));
        for _ in 0..40 {
            (0..25).for_each(|_| recorder.record(event("noisy")));
            assert!(recorder.flush(SOON));
            let lines = fs::read_to_string(&path).expect("the file").lines().count();
            assert!(lines <= 100, "{lines}");
        }
        drop(recorder);
        let recorder = Recorder::new(50, Some(path)).expect("a thread");
        assert!(recorder.flush(SOON));
        assert_eq!([of(&recorder, "quiet"), of(&recorder, "noisy")], [1, 49]);
    }

    #[test]
    fn a_disk_that_hangs_delays_nothing_and_one_that_fails_is_reported() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("edge.events");
        // Opening a FIFO waits for its other end, like a file on a mount whose server does not answer.
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        let recorder = Recorder::new(10, Some(path.clone())).expect("a thread");
        (0..QUEUE + 10).for_each(|_| recorder.record(event("shop")));
        let trouble = recorder.trouble().expect("the queue is full");
        assert!(trouble.contains("the disk is slow or hangs"), "{trouble}");
        assert!(!recorder.flush(Duration::ZERO));
        // It answers again: an end of file, and the FIFO is replaced by a file.
        drop(fs::OpenOptions::new().write(true).open(&path).expect("the thread reads"));
        assert!(recorder.flush(SOON));
        assert_eq!(recorder.trouble(), None);

        let blocked = directory.path().join("blocked");
        fs::write(&blocked, "").expect("ours");
        let recorder = Recorder::new(10, Some(blocked.join("edge.events"))).expect("a thread");
        recorder.record(event("shop"));
        assert!(recorder.flush(SOON));
        let trouble = recorder.trouble().expect("a file is in place of the directory");
        assert!(trouble.contains("a restart would lose them"), "{trouble}");
        assert_eq!(of(&recorder, "shop"), 1);
    }
}
