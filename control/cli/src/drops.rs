//! `drops`: what was dropped and punted, by reason, and what each reason means.
//!
//! Without options it shows the counts since the gateway's start. `--delta` measures for a time, and `-w` repeats that.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tidegate_admin_api::{Client, DropsAnswer, PartCount, ReasonView};

use super::args::Common;
use super::drain::duration;
use super::failure::Failure;
use super::follow::print_object;
use super::output::{Format, Style, Table};

/// How long `-w` measures if `--delta` doesn't say.
const INTERVAL: Duration = Duration::from_secs(1);

/// Options of `drops`.
#[derive(Debug, Args)]
pub struct Drops {
    /// Count only the frames of this time from now on, and show their rates (5s, 1m)
    #[arg(long, value_name = "DURATION", value_parser = time)]
    delta: Option<Duration>,
    /// Show rates until Ctrl-C, for each second or --delta
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    common: Common,
}

fn time(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| match time.is_zero() {
        true => Err("accepted: a time above 0, such as 5s".to_owned()),
        false => Ok(time),
    })
}

/// The frames of a time.
#[derive(Debug, PartialEq, Serialize)]
struct Delta {
    seconds: f64,
    drops: Vec<Rate>,
    punts: Vec<Rate>,
}

/// The frames with one reason in that time.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rate {
    #[serde(flatten)]
    reason: ReasonView,
    per_second: f64,
}

impl Drops {
    pub(super) async fn run(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { delta, watch, common } = self;
        let (client, style) = (common.socket.gateway("drops")?, common.output.style());
        let mut before = (Instant::now(), client.drops().await?);
        if delta.is_none() && !watch {
            return Ok(style.print(out, &before.1, || table(&before.1))?);
        }
        let interrupt = tokio::signal::ctrl_c();
        tokio::pin!(interrupt);
        loop {
            tokio::select! {
                () = tokio::time::sleep(delta.unwrap_or(INTERVAL)) => {}
                _ = &mut interrupt => return Ok(()),
            }
            before = self.measure(&client, style, before, out).await?;
            if !watch {
                return Ok(());
            }
        }
    }

    /// Prints what has been counted since the last query.
    async fn measure(
        &self,
        client: &Client,
        style: Style,
        (at, before): (Instant, DropsAnswer),
        out: &mut impl Write,
    ) -> Result<(Instant, DropsAnswer), Failure> {
        let (now, answer) = (Instant::now(), client.drops().await?);
        let seconds = now.duration_since(at).as_secs_f64();
        let delta = Delta {
            seconds,
            drops: rates(&before.drops, &answer.drops, seconds),
            punts: rates(&before.punts, &answer.punts, seconds),
        };
        match style.is_data() {
            true if self.watch => print_object(style, out, &delta)?,
            true => style.print_data(out, &delta)?,
            false => {
                let table = delta_table(&delta);
                out.write_all(table.render(style.format == Format::Wide, !style.no_headers).as_bytes())?;
            }
        }
        out.flush()?;
        Ok((now, answer))
    }
}

/// The reasons that occurred between two answers, the most frequent first.
fn rates(before: &[ReasonView], now: &[ReasonView], seconds: f64) -> Vec<Rate> {
    let old: BTreeMap<&str, &ReasonView> = before.iter().map(|one| (one.reason.as_str(), one)).collect();
    let since = |one: &ReasonView| {
        let old = old.get(one.reason.as_str());
        let same = |part: &PartCount, other: &PartCount| {
            (&part.service, &part.interface) == (&other.service, &other.interface)
        };
        let by = one.by.iter().map(|part| {
            let old = old.and_then(|old| old.by.iter().find(|old| same(part, old)));
            PartCount { count: part.count.saturating_sub(old.map_or(0, |old| old.count)), ..part.clone() }
        });
        // A restarted daemon counts from 0.
        let count = one.count.saturating_sub(old.map_or(0, |old| old.count));
        ReasonView { count, by: by.filter(|part| part.count > 0).collect(), ..one.clone() }
    };
    let counted = now.iter().map(since).filter(|one| one.count > 0);
    let mut rates: Vec<Rate> =
        counted.map(|reason| Rate { per_second: reason.count as f64 / seconds.max(0.001), reason }).collect();
    rates.sort_by_key(|rate| std::cmp::Reverse(rate.reason.count));
    rates
}

/// The reasons that occurred. The data formats list all reasons.
#[must_use]
pub fn table(answer: &DropsAnswer) -> Table {
    let mut table = Table::new(&["KIND", "REASON", "COUNT", "+WHERE", "MEANING"]);
    for (kind, counts) in [("drop", &answer.drops), ("punt", &answer.punts)] {
        for one in counts.iter().filter(|one| one.count > 0) {
            let count = one.count.to_string();
            table.row([kind.to_owned(), one.reason.clone(), count, place(one), first_sentence(&one.meaning)]);
        }
    }
    table
}

fn delta_table(delta: &Delta) -> Table {
    let mut table = Table::new(&["KIND", "REASON", "COUNT", "PER-SECOND", "+WHERE", "MEANING"]);
    for (kind, rates) in [("drop", &delta.drops), ("punt", &delta.punts)] {
        for Rate { reason, per_second } in rates {
            table.row([
                kind.to_owned(),
                reason.reason.clone(),
                reason.count.to_string(),
                format!("{per_second:.1}"),
                place(reason),
                first_sentence(&reason.meaning),
            ]);
        }
    }
    table
}

/// The Services and interfaces that are known: `shop/web (3), uplink (1)`.
fn place(reason: &ReasonView) -> String {
    let part = |part: &PartCount| {
        let name = part.service.as_ref().or(part.interface.as_ref());
        format!("{} ({})", name.map_or("?", String::as_str), part.count)
    };
    reason.by.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// The first sentence without its full stop. The data formats have all of them.
fn first_sentence(text: &str) -> String {
    text.split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(reason: &str, count: u64, by: &[(&str, u64)]) -> ReasonView {
        let part = |&(service, count): &(&str, u64)| PartCount {
            service: Some(service.into()),
            interface: None,
            count,
        };
        let meaning = "No route to the next hop. More.".into();
        ReasonView { reason: reason.into(), count, meaning, by: by.iter().map(part).collect() }
    }

    #[test]
    fn rates_count_what_was_added_with_the_most_frequent_reason_first() {
        let before = [reason("a", 5, &[("shop/web", 5)]), reason("b", 7, &[]), reason("c", 9, &[])];
        let now = [
            reason("a", 7, &[("shop/web", 6), ("shop/api", 1)]),
            reason("b", 17, &[]),
            // The daemon was restarted.
            reason("c", 1, &[]),
        ];
        let rates = rates(&before, &now, 2.0);
        let shown: Vec<(&str, u64, f64)> =
            rates.iter().map(|one| (one.reason.reason.as_str(), one.reason.count, one.per_second)).collect();
        assert_eq!(shown, [("b", 10, 5.0), ("a", 2, 1.0)]);
        assert_eq!(place(&rates[1].reason), "shop/web (1), shop/api (1)");
        assert_eq!(first_sentence(&rates[0].reason.meaning), "No route to the next hop");
    }

    #[test]
    fn a_time_of_zero_is_refused() {
        assert_eq!(time("5s"), Ok(Duration::from_secs(5)));
        assert!(time("0s").is_err() && time("x").is_err());
    }
}
