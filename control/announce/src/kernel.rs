//! The announced prefixes as `blackhole` routes in a kernel table, from which a routing daemon redistributes them.
//!
//! The routes are marked with our own protocol number. A gateway that was killed leaves its routes behind, and the next
//! one removes those that it does not want. Routes that another program removed are restored.
//!
//! Invariant: only blackhole routes with our protocol number in our table are removed.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tidegate_host::rtnetlink::{Connection, is_absent};
use tidegate_model::config::KernelRoutes;

use crate::netlink;
use crate::routes::Routes;

/// How often the kernel's table is compared with the routes that should be there.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);

/// The routes of one table.
#[derive(Debug)]
pub struct Table {
    config: KernelRoutes,
    installed: BTreeSet<IpNet>,
    /// When to read the table again; `None` if it has never been read.
    compare_at: Option<Instant>,
    last_error: Option<String>,
}

impl Table {
    /// A table with unknown contents.
    #[must_use]
    pub fn new(config: KernelRoutes) -> Self {
        Self { config, installed: BTreeSet::new(), compare_at: None, last_error: None }
    }

    /// The table and protocol number of the routes.
    #[must_use]
    pub fn config(&self) -> KernelRoutes {
        self.config
    }

    /// The number of routes in the kernel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.installed.len()
    }

    /// Whether there are no routes in the kernel.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.installed.is_empty()
    }

    /// Why some routes are missing, if any are.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Adds and removes routes. Returns whether our routes in the kernel are exactly these.
    pub fn apply(&mut self, wanted: &Routes, now: Instant) -> bool {
        let is_due = self.compare_at.is_none_or(|at| at <= now);
        let is_same =
            self.installed.len() == wanted.len() && self.installed.iter().all(|net| wanted.contains_key(net));
        if is_same && !is_due {
            return true;
        }
        let applied = self.change(wanted, is_due);
        // A route that stays missing must not delay the comparison of the others.
        if is_due {
            self.compare_at = Some(now + COMPARE_INTERVAL);
        }
        match applied {
            Ok(()) => self.last_error = None,
            Err(error) => {
                let why = format!("kernel routes in table {}: {error}", self.config.table);
                if self.last_error.as_ref() != Some(&why) {
                    tracing::error!(
                        reason = why,
                        "cannot update the kernel routes of some VIPs; trying again"
                    );
                }
                self.last_error = Some(why);
            }
        }
        self.installed.iter().all(|net| wanted.contains_key(net))
    }

    fn change(&mut self, wanted: &Routes, reads: bool) -> io::Result<()> {
        let mut kernel = Connection::open()?;
        if reads {
            let found: BTreeSet<IpNet> = netlink::list(&mut kernel, self.config)?.into_iter().collect();
            let lost = self.installed.difference(&found).count();
            if lost > 0 {
                tracing::warn!(
                    routes = lost,
                    table = self.config.table,
                    "another program deleted kernel routes of VIPs; restoring them"
                );
            }
            self.installed = found;
        }
        // Withdrawals come first because they are urgent. An error does not stop the rest, and the first error is
        // reported.
        let mut result = Ok(());
        let stale: Vec<IpNet> =
            self.installed.iter().filter(|net| !wanted.contains_key(*net)).copied().collect();
        for net in stale {
            match netlink::remove(&mut kernel, self.config, net) {
                Err(error) if !is_absent(&error) => result = result.and(Err(route_error(net, &error))),
                _ => {
                    self.installed.remove(&net);
                }
            }
        }
        for &net in wanted.keys() {
            if self.installed.contains(&net) {
                continue;
            }
            match netlink::add(&mut kernel, self.config, net) {
                Ok(()) => {
                    self.installed.insert(net);
                }
                Err(error) => result = result.and(Err(route_error(net, &error))),
            }
        }
        result
    }

    /// Removes all routes.
    pub fn clear(&mut self, now: Instant) {
        self.compare_at = None;
        self.apply(&Routes::new(), now);
    }
}

fn route_error(net: IpNet, error: &io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::AlreadyExists => {
            "another program already has a route to this prefix in the table".to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{net}: {what}"))
}
