//! One HTML page with charts of results: throughput and latency of rows with the same traffic side by side, the figures
//! as tables, and several files beside each other. It contains its style and its charts (SVG), and loads nothing.
//!
//! Colors follow the reader's scheme (light or dark). Wide tables scroll by themselves, so the page fits a phone.

use std::fmt::Write as _;

use crate::results::{Results, Row, Spread};
use crate::scenario::{Forwarder, Scenario};

/// A file's name and content.
type Named = (String, Results);

/// The page.
pub(crate) fn page(files: &[Named]) -> String {
    let mut body = String::new();
    for (name, results) in files {
        let m = &results.machine;
        let _ = write!(
            body,
            "<p class=\"machine\"><b>{}</b>: {}, commit {}, {}, {} CPUs, Linux {}, {}, {}. CPU {} generates, CPU {} forwards: \
             {}.</p>",
            text(name),
            text(&m.date),
            text(&m.commit),
            text(&m.cpu),
            m.cpus,
            text(&m.kernel),
            text(&m.dpdk),
            if m.hugepages { "huge pages" } else { "small pages" },
            m.generator_cpu,
            m.forwarder_cpu,
            text(&m.placement),
        );
    }
    for traffic in traffics(files) {
        let rows: Vec<(String, &Row)> = files
            .iter()
            .flat_map(|(name, results)| results.rows.iter().map(move |row| (name, row)))
            .filter(|(_, row)| row.scenario.traffic() == traffic)
            .map(|(name, row)| (label(files.len(), name, row), row))
            .collect();
        let _ = write!(body, "<section><h2>{}</h2>", text(&traffic));
        let bars = |figure: &dyn Fn(&Row) -> Option<Spread>| {
            rows.iter()
                .filter_map(|(label, row)| Some((label.as_str(), row.scenario.forwarder, figure(row)?)))
                .collect::<Vec<_>>()
        };
        body +=
            &chart("Forwarded under overload, million frames a second", &bars(&|row| row.overload()), 1e6, 2);
        body += &chart("Time of a frame under overload, ns", &bars(&|row| row.nanoseconds()), 1.0, 0);
        body += &chart(
            "Highest rate within the loss bound, million frames a second",
            &bars(&|row| row.throughput()),
            1e6,
            2,
        );
        body += &chart("TCP connections, thousand a second", &bars(&|row| row.connections()), 1e3, 1);
        body += &percentiles(&rows);
        body += &figures(&rows);
        body += "</section>";
    }
    if let [(before, a), .., (after, b)] = files {
        let _ = write!(
            body,
            "<section><h2>{} to {}</h2><pre>{}</pre></section>",
            text(before),
            text(after),
            text(&crate::table::compare(a, b))
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>tidegate-bench</title>\
         <style>{STYLE}</style></head><body><h1>tidegate-bench</h1>{body}\
         <p class=\"note\">Bars are medians of the rounds; the thin line reaches from the least to the greatest round. \
         Latency is the time from when a frame was due to when it was received, and includes the wires and the generator.</p>\
         </body></html>\n"
    )
}

/// The traffic of all rows, in the order of the files.
fn traffics(files: &[Named]) -> Vec<String> {
    let mut all = Vec::new();
    for row in files.iter().flat_map(|(_, results)| &results.rows) {
        let traffic = row.scenario.traffic();
        if !all.contains(&traffic) {
            all.push(traffic);
        }
    }
    all
}

/// The label that distinguishes a row from others with the same traffic.
fn label(files: usize, name: &str, row: &Row) -> String {
    let whole = row.scenario.name();
    let who =
        whole.strip_suffix(&row.scenario.traffic()).unwrap_or(&whole).trim_end_matches([',', ' ']).to_owned();
    if files > 1 { format!("{who} ({name})") } else { who }
}

/// The height of a bar with its label, and the width of the chart, in units of the drawing.
const BAR: usize = 34;
const WIDTH: f64 = 340.0;

/// A chart of horizontal bars with their labels above them, so that it is also readable on a phone.
fn chart(title: &str, bars: &[(&str, Forwarder, Spread)], unit: f64, digits: usize) -> String {
    let most = bars.iter().map(|(_, _, spread)| spread.most).fold(0.0, f64::max);
    if bars.is_empty() || most <= 0.0 {
        return String::new();
    }
    let scale = (WIDTH - 60.0) / most;
    let height = bars.len() * BAR;
    let mut svg = format!(
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        text(title),
        text(title)
    );
    for (n, (label, forwarder, spread)) in bars.iter().enumerate() {
        let (y, class) = (n * BAR, class_of(*forwarder));
        let (width, from, to) = (spread.median * scale, spread.least * scale, spread.most * scale);
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">{}</text><rect class=\"{class}\" x=\"0\" y=\"{}\" width=\"{width:.1}\" height=\"12\" rx=\"2\"/>\
             <line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{}\" y2=\"{}\"/><text class=\"value\" x=\"{:.1}\" y=\"{}\">{:.digits$}</text>",
            y + 12,
            text(label),
            y + 16,
            y + 22,
            y + 22,
            to + 4.0,
            y + 26,
            spread.median / unit,
        );
    }
    svg + "</svg></figure>"
}

fn class_of(forwarder: Forwarder) -> &'static str {
    match forwarder {
        Forwarder::Tidegate => "own",
        Forwarder::Testpmd => "least",
        Forwarder::Kernel => "other",
    }
}

/// Latency by percentile, each row a line, time on a logarithmic axis.
fn percentiles(rows: &[(String, &Row)]) -> String {
    const NAMES: [&str; 4] = ["50 %", "99 %", "99.9 %", "worst"];
    let lines: Vec<(&str, Forwarder, [f64; 4])> = rows
        .iter()
        .filter_map(|(label, row)| {
            let median = |figure: fn(&crate::generator::Latency) -> f64| {
                row.latency("half", figure).map(|spread| spread.median.max(0.1))
            };
            let values = [
                median(|one| one.p50_us)?,
                median(|one| one.p99_us)?,
                median(|one| one.p999_us)?,
                median(|one| one.worst_us)?,
            ];
            Some((label.as_str(), row.scenario.forwarder, values))
        })
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let all = || lines.iter().flat_map(|(_, _, values)| values);
    let (low, high) = (
        all().copied().fold(f64::MAX, f64::min).log10().floor(),
        all().copied().fold(0.1, f64::max).log10().ceil(),
    );
    let (left, top, width, height) = (44.0, 8.0, WIDTH - 60.0, 150.0);
    let x = |n: usize| left + width * n as f64 / 3.0;
    let y = |us: f64| top + height * (high - us.log10()) / (high - low).max(1.0);
    let title = "Latency at half of the highest rate, µs";
    let mut svg = format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{title}\">",
        top + height + 24.0 + 14.0 * lines.len() as f64
    );
    for power in low as i32..=high as i32 {
        let us = 10_f64.powi(power);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/><text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">{us}</text>",
            left + width,
            y(us),
            y(us),
            left - 4.0,
            y(us) + 4.0
        );
    }
    for (n, name) in NAMES.iter().enumerate() {
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            x(n),
            top + height + 17.0
        );
    }
    for (n, (label, forwarder, values)) in lines.iter().enumerate() {
        let points: Vec<String> =
            values.iter().enumerate().map(|(at, us)| format!("{:.1},{:.1}", x(at), y(*us))).collect();
        let (class, dash) = (class_of(*forwarder), ["", "6 3", "2 3", "9 3 2 3", "1 4"][n % 5]);
        let at = top + height + 34.0 + 14.0 * n as f64;
        let _ = write!(
            svg,
            "<polyline class=\"{class}\" stroke-dasharray=\"{dash}\" points=\"{}\"/>\
             <polyline class=\"{class}\" stroke-dasharray=\"{dash}\" points=\"0,{:.1} 34,{:.1}\"/><text x=\"{left}\" y=\"{at:.1}\">{}</text>",
            points.join(" "),
            at - 4.0,
            at - 4.0,
            text(label)
        );
    }
    svg + "</svg></figure>"
}

/// All figures of the rows.
fn figures(rows: &[(String, &Row)]) -> String {
    let mut table = "<div class=\"scroll\"><table><tr><th></th><th>overload, Mpps</th><th>ns a frame</th><th>within the bound, Mpps</th>\
                     <th>p50 µs</th><th>p99</th><th>p99.9</th><th>worst</th><th>p50 µs at a low rate</th><th>p99</th>\
                     <th>connections a second</th></tr>"
        .to_owned();
    for (label, row) in rows {
        let _ = write!(table, "<tr><th>{}</th>", text(label));
        let Scenario { search, latency, connections, .. } = row.scenario;
        let cells = [
            (true, row.overload(), 1e6, 3),
            (true, row.nanoseconds(), 1.0, 0),
            (search, row.throughput(), 1e6, 3),
            (latency, row.latency("half", |one| one.p50_us), 1.0, 0),
            (latency, row.latency("half", |one| one.p99_us), 1.0, 0),
            (latency, row.latency("half", |one| one.p999_us), 1.0, 0),
            (latency, row.latency("half", |one| one.worst_us), 1.0, 0),
            (latency, row.latency("low", |one| one.p50_us), 1.0, 0),
            (latency, row.latency("low", |one| one.p99_us), 1.0, 0),
            (connections, row.connections(), 1.0, 0),
        ];
        for (is_wanted, spread, unit, digits) in cells {
            let _ = match spread {
                None if !is_wanted => write!(table, "<td></td>"),
                Some(Spread { least, median, most }) if least == most => {
                    write!(table, "<td>{:.digits$}</td>", median / unit)
                }
                Some(Spread { least, median, most }) => write!(
                    table,
                    "<td>{:.digits$}<small>{:.digits$}-{:.digits$}</small></td>",
                    median / unit,
                    least / unit,
                    most / unit
                ),
                None => write!(table, "<td>none</td>"),
            };
        }
        table += "</tr>";
        for failure in &row.failures {
            let _ = write!(
                table,
                "<tr><td colspan=\"11\" class=\"failed\">a round failed: {}</td></tr>",
                text(failure)
            );
        }
    }
    table + "</table></div>"
}

/// Escapes the characters that are special in HTML.
fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6675;--line:#d5dbe3;--back:#fff;--card:#f6f8fa;--own:#0b6bcb;--least:#7a8699;--other:#c4501b}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#9aa7b8;--line:#2e3846;--back:#10151c;--card:#171e27;--own:#58a6ff;--least:#8b98aa;--other:#ff9a5c}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:16px;font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back)}\
h1{font-size:1.4em;margin:.2em 0}h2{font-size:1.1em;margin:.2em 0 .6em}.machine,.note{color:var(--soft);font-size:.9em;overflow-wrap:anywhere}\
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px;margin:16px 0;display:grid;gap:16px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,250px),1fr))}section>h2,section>.scroll,section>pre{grid-column:1/-1}\
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:.9em;margin-bottom:4px}svg{width:100%;height:auto;display:block}\
svg text{fill:var(--ink);font-size:10px}svg .value{font-weight:600}svg .axis{fill:var(--soft);text-anchor:end}svg .tick{fill:var(--soft);text-anchor:middle}\
svg line{stroke:var(--ink);stroke-width:1}svg .grid{stroke:var(--line)}rect.own{fill:var(--own)}rect.least{fill:var(--least)}rect.other{fill:var(--other)}\
polyline{fill:none;stroke-width:2}polyline.own{stroke:var(--own)}polyline.least{stroke:var(--least)}polyline.other{stroke:var(--other)}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85em;min-width:720px;width:100%}th,td{padding:4px 8px;border-top:1px solid var(--line);text-align:right;vertical-align:top}\
th:first-child{text-align:left;font-weight:600}td small{display:block;color:var(--soft)}.failed{text-align:left;color:var(--other)}pre{overflow-x:auto;font-size:.8em;margin:0}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn the_page_has_every_row_and_loads_nothing() {
        let mut all = results("tidegate", &[1e6, 2e6]);
        all.rows.extend(results("testpmd", &[9e6]).rows);
        all.rows[1].failures.push("a <broken> wire".to_owned());
        let page = page(&[("first".to_owned(), all.clone())]);
        assert!(page.contains("tidegate dsr-l2, memif") && page.contains("testpmd, memif"));
        assert!(page.contains("a &lt;broken&gt; wire") && page.contains("prefers-color-scheme:dark"));
        assert_eq!(page.matches("<section>").count(), 1, "rows with the same traffic are side by side");
        assert_eq!(page.matches("<figure>").count(), 5);
        for loaded in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(loaded), "{loaded}");
        }
    }

    #[test]
    fn several_files_are_compared() {
        let files =
            [("a".to_owned(), results("tidegate", &[1e6])), ("b".to_owned(), results("tidegate", &[2e6]))];
        let page = page(&files);
        assert!(page.contains("tidegate dsr-l2, memif (a)") && page.contains("tidegate dsr-l2, memif (b)"));
        assert!(page.contains("a to b") && page.contains("faster"));
    }
}
