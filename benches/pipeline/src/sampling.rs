//! Medians and spreads of repeated timings.
//!
//! Times on a shared machine have a long upper tail and a hard lower limit. The median is the expected time. The
//! minimum is the time of the work without disturbance. The quartiles show how reliable both are.

/// The distribution of n timings of one thing, in the unit of the timings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The minimum.
    pub least: f64,
    /// A quarter are below this.
    pub lower: f64,
    /// Half are below this.
    pub median: f64,
    /// Three quarters are below this.
    pub upper: f64,
    /// The number of timings.
    pub count: usize,
}

/// Summarises timings.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn summary(timings: &[f64]) -> Summary {
    assert!(!timings.is_empty(), "a summary is of at least one timing");
    let mut sorted = timings.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
    Summary { least: at(0), lower: at(1), median: at(2), upper: at(3), count: sorted.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_run_changes_neither_the_median_nor_the_minimum() {
        let s = summary(&[10.0, 12.0, 11.0, 13.0, 900.0]);
        assert_eq!((s.least, s.lower, s.median, s.upper, s.count), (10.0, 11.0, 12.0, 13.0, 5));
    }
}
