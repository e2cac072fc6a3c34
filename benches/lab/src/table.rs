//! Results as tables of Markdown, for terminals and for `benches/results/`, and the comparison of two files of results.

use std::fmt::Write as _;

use crate::results::{Machine, Results, Row, Spread};

/// The machine and all rows.
pub(crate) fn table(results: &Results) -> String {
    let mut text = head(&results.machine);
    text += "\n| row | forwarded under overload, Mpps | ns a frame | within the loss bound, Mpps | latency at half of it, µs: p50 / p99 / p99.9 / worst | at a low rate | connections a second |\n|---|---|---|---|---|---|---|\n";
    for row in &results.rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.scenario.name(),
            of_generator(row, range(row.overload(), 1e6, 3)),
            range(row.nanoseconds(), 1.0, 0),
            throughput(row),
            latency(row, "half"),
            latency(row, "low"),
            row.connections().map_or_else(String::new, |found| range(Some(found), 1.0, 0)),
        );
        for failure in &row.failures {
            let _ = writeln!(text, "| | a round failed: {} | | | | | |", failure.replace(['|', '\n'], " "));
        }
    }
    text
}

/// What was measured where.
fn head(machine: &Machine) -> String {
    let Machine { date, commit, cpu, cpus, kernel, dpdk, placement, .. } = machine;
    let pages = if machine.hugepages { "huge pages" } else { "small pages" };
    format!(
        "{date}, commit {commit}, {cpu}, {cpus} CPUs, Linux {kernel}, {dpdk}, {pages}. CPU {} is the generator's and CPU {} the \
         forwarder's: {placement}. Figures are medians of the rounds, which ran the rows in turn, with the least and the \
         greatest.\n",
        machine.generator_cpu, machine.forwarder_cpu
    )
}

fn throughput(row: &Row) -> String {
    if !row.scenario.search {
        return String::new();
    }
    of_generator(row, range(row.throughput(), 1e6, 3))
}

/// Marks a result that the generator limits: the forwarder may be faster.
fn of_generator(row: &Row, found: String) -> String {
    if row.is_limit_of_generator() { format!("{found}, all that the generator offers") } else { found }
}

fn latency(row: &Row, load: &str) -> String {
    let figures = [
        row.latency(load, |one| one.p50_us),
        row.latency(load, |one| one.p99_us),
        row.latency(load, |one| one.p999_us),
        row.latency(load, |one| one.worst_us),
    ];
    match figures.into_iter().collect::<Option<Vec<Spread>>>() {
        Some(all) => all.iter().map(|one| format!("{:.0}", one.median)).collect::<Vec<_>>().join(" / "),
        None => String::new(),
    }
}

/// A median with its range, in a unit.
fn range(spread: Option<Spread>, unit: f64, digits: usize) -> String {
    let Some(Spread { least, median, most }) = spread else { return "none".to_owned() };
    let (least, median, most) = (least / unit, median / unit, most / unit);
    if least == most {
        format!("{median:.digits$}")
    } else {
        format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
    }
}

/// Compares the rows that both files have. A difference whose ranges overlap is noise.
pub(crate) fn compare(a: &Results, b: &Results) -> String {
    let mut text = format!("A: {}B: {}", head(&a.machine), head(&b.machine));
    if a.machine.cpu != b.machine.cpu {
        text += "The machines differ: only ratios between rows of one file can be compared.\n";
    }
    text += "\n| row | A, ns a frame | B | B to A | |\n|---|---|---|---|---|\n";
    let mut common = 0;
    for row in &a.rows {
        let Some(other) = b.rows.iter().find(|other| other.scenario.name() == row.scenario.name()) else {
            continue;
        };
        let (Some(before), Some(after)) = (row.nanoseconds(), other.nanoseconds()) else { continue };
        common += 1;
        let verdict = match before.is_apart_from(&after) {
            true if after.median < before.median => "faster",
            true => "slower",
            false => "noise: the ranges overlap",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {verdict} |",
            row.scenario.name(),
            range(Some(before), 1.0, 0),
            range(Some(after), 1.0, 0),
            after.median / before.median
        );
    }
    if common == 0 {
        text += "| the files have no row in common | | | | |\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn a_row_shows_its_median_and_range() {
        let text = table(&results("tidegate", &[1e6, 2e6, 4e6]));
        assert!(text.contains("| tidegate dsr-l2, memif, 1,000,000 flows, 60 bytes, UDP, 1000x10 | 2.000 (1.000-4.000) | 500 (250-1000) | 1.800 (0.900-3.600) | 5 / 20 / 50 / 900 |"), "{text}");
        let mut failed = results("testpmd", &[]);
        failed.rows[0].failures.push("no\nluck".to_owned());
        assert!(
            table(&failed).contains("| none | none | none |")
                && table(&failed).contains("a round failed: no luck")
        );
    }

    #[test]
    fn a_difference_within_the_spread_is_noise() {
        let (a, b) = (results("tidegate", &[1e6, 2e6]), results("tidegate", &[1.5e6, 1.9e6]));
        assert!(compare(&a, &b).contains("noise"));
        assert!(compare(&a, &results("tidegate", &[3e6, 4e6])).contains("faster"));
        assert!(compare(&a, &results("tidegate", &[0.5e6])).contains("slower"));
        assert!(compare(&a, &results("testpmd", &[1e6])).contains("no row in common"));
    }
}
