//! The announced prefixes as `blackhole` routes in a table of the kernel, from which a routing daemon redistributes them.
//!
//! The routes have a protocol number of ours, by which they are recognised: a gateway that was killed leaves its routes,
//! and the next one removes those that it does not want. Routes that another program has removed are restored.
//!
//! Invariant: only blackhole routes of our protocol in our table are removed.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tidegate_model::config::KernelRoutes;

use crate::netlink::Netlink;
use crate::routes::Routes;

/// The interval at which the kernel's table is compared.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);

/// The routes of one table.
#[derive(Debug)]
pub struct Table {
    of: KernelRoutes,
    have: BTreeSet<IpNet>,
    /// When to read the table again; `None` if it was never read.
    compare_at: Option<Instant>,
    last_error: Option<String>,
}

impl Table {
    /// A table whose contents are not known yet.
    #[must_use]
    pub fn new(of: KernelRoutes) -> Self {
        Self { of, have: BTreeSet::new(), compare_at: None, last_error: None }
    }

    /// Where the routes are.
    #[must_use]
    pub fn of(&self) -> KernelRoutes {
        self.of
    }

    /// The number of routes that the kernel has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.have.len()
    }

    /// Whether the kernel has no routes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.have.is_empty()
    }

    /// Why some routes are missing, if so.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Adds and removes routes. Returns whether the kernel has no other routes of ours.
    pub fn apply(&mut self, wanted: &Routes, now: Instant) -> bool {
        let is_due = self.compare_at.is_none_or(|at| at <= now);
        let is_same = self.have.len() == wanted.len() && self.have.iter().all(|net| wanted.contains_key(net));
        if is_same && !is_due {
            return true;
        }
        let applied = self.change(wanted, is_due);
        // A route that stays missing must not delay the comparison for the others.
        if is_due {
            self.compare_at = Some(now + COMPARE_INTERVAL);
        }
        match applied {
            Ok(()) => self.last_error = None,
            Err(error) => {
                let why = format!("kernel routes in table {}: {error}", self.of.table);
                if self.last_error.as_ref() != Some(&why) {
                    tracing::error!(reason = why, "not every VIP has its route in the kernel");
                }
                self.last_error = Some(why);
            }
        }
        self.have.iter().all(|net| wanted.contains_key(net))
    }

    fn change(&mut self, wanted: &Routes, reads: bool) -> io::Result<()> {
        let mut netlink = Netlink::open()?;
        if reads {
            let found: BTreeSet<IpNet> = netlink.list(self.of)?.into_iter().collect();
            let lost = self.have.difference(&found).count();
            if lost > 0 {
                tracing::warn!(
                    routes = lost,
                    table = self.of.table,
                    "another program deleted routes of VIPs: restored"
                );
            }
            self.have = found;
        }
        // Withdrawals first: they are urgent. The first error is reported, and the others do not stop the rest.
        let mut result = Ok(());
        let gone: Vec<IpNet> = self.have.iter().filter(|net| !wanted.contains_key(*net)).copied().collect();
        for net in gone {
            match netlink.remove(self.of, net) {
                Err(error) if !is_absent(&error) => result = result.and(Err(about(net, &error))),
                _ => {
                    self.have.remove(&net);
                }
            }
        }
        for &net in wanted.keys() {
            if self.have.contains(&net) {
                continue;
            }
            match netlink.add(self.of, net) {
                Ok(()) => {
                    self.have.insert(net);
                }
                Err(error) => result = result.and(Err(about(net, &error))),
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

fn about(net: IpNet, error: &io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::AlreadyExists => "another program has a route to it in this table".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{net}: {what}"))
}

/// ESRCH: no such route.
fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}
