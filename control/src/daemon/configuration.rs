//! The configuration in use, and its replacement by a reload.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tidegate_admin_api::ReloadAnswer;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_events::{Event, Field, Reason};
use tidegate_model::config::{self, GatewayConfig, Loaded};
use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_policy::reconcile::Settings;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::list_copies::ListCopies;
use super::reload::fixed_parts_that_differ;
use crate::assemble;
use crate::logging;

/// The longest time until a reload is answered, even if the files have not been read by then. A million prefixes take
/// about a second.
const READ_BOUND: Duration = Duration::from_secs(20);

/// The configuration in use, and the path of its file.
pub(super) struct Configuration {
    pub(super) path: PathBuf,
    pub(super) config: GatewayConfig,
    /// The settings for the rounds. The state of the other gateways is set before each round.
    pub(super) settings: Settings,
}

impl Configuration {
    /// Creates the value for the configuration of the file at `path`.
    pub(super) fn new(path: &Path, config: GatewayConfig, dataplane: &Dataplane) -> Self {
        let settings = settings(&config, dataplane);
        Self { path: path.to_owned(), config, settings }
    }

    /// A reader of the file, which saves copies of the lists.
    pub(super) fn reader(&self, copies: Arc<ListCopies>) -> Reader {
        let path = self.path.clone();
        Reader::new(move || {
            let loaded = config::load(&path);
            if let Some(config) = &loaded.config {
                copies.save(&loaded.lists, &config.protection.files);
            }
            loaded
        })
    }

    /// Uses a configuration that was read, or returns why not. A configuration that is refused, needs a restart, or was
    /// not read in time changes nothing.
    pub(super) fn replace(&mut self, read: Option<Loaded>, dataplane: &Dataplane) -> Reloaded {
        let Some(loaded) = read else {
            let path = self.path.display();
            let refused = format!(
                "{path}: reading the configuration, or a file that it names, timed out: keeping the previous \
                 configuration"
            );
            record(Reason::ConfigurationRefused, &refused, "");
            let answer = ReloadAnswer { accepted: false, report: vec![refused.clone()] };
            return Reloaded { answer, refused: Some(refused) };
        };
        loaded.report.iter().for_each(logging::diagnostic);
        let mut report: Vec<String> = loaded.report.iter().map(ToString::to_string).collect();
        let refused = match loaded.config {
            None => {
                let is_error = |one: &&Diagnostic| one.severity == Severity::Error;
                let why = loaded.report.iter().find(is_error).map_or_else(String::new, ToString::to_string);
                let message = "refused the new configuration: keeping the previous one";
                record(Reason::ConfigurationRefused, message, &why);
                Some(why)
            }
            Some(config) => {
                let fixed = fixed_parts_that_differ(&self.config, &config).join(", ");
                if fixed.is_empty() {
                    self.settings = settings(&config, dataplane);
                    self.config = config;
                    record(Reason::ConfigurationReloaded, "configuration reloaded", "");
                    None
                } else {
                    let refused =
                        format!("a change of {fixed} needs a restart: keeping the previous configuration");
                    record(Reason::ConfigurationRefused, &refused, "");
                    report.push(refused.clone());
                    Some(refused)
                }
            }
        };
        Reloaded { answer: ReloadAnswer { accepted: refused.is_none(), report }, refused }
    }
}

fn record(reason: Reason, message: &str, why: &str) {
    tidegate_events::record(Event::of_gateway(reason, message).text(Field::Error, why));
}

/// The result of a reload.
pub(super) struct Reloaded {
    /// The answer to the request.
    pub(super) answer: ReloadAnswer,
    /// Why the new configuration is not in use.
    pub(super) refused: Option<String>,
}

/// Reads the configuration for reloads, without delaying anything else. A separate thread reads, because a read that
/// the kernel does not finish cannot be cancelled, for example on a mount whose server does not answer.
pub(super) struct Reader {
    load: Arc<dyn Fn() -> Loaded + Send + Sync>,
    reading: Option<oneshot::Receiver<Loaded>>,
    /// The requests that the current read answers.
    waiting: Vec<Request>,
    /// The requests that arrived after the read started: it may have missed their changes.
    later: Vec<Request>,
}

/// A request to reload.
struct Request {
    /// Where to send the answer; `None` for a signal, which gets no answer.
    answer: Option<oneshot::Sender<ReloadAnswer>>,
    /// When the answer is due.
    until: Instant,
}

/// What a [`Reader`] has read, and for whom.
pub(super) struct Read {
    /// The configuration; `None` if it was not read in time.
    pub(super) loaded: Option<Loaded>,
    answers: Vec<oneshot::Sender<ReloadAnswer>>,
}

impl Read {
    /// Answers the requests.
    pub(super) fn answer(self, answer: &ReloadAnswer) {
        for one in self.answers {
            // The caller may no longer be waiting.
            let _ = one.send(answer.clone());
        }
    }
}

impl Reader {
    fn new(load: impl Fn() -> Loaded + Send + Sync + 'static) -> Self {
        Self { load: Arc::new(load), reading: None, waiting: Vec::new(), later: Vec::new() }
    }

    /// Requests a read of the configuration.
    pub(super) fn request(&mut self, answer: Option<oneshot::Sender<ReloadAnswer>>) {
        self.later.push(Request { answer, until: Instant::now() + READ_BOUND });
        self.begin();
    }

    /// Starts a read for the waiting requests. Only one read runs at a time.
    fn begin(&mut self) {
        if self.reading.is_some() || self.later.is_empty() {
            return;
        }
        let (sender, reading) = oneshot::channel();
        let load = Arc::clone(&self.load);
        let read = move || {
            // The receiver waits, or the gateway has ended.
            let _ = sender.send(load());
        };
        match thread::Builder::new().name("configuration".to_owned()).spawn(read) {
            Ok(_) => {
                self.reading = Some(reading);
                self.waiting.append(&mut self.later);
            }
            // The requests are answered when their time is up.
            Err(error) => tracing::error!(%error, "cannot start a thread to read the configuration"),
        }
    }

    /// Waits until requests can be answered. Cancelling the wait loses nothing.
    pub(super) async fn next(&mut self) -> Read {
        loop {
            let due = self.waiting.iter().chain(&self.later).map(|request| request.until).min();
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let read = async {
                match &mut self.reading {
                    Some(reading) => reading.await.ok(),
                    None => std::future::pending().await,
                }
            };
            let loaded = tokio::select! {
                biased;
                loaded = read => {
                    self.reading = None;
                    loaded
                }
                () = due => return self.late(),
            };
            let requests = std::mem::take(&mut self.waiting);
            self.begin();
            // If nobody waits for this read any more, its result is ignored: the next read is newer.
            if !requests.is_empty() {
                return Read { loaded, answers: requests.into_iter().filter_map(|one| one.answer).collect() };
            }
        }
    }

    /// The requests that have waited too long.
    fn late(&mut self) -> Read {
        let now = Instant::now();
        let is_late = |request: &mut Request| request.until <= now;
        let late = self.waiting.extract_if(.., is_late).chain(self.later.extract_if(.., is_late));
        Read { loaded: None, answers: late.filter_map(|one| one.answer).collect() }
    }
}

/// The settings for reconcile, with the values that the ports report.
pub(super) fn settings(config: &GatewayConfig, dataplane: &Dataplane) -> Settings {
    let ports = assemble::dataplane_config(config);
    let interfaces = tidegate_dataplane::gateway::interface_specs(&ports, dataplane.interfaces());
    assemble::settings(config, interfaces)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};

    use super::*;

    fn named(name: &str) -> Loaded {
        let text =
            format!("apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nmetadata: {{name: {name}}}\n");
        config::parse(&text, "gateway.yaml", Path::new("."), 1)
    }

    /// A reader whose reads end when a name is sent, with a configuration of that name; counts its reads.
    fn reader() -> (Reader, mpsc::Sender<&'static str>, Arc<AtomicU32>) {
        let (release, names) = mpsc::channel();
        let (names, begun) = (Mutex::new(names), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&begun);
        let load = move || {
            count.fetch_add(1, Ordering::SeqCst);
            named(names.lock().expect("no read panics").recv().expect("it is released"))
        };
        (Reader::new(load), release, begun)
    }

    fn request(reader: &mut Reader) -> oneshot::Receiver<ReloadAnswer> {
        let (answer, answered) = oneshot::channel();
        reader.request(Some(answer));
        answered
    }

    /// The name in the next configuration, after it has been answered.
    async fn next(reader: &mut Reader) -> Option<String> {
        let mut read = reader.next().await;
        let name = read.loaded.take().and_then(|loaded| loaded.config).map(|config| config.name);
        read.answer(&ReloadAnswer { accepted: name.is_some(), report: name.iter().cloned().collect() });
        name
    }

    #[tokio::test]
    async fn a_request_is_answered_by_a_read_that_started_after_it() {
        let (mut reader, release, begun) = reader();
        let first = request(&mut reader);
        let later = [request(&mut reader), request(&mut reader)];
        release.send("older").expect("it reads");
        assert_eq!(next(&mut reader).await.as_deref(), Some("older"));
        assert_eq!(first.await.expect("an answer").report, ["older"]);
        release.send("newer").expect("it reads");
        assert_eq!(next(&mut reader).await.as_deref(), Some("newer"));
        for one in later {
            assert_eq!(one.await.expect("an answer").report, ["newer"]);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2, "one read answers both later requests");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_read_times_out_and_files_are_read_again_later() {
        let (mut reader, release, begun) = reader();
        let before = Instant::now();
        let hanging = request(&mut reader);
        assert_eq!(next(&mut reader).await, None);
        assert!(!hanging.await.expect("an answer").accepted);
        assert_eq!(before.elapsed().as_secs(), READ_BOUND.as_secs());
        let waits = request(&mut reader);
        assert_eq!(next(&mut reader).await, None);
        assert!(!waits.await.expect("an answer").accepted);
        assert!(begun.load(Ordering::SeqCst) <= 1, "no second read starts while the first one hangs");

        tokio::time::resume();
        let answered = request(&mut reader);
        release.send("older").expect("it hangs");
        release.send("newer").expect("it hangs");
        assert_eq!(next(&mut reader).await.as_deref(), Some("newer"), "nobody waits for the older one");
        assert!(answered.await.expect("an answer").accepted);
    }
}
