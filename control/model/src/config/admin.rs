//! `admin`: the addresses on which the daemon serves commands, metrics and probes.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ipnet::IpNet;

use super::files::Files;
use super::listen::{address, clash};
use super::page::{self, PageConfig};
use crate::yaml::{Field, Fields};

/// The validated `admin` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// `socket`: path of the Unix socket for commands. Default `/run/tidegate/tidegate.sock`.
    pub socket: PathBuf,
    /// `listen`: address of `/metrics`; `""` disables it. Default `127.0.0.1:9469`.
    pub listen: Option<SocketAddr>,
    /// `healthz`: address of `/healthz`, `/livez`, `/readyz` and `/watchdog`; `None` for `""`.
    pub healthz: Option<SocketAddr>,
    /// `healthzNetworks`: the networks whose hosts get answers from `healthz`; all if empty.
    pub healthz_networks: Vec<IpNet>,
    /// `metricsPerBackend`: whether there are series for each backend of each service port.
    pub metrics_per_backend: bool,
    /// `page`: the status page for browsers; absent by default.
    pub page: Option<PageConfig>,
    /// `events`: the events that `tidegate events` shows.
    pub events: EventsConfig,
}

/// The validated `admin.events` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsConfig {
    /// `keep`: the number of events to keep. Default 10,000.
    pub keep: usize,
    /// `directory`: the directory of the file with the last events. Default: the state directory of the source.
    pub directory: EventsDirectory,
}

/// Where events are kept on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventsDirectory {
    /// In the state directory of the source, if it has one.
    State,
    /// In memory only.
    None,
    /// In this directory.
    At(PathBuf),
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { keep: 10_000, directory: EventsDirectory::State }
    }
}

const KEEP: RangeInclusive<usize> = 100..=100_000;

/// The maximum length of a Unix socket's path: `sun_path` in unix(7) without its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> AdminConfig {
    let mut config = AdminConfig {
        socket: PathBuf::from("/run/tidegate/tidegate.sock"),
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 9469))),
        healthz: Some(SocketAddr::from(([0, 0, 0, 0], 10356))),
        healthz_networks: Vec::new(),
        metrics_per_backend: true,
        page: None,
        events: EventsConfig::default(),
    };
    parent.section("admin", |fields| {
        let fits = |t: &str| (1..=SOCKET_PATH_BYTES_MAX).contains(&t.len()) && !t.contains('\0');
        let accepted = format!("a path of 1 to {SOCKET_PATH_BYTES_MAX} bytes");
        fields.set("socket", &mut config.socket, |f| f.string_where(fits, &accepted).map(PathBuf::from));
        let listen_field = fields.get("listen");
        fields.set("listen", &mut config.listen, address);
        fields.set("metricsPerBackend", &mut config.metrics_per_backend, Field::boolean);
        config.events = fields.section("events", |events| decode_events(events, files)).unwrap_or_default();
        config.healthz_networks = fields.each("healthzNetworks", Field::network);
        let healthz_field = fields.get("healthz");
        fields.set("healthz", &mut config.healthz, address);
        if let (Some(listen), Some(healthz)) = (config.listen, config.healthz)
            && clash(listen, healthz)
        {
            let accepted = "another address or port";
            match (&healthz_field, &listen_field) {
                (Some(field), _) => field.error(format_args!("{healthz} is taken by admin.listen"), accepted),
                (None, Some(field)) => {
                    field.error(
                        format_args!("{listen} is taken by admin.healthz, whose default is {healthz}"),
                        accepted,
                    );
                }
                (None, None) => {}
            }
        }
        let taken = [("admin.listen", config.listen), ("admin.healthz", config.healthz)];
        config.page = page::decode(fields, files, taken);
    });
    config
}

fn decode_events(fields: &Fields<'_>, files: &Files<'_>) -> EventsConfig {
    let defaults = EventsConfig::default();
    let accepted = "the path of a directory, or \"\" for none";
    let directory = fields.read("directory", |f| f.string_where(|t| !t.contains('\0'), accepted));
    EventsConfig {
        keep: fields.read("keep", |field| field.integer(KEEP)).unwrap_or(defaults.keep),
        directory: match directory.map(str::trim) {
            None => defaults.directory,
            Some("") => EventsDirectory::None,
            Some(path) => EventsDirectory::At(files.base.join(path)),
        },
    }
}
