//! The version of the Services with which this gateway's leadership starts.
//!
//! A gateway that acquires the Lease requests the current version of the Services, and leads only once it knows that
//! version: no earlier leader has written anything newer.
//!
//! Pure: time is an argument, and `writer` sends the request.

use std::time::Duration;

use tokio::time::Instant;

use crate::request::{RESPONSE_TIMEOUT, RequestError};

/// The pause before the version is requested again.
const RETRY: Duration = Duration::from_secs(1);

/// The time from one loss of the Lease to the next.
#[derive(Debug, Default)]
pub(super) struct Term {
    /// Distinguishes the responses of this term from those of earlier ones.
    number: u64,
    version: Option<u64>,
    /// When to request the version again; `None` before the first request, and once the version is known.
    request_at: Option<Instant>,
    /// Why the version is unknown although it was requested.
    error: Option<String>,
}

impl Term {
    /// A version of the Services from after this gateway acquired the Lease, if known.
    pub(super) fn version(&self) -> Option<u64> {
        self.version
    }

    /// When to request the version again.
    pub(super) fn request_at(&self) -> Option<Instant> {
        self.request_at
    }

    /// Why this gateway holds the Lease but doesn't lead.
    pub(super) fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }

    /// Records that this gateway doesn't hold the Lease. Outstanding responses are ignored.
    pub(super) fn lost(&mut self) {
        let number = self.number + u64::from(self.request_at.is_some() || self.version.is_some());
        *self = Self { number, ..Self::default() };
    }

    /// Records that this gateway holds the Lease. Returns the number of the term if the version must be requested now.
    pub(super) fn request(&mut self, now: Instant) -> Option<u64> {
        if self.version.is_some() || self.request_at.is_some_and(|at| at > now) {
            return None;
        }
        // Wait for a slow response, and repeat the request if none arrives.
        self.request_at = Some(now + RESPONSE_TIMEOUT + RETRY);
        Some(self.number)
    }

    /// Handles the response to the request of term `number`. Returns the version if this is the current term.
    pub(super) fn received(
        &mut self,
        number: u64,
        response: Result<u64, RequestError>,
        now: Instant,
    ) -> Option<u64> {
        if number != self.number {
            return None;
        }
        match response {
            Ok(version) => {
                (self.version, self.request_at, self.error) = (Some(version), None, None);
                Some(version)
            }
            Err(error) => {
                let error = format!("cannot list the Services: {error}");
                if self.error.as_ref() != Some(&error) {
                    tracing::warn!(
                        reason = error,
                        "this gateway holds the Lease but does not lead yet; trying again"
                    );
                }
                (self.error, self.request_at) = (Some(error), Some(now + RETRY));
                None
            }
        }
    }
}
