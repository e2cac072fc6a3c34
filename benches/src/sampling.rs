//! Medians and spreads of repeated timings.
//!
//! Times on a shared machine have a long tail upwards and a hard floor: the median says what to expect, the
//! least what the work takes when nobody disturbs, and the quartiles how far to trust either.

/// What n timings of one thing come to; the unit is that of the timings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The least.
    pub least: f64,
    /// A quarter are below this.
    pub lower: f64,
    /// Half are below this.
    pub median: f64,
    /// Three quarters are below this.
    pub upper: f64,
    /// How many there were.
    pub count: usize,
}

/// Sums up timings.
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
    fn one_slow_run_moves_neither_the_median_nor_the_least() {
        let s = summary(&[10.0, 12.0, 11.0, 13.0, 900.0]);
        assert_eq!((s.least, s.lower, s.median, s.upper, s.count), (10.0, 11.0, 12.0, 13.0, 5));
    }
}
