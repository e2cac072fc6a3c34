//! `events`: what happened to a gateway, oldest first.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use tidegate_admin_api::{Client, EventRow, EventsSelection};
use tidegate_model::time::whole_seconds;

use super::args::Common;
use super::drain::duration;
use super::failure::Failure;
use super::follow::print_object;
use super::output::{Format, Style, Table};
use super::query::report_if_empty;

/// How often `--watch` queries the gateway.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Options of `events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Show events of this Service: NAMESPACE/NAME or NAMESPACE/gateway/NAME
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
    let is_valid = text.split_once('/').is_some_and(|(namespace, name)| {
        is_name(namespace) && is_name(name.strip_prefix("gateway/").unwrap_or(name))
    });
    is_valid
        .then(|| text.to_owned())
        .ok_or_else(|| "accepted: NAMESPACE/NAME or NAMESPACE/gateway/NAME".to_owned())
}

fn since(text: &str) -> Result<SignedDuration, String> {
    // It counts milliseconds in 64 bits, so it fits.
    duration(text).map(|time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX))
}

/// Returns the number of events.
async fn run(
    client: &Client,
    selection: &Events,
    style: Style,
    out: &mut impl Write,
) -> Result<usize, Failure> {
    let since = selection.since.and_then(|time| Timestamp::now().checked_sub(time).ok());
    let mut selected =
        EventsSelection { service: selection.service.clone(), since, ..EventsSelection::default() };
    let events = client.events(&selected).await?.events;
    if !selection.watch {
        style.print_list(out, &events, || table(&events))?;
        return Ok(events.len());
    }
    let mut shown = table(&events);
    if style.is_data() {
        events.iter().try_for_each(|event| print_object(style, out, event))?;
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
            match style.is_data() {
                true => print_object(style, out, &event)?,
                // The first table determines the widths of the columns.
                false => style.print_below(out, &mut shown, cells(&event))?,
            }
        }
    }
}

/// The table of events.
#[must_use]
pub fn table(events: &[EventRow]) -> Table {
    let mut table = Table::new(&["TIME", "LEVEL", "REASON", "OBJECT", "SERVICE", "MESSAGE", "+DETAILS"]);
    events.iter().for_each(|event| table.row(cells(event)));
    table
}

fn cells(event: &EventRow) -> [String; 7] {
    let EventRow { time, level, reason, kind, name, service, message, fields, .. } = event;
    let time = time.parse().map_or_else(|_| time.clone(), |time| whole_seconds(time).to_string());
    let details = fields.iter().map(|(name, value)| format!("{name}={value}"));
    [
        time,
        level.clone(),
        reason.clone(),
        if name.is_empty() { kind.clone() } else { format!("{kind}/{name}") },
        service.clone().unwrap_or_default(),
        message.clone(),
        details.collect::<Vec<_>>().join(" "),
    ]
}
