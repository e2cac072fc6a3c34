//! How busy a worker is, over a period long enough to be meaningful.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Readings of a worker's cycles. Ratios cover a period that is long enough to be meaningful and short enough to be
/// current. The most frequent reader determines the period.
#[derive(Debug, Default)]
pub(super) struct Window(Mutex<Option<(Reading, Reading)>>);

/// The shortest period that a ratio covers.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// One reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) busy: u64,
    pub(super) idle: u64,
    pub(super) frames: u64,
}

impl Window {
    /// Busy ratio and cycles per packet since the previous reading, or since the start for the first.
    pub(super) fn ratios(&self, now: Reading) -> (f64, f64) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let zero = Reading { at: now.at, busy: 0, idle: 0, frames: 0 };
        let (older, newer) = readings.get_or_insert((zero, now));
        if now.at.duration_since(newer.at) >= WINDOW_MIN {
            (*older, *newer) = (*newer, now);
        }
        let busy = now.busy.saturating_sub(older.busy) as f64;
        let idle = now.idle.saturating_sub(older.idle) as f64;
        let frames = now.frames.saturating_sub(older.frames) as f64;
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        (ratio(busy, busy + idle), ratio(busy, frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_last_second_not_of_the_whole_life() {
        let window = Window::default();
        let start = Instant::now();
        let reading = |seconds, busy, idle, frames| Reading {
            at: start + Duration::from_secs(seconds),
            busy,
            idle,
            frames,
        };
        assert_eq!(window.ratios(reading(0, 100, 300, 10)), (0.25, 10.0));
        assert_eq!(window.ratios(reading(2, 100, 1300, 10)), (0.0, 0.0), "idle since");
        assert_eq!(window.ratios(reading(4, 600, 1800, 110)), (0.5, 5.0));
    }

    #[test]
    fn frequent_readers_share_one_window() {
        let window = Window::default();
        let start = Instant::now();
        let reading =
            |millis, busy| Reading { at: start + Duration::from_millis(millis), busy, idle: 0, frames: busy };
        window.ratios(reading(0, 10));
        window.ratios(reading(1000, 20));
        assert_eq!(window.ratios(reading(1001, 21)), (1.0, 1.0));
    }
}
