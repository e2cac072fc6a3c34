//! The targets that operators have drained, saved in a file, so that a drained backend gets no new flows after a
//! restart.
//!
//! The file has one target in each line. It is `drained` in `source.kubernetes.stateDirectory`, with the gateway's
//! name, or a file beside the admin socket if there is no such directory.
//!
//! Invariant: if the file cannot be written or read, the log, [`Drains::trouble`] and the answer to a drain report
//! it, and nothing stops. The write is retried until it succeeds.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_model::config::{GatewayConfig, SourceConfig};
use tidegate_policy::reconcile::DrainTarget;
use tokio::time::Instant;

use crate::state_file;

/// The pause before a failed write of the file is retried.
const RETRY: Duration = Duration::from_secs(10);

/// The drained targets, with their file.
#[derive(Debug)]
pub(super) struct Drains {
    targets: BTreeSet<DrainTarget>,
    path: PathBuf,
    /// The error of the file.
    trouble: Option<String>,
    /// When the file must be written again.
    again: Option<Instant>,
}

impl Drains {
    /// Reads the targets that were drained when the previous process of this gateway ended.
    pub(super) fn open(config: &GatewayConfig) -> Self {
        Self::read(path(config))
    }

    fn read(path: PathBuf) -> Self {
        let mut trouble = None;
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                let message = format!(
                    "cannot read the list of drained targets, drain them again: {}: {error}",
                    path.display()
                );
                tracing::error!("{message}");
                trouble = Some(message);
                String::new()
            }
        };
        let mut targets = BTreeSet::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            match text.trim().parse::<DrainTarget>() {
                Ok(target) => {
                    tracing::info!(%target, "still drained by an operator");
                    targets.insert(target);
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), line, %error, "ignoring an invalid line of the drain file");
                }
            }
        }
        Self { targets, path, trouble, again: None }
    }

    /// The drained targets.
    pub(super) fn targets(&self) -> &BTreeSet<DrainTarget> {
        &self.targets
    }

    /// Adds a target.
    pub(super) fn insert(&mut self, target: DrainTarget) {
        if self.targets.insert(target) {
            self.keep();
        }
    }

    /// Removes a target. Returns whether it was drained.
    pub(super) fn remove(&mut self, target: &DrainTarget) -> bool {
        let was_drained = self.targets.remove(target);
        if was_drained {
            self.keep();
        }
        was_drained
    }

    /// Why a restart would lose the current targets, for display.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When the file must be written again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.again
    }

    /// Writes the file again, if that failed and is due.
    pub(super) fn keep_again(&mut self) {
        if self.again.is_some_and(|at| at <= Instant::now()) {
            self.keep();
        }
    }

    fn keep(&mut self) {
        let trouble = self.write().err().map(|error| {
            format!(
                "cannot save the list of drained targets, a restart forgets them: {}: {error}",
                self.path.display()
            )
        });
        self.again = trouble.is_some().then(|| Instant::now() + RETRY);
        if trouble != self.trouble {
            match &trouble {
                Some(trouble) => tracing::error!("{trouble}"),
                None => tracing::info!("the list of drained targets is saved again"),
            }
            self.trouble = trouble;
        }
    }

    fn write(&self) -> io::Result<()> {
        state_file::replace(&self.path, |out| {
            self.targets.iter().try_for_each(|target| state_file::line(out, &target.to_string()))
        })
    }
}

fn path(config: &GatewayConfig) -> PathBuf {
    match &config.source {
        SourceConfig::Kubernetes(kubernetes) if kubernetes.state_directory.is_some() => {
            let directory = kubernetes.state_directory.clone().unwrap_or_default();
            directory.join(format!("{}.drained", config.name))
        }
        SourceConfig::Kubernetes(_) | SourceConfig::Directory(_) => {
            config.admin.socket.with_extension("drained")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> DrainTarget {
        text.parse().expect("a target")
    }

    #[test]
    fn what_is_drained_is_found_again_and_a_broken_line_costs_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("missing").join("tidegate.drained");
        let mut drains = Drains::read(path.clone());
        assert!(drains.targets().is_empty());
        let all = ["10.0.0.1:80", "2001:db8::1", "node-3"].map(target);
        all.iter().for_each(|target| drains.insert(target.clone()));
        assert_eq!(Drains::read(path.clone()).targets(), &BTreeSet::from(all.clone()));

        assert!(drains.remove(&all[0]) && !drains.remove(&all[0]));
        assert_eq!(Drains::read(path.clone()).targets(), &BTreeSet::from([all[1].clone(), all[2].clone()]));

        fs::write(&path, b"node-3\n\xff\xfe bad\n\n10.0.0.9\n").expect("a file");
        assert_eq!(Drains::read(path).targets(), &BTreeSet::from([target("node-3"), target("10.0.0.9")]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unsaved_drain_is_reported_and_saved_as_soon_as_the_disk_allows() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        fs::write(&state, "").expect("ours");
        let path = state.join("edge.drained");
        let mut drains = Drains::read(path.clone());
        assert!(drains.trouble().is_some_and(|message| message.contains("drain them again")), "{drains:?}");
        drains.insert(target("node-3"));
        assert!(
            drains.trouble().is_some_and(|message| message.contains("a restart forgets them")),
            "{drains:?}"
        );
        fs::remove_file(&state).expect("ours");
        drains.keep_again();
        assert!(drains.trouble().is_some(), "not before it is time");
        tokio::time::advance(RETRY).await;
        drains.keep_again();
        assert_eq!((drains.trouble(), drains.due()), (None, None));
        assert_eq!(Drains::read(path).targets(), &BTreeSet::from([target("node-3")]));
    }
}
