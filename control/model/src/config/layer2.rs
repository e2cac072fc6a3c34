//! `announce.l2`: which of several gateways answers ARP and neighbour discovery for a VIP.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::yaml::{Field, Fields, text};

/// The validated `announce.l2` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer2Config {
    /// `mode`. Default `always`.
    pub mode: Layer2Mode,
    /// `lease`: for the mode `lease`.
    pub lease: LeaseConfig,
    /// `vrrp`: for the mode `vrrp`.
    pub vrrp: VrrpConfig,
}

tidegate_wire::named! {
    /// How the gateway that answers for a VIP is chosen.
    pub enum Layer2Mode {
        /// This gateway answers for every VIP, because it is the only gateway on the link.
        Always => "always",
        /// The owner of a Lease at the API server answers for a group of VIPs.
        Lease => "lease",
        /// The master of a VRRP group answers for the VIPs of the group. keepalived determines the master.
        Vrrp => "vrrp",
        /// No gateway answers, because routes lead to the VIPs.
        Off => "off",
    }
}

/// `announce.l2.lease`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    /// `namespace` of the Leases. Default `tidegate-system`.
    pub namespace: String,
    /// `takeover`: within this time, another gateway takes over the VIPs of a failed gateway. Default 10 s.
    pub takeover: Duration,
    /// `handBackDelay`: a returning gateway gets its VIPs back after it has been live for this time. Default 30 s.
    pub hand_back_delay: Duration,
}

/// `announce.l2.vrrp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VrrpConfig {
    /// `fifo`: `notify_fifo` of keepalived. Default `/run/tidegate/vrrp.fifo`.
    pub fifo: PathBuf,
    /// `groups`: the names of the VRRP instances or sync groups over which VIPs are spread. Default `tidegate` alone.
    pub groups: Vec<String>,
    /// `heartbeatTimeout`: if `tidegate vrrp-check` has not run for this time, this gateway owns no VIP. Default 3 s.
    pub heartbeat_timeout: Duration,
}

impl Default for Layer2Config {
    fn default() -> Self {
        Self {
            mode: Layer2Mode::Always,
            lease: LeaseConfig {
                namespace: "tidegate-system".to_owned(),
                takeover: Duration::from_secs(10),
                hand_back_delay: Duration::from_secs(30),
            },
            vrrp: VrrpConfig {
                fifo: PathBuf::from("/run/tidegate/vrrp.fifo"),
                groups: vec!["tidegate".to_owned()],
                heartbeat_timeout: Duration::from_secs(3),
            },
        }
    }
}

/// A Lease has a resolution of whole seconds, and the gateway needs two seconds to detect an expired Lease and to
/// answer.
const TAKEOVER: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);
const HAND_BACK_DELAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const HEARTBEAT_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
const GROUPS_MAX: usize = 16;
const GROUP: &str =
    "the name of a vrrp_instance or vrrp_sync_group: 1 to 63 printable characters without spaces or quotes";
const PATH: &str = "an absolute path of 1 to 4095 bytes";

pub(super) fn decode(announce: &Fields<'_>) -> Layer2Config {
    let mut config = Layer2Config::default();
    announce.section("l2", |l2| {
        l2.set("mode", &mut config.mode, Field::named);
        l2.section("lease", |lease| {
            let into = &mut config.lease;
            let name = |f: &Field<'_>| f.owned_where(text::is_rfc1123_subdomain, "the name of a namespace");
            lease.set("namespace", &mut into.namespace, name);
            lease.set("takeover", &mut into.takeover, |f| f.duration(TAKEOVER));
            lease.set("handBackDelay", &mut into.hand_back_delay, |f| f.duration(HAND_BACK_DELAY));
        });
        l2.section("vrrp", |vrrp| {
            let into = &mut config.vrrp;
            let is_path = |text: &str| text.starts_with('/') && text.len() < 4096;
            vrrp.set("fifo", &mut into.fifo, |f| f.string_where(is_path, PATH).map(PathBuf::from));
            vrrp.set("groups", &mut into.groups, |f| Some(groups(f)));
            vrrp.set("heartbeatTimeout", &mut into.heartbeat_timeout, |f| f.duration(HEARTBEAT_TIMEOUT));
        });
    });
    config
}

fn groups(field: &Field<'_>) -> Vec<String> {
    let is_name = |text: &str| {
        (1..=63).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\'')
    };
    let listed = field.list();
    let mut names: Vec<String> = Vec::new();
    for item in &listed {
        let Some(name) = item.string_where(is_name, GROUP) else { continue };
        if names.iter().any(|other| other == name) {
            item.error(format_args!("{name} is listed twice"), "each group once");
        }
        names.push(name.to_owned());
    }
    if listed.is_empty() || listed.len() > GROUPS_MAX {
        field.error(format_args!("{} groups are listed", listed.len()), "1 to 16 groups");
    }
    names
}
