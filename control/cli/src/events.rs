//! `events`: what happened to a gateway, oldest first.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use tidegate_admin_api::{Client, EventRow, EventsSelection};
use tidegate_model::time::whole_seconds;

use super::args::Common;
use super::failure::Failure;
use super::output::{Format, Style, Table};
use super::query::report_if_empty;

/// How often `--watch` queries the gateway.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Options of `events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Show events of this Service: NAMESPACE/NAME
    #[arg(long, value_name = "SERVICE", value_parser = service)]
    service: Option<String>,
    /// Show events of the last 10m, 1h30m, ...
    #[arg(long, value_name = "DURATION", value_parser = since)]
    since: Option<SignedDuration>,
    /// Print new events too, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    common: Common,
}

impl Events {
    /// Prints the events, and with `--watch` new ones as they arrive.
    pub(super) async fn run(&self, out: &mut impl Write) -> Result<(), Failure> {
        let client = self.common.socket.gateway("events")?;
        report_if_empty(run(&client, self, self.common.output.style(), out).await?, None);
        Ok(())
    }
}

fn service(text: &str) -> Result<String, String> {
    let is_name = tidegate_model::yaml::text::is_rfc1123_subdomain;
    let is_valid = text.split_once('/').is_some_and(|(namespace, name)| is_name(namespace) && is_name(name));
    is_valid.then(|| text.to_owned()).ok_or_else(|| "accepted: NAMESPACE/NAME".to_owned())
}

fn since(text: &str) -> Result<SignedDuration, String> {
    let duration =
        tidegate_model::yaml::text::duration(text).and_then(|time| SignedDuration::try_from(time).ok());
    duration.ok_or_else(|| format!("accepted: {}", tidegate_model::yaml::text::DURATION))
}

/// Returns the number of events.
async fn run(
    client: &Client,
    selection: &Events,
    style: Style,
    out: &mut impl Write,
) -> Result<usize, Failure> {
    let since = selection.since.and_then(|time| Timestamp::now().checked_sub(time).ok());
    let mut selected = EventsSelection { after: 0, service: selection.service.clone(), since };
    let events = client.events(&selected).await?.events;
    if !selection.watch {
        style.print_list(out, &events, || table(&events))?;
        return Ok(events.len());
    }
    let mut shown = table(&events);
    if style.is_data() {
        events.iter().try_for_each(|event| print_one(event, style, out))?;
    } else {
        out.write_all(shown.render(style.format == Format::Wide, !style.no_headers).as_bytes())?;
    }
    let mut count = events.len();
    selected.after = events.last().map_or(0, |event| event.number);
    loop {
        out.flush()?;
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(count),
        }
        for event in client.events(&selected).await?.events {
            selected.after = event.number;
            count += 1;
            if style.is_data() {
                print_one(&event, style, out)?;
                continue;
            }
            // The first table determines the widths of the columns.
            add(&mut shown, &event);
            Style { no_headers: true, ..style }.print_last(out, &shown, 1)?;
            shown.remove_last();
        }
    }
}

/// Prints an event as one line of JSON, or as one YAML document.
fn print_one(event: &EventRow, style: Style, out: &mut impl Write) -> std::io::Result<()> {
    match style.format {
        Format::Yaml => {
            writeln!(out, "---")?;
            style.print_data(out, event)
        }
        _ => writeln!(out, "{}", serde_json::to_string(event)?),
    }
}

/// The table of events.
#[must_use]
pub fn table(events: &[EventRow]) -> Table {
    let mut table = Table::new(&["TIME", "LEVEL", "REASON", "OBJECT", "SERVICE", "MESSAGE", "+DETAILS"]);
    events.iter().for_each(|event| add(&mut table, event));
    table
}

fn add(table: &mut Table, event: &EventRow) {
    let EventRow { time, level, reason, kind, name, service, message, fields, .. } = event;
    let time = time.parse().map_or_else(|_| time.clone(), |time| whole_seconds(time).to_string());
    let details = fields.iter().map(|(name, value)| format!("{name}={value}"));
    table.row([
        time,
        level.clone(),
        reason.clone(),
        if name.is_empty() { kind.clone() } else { format!("{kind}/{name}") },
        service.clone().unwrap_or_default(),
        message.clone(),
        details.collect::<Vec<_>>().join(" "),
    ]);
}
