//! Figures: quantiles of times, and the difference between two readings of `/metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Times, sorted.
#[derive(Debug)]
pub(crate) struct Quantiles(Vec<Duration>);

impl Quantiles {
    /// The header of a table of quantiles.
    pub(crate) const HEAD: &'static str =
        "| ms | count | median | p90 | p99 | p99.9 | most |\n|---|---|---|---|---|---|---|";

    /// Sorts the times.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// A row of the table.
    pub(crate) fn row(&self, what: &str) -> String {
        let Some(last) = self.0.len().checked_sub(1) else { return format!("| {what} | 0 | | | | | |") };
        let at = |per_mille: usize| self.0[last * per_mille / 1000].as_secs_f64() * 1e3;
        let [median, p90, p99, p999, most] = [500, 900, 990, 999, 1000].map(at);
        format!("| {what} | {} | {median:.2} | {p90:.2} | {p99:.2} | {p999:.2} | {most:.2} |", self.0.len())
    }
}

/// The samples of a page of metrics: each series with its labels, and its value.
#[derive(Debug)]
pub(crate) struct Page(BTreeMap<String, f64>);

impl Page {
    /// Parses the text exposition format.
    pub(crate) fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// The value of a series; 0 if it is absent.
    pub(crate) fn value(&self, series: &str) -> f64 {
        self.0.get(series).copied().unwrap_or_default()
    }

    /// Whether a family has any series.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.family(name).next().is_some()
    }

    /// The series of a family, with their labels.
    fn family<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{')).then_some((labels, *value))
        })
    }
}

/// The observations of `tidegate_network_programming_duration_seconds` between two readings.
#[derive(Debug)]
pub(crate) struct Programming {
    /// The histogram buckets, as (upper bound in seconds, cumulative count).
    histogram: Vec<(f64, f64)>,
    sum: f64,
}

impl Programming {
    /// The difference between two readings.
    pub(crate) fn between(before: &Page, after: &Page) -> Self {
        let name = "tidegate_network_programming_duration_seconds";
        let series = format!("{name}_bucket");
        let mut histogram: Vec<(f64, f64)> = after
            .family(&series)
            .map(|(labels, count)| {
                let bound = labels.split('"').nth(1).unwrap_or_default();
                let before = before.value(&format!("{series}{labels}"));
                (bound.parse().unwrap_or(f64::INFINITY), count - before)
            })
            .collect();
        histogram.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sum = format!("{name}_sum");
        Self { histogram, sum: after.value(&sum) - before.value(&sum) }
    }

    fn count(&self) -> f64 {
        self.histogram.last().map_or(0.0, |(_, count)| *count)
    }

    /// Like Prometheus' `histogram_quantile`: linear within a histogram bucket.
    fn quantile(&self, q: f64) -> f64 {
        let rank = q * self.count();
        let at = self.histogram.partition_point(|(_, count)| *count < rank);
        let Some((bound, count)) = self.histogram.get(at) else { return f64::NAN };
        let (low, below) = if at == 0 { (0.0, 0.0) } else { self.histogram[at - 1] };
        if bound.is_infinite() {
            low
        } else {
            low + (bound - low) * (rank - below) / (count - below).max(1.0)
        }
    }
}

impl fmt::Display for Programming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, ms) = (self.count(), |q: f64| self.quantile(q) * 1e3);
        writeln!(
            f,
            "| by the gateway's histogram, a round each | {count} | {:.1} | {:.1} | {:.1} | {:.1} | |",
            ms(0.5),
            ms(0.9),
            ms(0.99),
            ms(0.999)
        )?;
        let mean = self.sum / count.max(1.0) * 1e3;
        let shown: Vec<String> = self
            .histogram
            .windows(2)
            .map(|pair| {
                let [(_, below), (bound, upto)] = pair else { unreachable!("windows of two") };
                format!("<={}: {}", bound * 1e3, upto - below)
            })
            .collect();
        let first = self.histogram.first().map_or(0.0, |(_, count)| *count);
        writeln!(f, "\nits histogram buckets (ms): <=5: {first}, {}; mean {mean:.2} ms", shown.join(", "))
    }
}

/// The losses between two readings, from all metrics that count them.
pub(crate) fn lost(before: &Page, after: &Page) -> String {
    let names = [
        "tidegate_drops_total",
        "tidegate_kernel_drops_total",
        "tidegate_injected_drops_total",
        "tidegate_packets_total",
    ];
    let mut text = String::new();
    for name in names {
        let changed = after.family(name).filter_map(|(labels, value)| {
            let more = value - before.value(&format!("{name}{labels}"));
            (more > 0.0).then(|| format!("{labels} {more}"))
        });
        let changed: Vec<String> = changed.collect();
        text +=
            &format!("{name}: {}\n", if changed.is_empty() { "none".to_owned() } else { changed.join(", ") });
    }
    text
}
