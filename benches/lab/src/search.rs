//! The search for the highest rate that is forwarded within a bound on loss.
//!
//! It bisects an interval, as RFC 2544 section 26.1 describes. A shared machine loses frames now and then for unrelated
//! reasons, so one trial does not decide: a rate passes if two of up to three trials do (the idea of the MLRsearch of
//! the IETF's benchmarking group, draft-ietf-bmwg-mlrsearch, in its simplest form).

use serde::{Deserialize, Serialize};

/// One trial: frames at a constant rate for some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Frames that were due, including those that the driver did not accept.
    pub(crate) offered: u64,
    /// Frames that came back.
    pub(crate) received: u64,
    /// The time in which they were offered.
    pub(crate) seconds: f64,
}

impl Trial {
    /// Frames offered per second.
    pub(crate) fn offered_pps(&self) -> f64 {
        self.offered as f64 / self.seconds
    }

    /// Frames forwarded per second.
    pub(crate) fn received_pps(&self) -> f64 {
        self.received as f64 / self.seconds
    }

    /// The percentage of frames that did not return.
    pub(crate) fn loss_percent(&self) -> f64 {
        if self.offered == 0 {
            return 0.0;
        }
        100.0 * self.offered.saturating_sub(self.received) as f64 / self.offered as f64
    }
}

/// The quantile of the rates at which the trials forwarded frames; 0 without trials.
pub(crate) fn rate_at(trials: &[Trial], quantile: f64) -> f64 {
    let mut rates: Vec<f64> = trials.iter().map(Trial::received_pps).collect();
    rates.sort_by(f64::total_cmp);
    let last = rates.len().saturating_sub(1);
    rates.get((last as f64 * quantile).round() as usize).copied().unwrap_or(0.0)
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Frames forwarded per second under overload.
    pub(crate) overload_pps: f64,
    /// The highest rate within the bound; `None` if no rate was.
    pub(crate) throughput_pps: Option<f64>,
    /// Whether the generator's limit was reached while all of its frames were forwarded: the forwarder may be faster.
    pub(crate) is_limit_of_generator: bool,
    /// All trials, in their order.
    pub(crate) trials: Vec<Trial>,
}

/// The number of trials of a rate, whose majority decides.
const ATTEMPTS: u32 = 3;

/// The number of trials whose median is the rate under overload, if nothing is searched.
const OVERLOADS: usize = 5;
/// A forwarder that loses less than this under overload, in percent, is not overloaded.
const OVERLOAD_LOSS_MIN: f64 = 2.0;

/// The rate under overload alone: the median of some trials, because a shared machine disturbs one now and then.
pub(crate) fn overload(most: f64, mut trial: impl FnMut(f64) -> Trial) -> Found {
    let trials: Vec<Trial> = (0..OVERLOADS).map(|_| trial(most)).collect();
    let lossless = trials.iter().filter(|trial| trial.loss_percent() < OVERLOAD_LOSS_MIN).count();
    Found {
        overload_pps: rate_at(&trials, 0.5),
        throughput_pps: None,
        is_limit_of_generator: lossless * 2 > trials.len(),
        trials,
    }
}

/// Searches between nothing and `most` frames per second. `precision_percent` is the width of the last interval.
pub(crate) fn search(
    most: f64,
    loss_percent: f64,
    precision_percent: f64,
    mut trial: impl FnMut(f64) -> Trial,
) -> Found {
    let mut trials = Vec::new();
    let mut run = |rate: f64| {
        let one = trial(rate);
        trials.push(one);
        one
    };
    let first = run(most);
    let overload_pps = first.received_pps();
    let mut passes = |rate: f64| {
        let (mut good, mut bad) = (0, 0);
        while good <= ATTEMPTS / 2 && bad <= ATTEMPTS / 2 {
            if run(rate).loss_percent() <= loss_percent { good += 1 } else { bad += 1 }
        }
        good > bad
    };
    if first.loss_percent() <= loss_percent && passes(most) {
        let throughput_pps = Some(first.offered_pps());
        return Found { overload_pps, throughput_pps, is_limit_of_generator: true, trials };
    }
    // An overloaded forwarder may be slower than at its best rate, but rarely by a fifth.
    let (mut low, mut high) = (0.0, (overload_pps * 1.2).min(first.offered_pps()));
    let mut rate = overload_pps * 0.95;
    while high - low > high * precision_percent / 100.0 && high > 1.0 {
        if passes(rate) {
            low = rate;
        } else {
            high = rate;
        }
        rate = if low > 0.0 { f64::midpoint(low, high) } else { high * 0.8 };
        // Below a tenth of the rate under overload, the rate is not the reason for loss.
        if low == 0.0 && rate < overload_pps * 0.1 {
            break;
        }
    }
    Found { overload_pps, throughput_pps: (low > 0.0).then_some(low), is_limit_of_generator: false, trials }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A forwarder with a rate of `capacity` frames per second, and a disturbance in every `disturbed`th trial.
    fn forwarder(capacity: f64, generator: f64, disturbed: u64) -> impl FnMut(f64) -> Trial {
        let mut n = 0;
        move |rate| {
            n += 1;
            let offered = rate.min(generator);
            let mut received = offered.min(capacity);
            if disturbed > 0 && n % disturbed == 0 {
                received *= 0.99;
            }
            Trial { offered: offered as u64, received: received as u64, seconds: 1.0 }
        }
    }

    #[test]
    fn the_search_finds_the_capacity_and_tolerates_one_bad_trial() {
        for (capacity, disturbed) in [(1e6, 0), (7.3e6, 0), (12_345.0, 0), (3e6, 4)] {
            let found = search(2e7, 0.1, 1.0, forwarder(capacity, 2e7, disturbed));
            let throughput = found.throughput_pps.unwrap();
            assert!(
                throughput <= capacity * 1.001 && throughput > capacity * 0.985,
                "{throughput} of {capacity}"
            );
            assert!(!found.is_limit_of_generator && found.trials.len() < 60, "{} trials", found.trials.len());
        }
    }

    #[test]
    fn a_forwarder_that_is_faster_than_the_generator_is_reported() {
        let found = search(2e7, 0.1, 1.0, forwarder(1e9, 5e6, 0));
        assert!(found.is_limit_of_generator);
        assert_eq!(found.throughput_pps, Some(5e6));
    }

    #[test]
    fn the_rate_under_overload_is_the_median_of_its_trials() {
        let mut rates = [5e6, 1e6, 6e6, 7e6, 2e6].into_iter();
        let found = overload(2e7, |offered| Trial {
            offered: offered as u64,
            received: rates.next().unwrap() as u64,
            seconds: 1.0,
        });
        assert_eq!((found.overload_pps, found.throughput_pps, found.trials.len()), (5e6, None, 5));
        assert!(!found.is_limit_of_generator);
        assert!(overload(2e7, forwarder(1e9, 5e6, 4)).is_limit_of_generator, "nothing is lost");
    }

    #[test]
    fn a_forwarder_that_loses_at_every_rate_has_no_throughput() {
        let always = |rate: f64| Trial { offered: rate as u64, received: (rate * 0.9) as u64, seconds: 1.0 };
        assert_eq!(search(1e6, 0.1, 1.0, always).throughput_pps, None);
        let dead = |rate: f64| Trial { offered: rate as u64, received: 0, seconds: 1.0 };
        assert_eq!(search(1e6, 0.1, 1.0, dead).throughput_pps, None);
    }

    #[test]
    fn a_quantile_of_the_rates_leaves_disturbed_seconds_out() {
        let trial = |received| Trial { offered: 1_000, received, seconds: 1.0 };
        let trials: Vec<Trial> = (0..40).map(|n| trial(if n % 2 == 0 { 900 } else { 100 + n })).collect();
        assert_eq!((rate_at(&trials, 0.95), rate_at(&trials, 0.0), rate_at(&[], 0.5)), (900.0, 101.0, 0.0));
    }
}
