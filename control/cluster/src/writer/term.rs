//! The version of the Services that this gateway leads from.
//!
//! A gateway that acquires the Lease asks for the current version of the Services, and leads only once it knows it: no
//! earlier leader has written anything newer.
//!
//! Pure: time is an argument, `writer` sends the request.

use std::time::Duration;

use tokio::time::Instant;

use crate::request::{ANSWER_MAX, RequestError};

/// The time after which the version is requested again.
const RETRY: Duration = Duration::from_secs(1);

/// The time from one loss of the Lease to the next.
#[derive(Debug, Default)]
pub(super) struct Term {
    /// Distinguishes the answers of this term from those of earlier ones.
    number: u64,
    version: Option<u64>,
    /// When the version is requested again; `None` before the first request, and once the version is known.
    ask_at: Option<Instant>,
    /// Why the version is not known although it was requested.
    error: Option<String>,
}

impl Term {
    /// A version of the Services from after this gateway acquired the Lease, if it is known.
    pub(super) fn version(&self) -> Option<u64> {
        self.version
    }

    /// When the version is requested again.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Why this gateway holds the Lease but does not lead.
    pub(super) fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }

    /// Records that this gateway does not hold the Lease. Answers that are still outstanding are ignored.
    pub(super) fn lost(&mut self) {
        let number = self.number + u64::from(self.ask_at.is_some() || self.version.is_some());
        *self = Self { number, ..Self::default() };
    }

    /// Records that this gateway holds the Lease. Returns the number of the term if the version has to be requested
    /// now.
    pub(super) fn ask(&mut self, now: Instant) -> Option<u64> {
        if self.version.is_some() || self.ask_at.is_some_and(|at| at > now) {
            return None;
        }
        // A slow answer is waited for. If no answer arrives, the request is repeated.
        self.ask_at = Some(now + ANSWER_MAX + RETRY);
        Some(self.number)
    }

    /// The answer to the request of term `number`. Returns the version, if this is the current term.
    pub(super) fn answered(
        &mut self,
        number: u64,
        answer: Result<u64, RequestError>,
        now: Instant,
    ) -> Option<u64> {
        if number != self.number {
            return None;
        }
        match answer {
            Ok(version) => {
                (self.version, self.ask_at, self.error) = (Some(version), None, None);
                Some(version)
            }
            Err(error) => {
                let error = format!("cannot list the Services: {error}");
                if self.error.as_ref() != Some(&error) {
                    tracing::warn!(reason = error, "this gateway holds the Lease but does not lead yet");
                }
                (self.error, self.ask_at) = (Some(error), Some(now + RETRY));
                None
            }
        }
    }
}
