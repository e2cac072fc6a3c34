//! Which listeners HAProxy should have: those that the objects request, without those that this machine can't listen
//! on and those that HAProxy refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_policy::edge::{Desired, Finding, Input, Listener, ListenerId, Reason, desired};

use crate::certificates::{Certificates, KeyPair};
use crate::config::Config;
use crate::haproxy::program::{Invalid, Program};
use crate::listen;
use crate::render::{Proxy, Rendered};
use crate::runtime::{Runtime, Staged};

/// A configuration of HAProxy with its certificates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// The text.
    pub rendered: Rendered,
    /// The certificates by their Secrets.
    pub pairs: BTreeMap<ObjectKey, Arc<KeyPair>>,
}

/// What the objects request, and what of it can't be served.
#[derive(Debug)]
pub struct Wanted {
    config: Config,
    objects: Arc<Objects>,
    certificates: Certificates,
    desired: Desired,
    /// Addresses and ports on which this machine can't listen.
    unavailable: BTreeMap<SocketAddr, String>,
    /// Listeners that HAProxy refused, as they were then.
    refused: BTreeMap<ListenerId, (Proxy, String)>,
}

impl Wanted {
    /// Nothing, until the first objects are known.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            objects: Arc::default(),
            certificates: Certificates::default(),
            desired: Desired::default(),
            unavailable: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Uses these objects from now on.
    pub fn set_objects(&mut self, objects: Arc<Objects>) {
        self.objects = objects;
        self.certificates.update(&self.objects);
        self.compute();
    }

    fn compute(&mut self) {
        let pairs = self.certificates.pairs();
        let networks = &self.config.addresses;
        self.desired = desired(&Input { objects: &self.objects, networks, pairs: &pairs });
    }

    /// Checks on which addresses this machine can listen. Those that HAProxy already listens on need no check.
    pub fn check_addresses(&mut self, listening: &BTreeSet<SocketAddr>) {
        let of_listeners = self.desired.listeners.iter().flat_map(|(id, listener)| addresses(id, listener));
        let all: BTreeSet<SocketAddr> = of_listeners.chain(self.config.metrics).collect();
        let failure = |address: &SocketAddr| Some((*address, listen::check(*address).err()?.to_string()));
        self.unavailable = all.difference(listening).filter_map(failure).collect();
    }

    /// Whether there are addresses on which this machine can't listen.
    #[must_use]
    pub fn has_unavailable(&self) -> bool {
        !self.unavailable.is_empty()
    }

    /// The listeners without what can't be served.
    #[must_use]
    pub fn listeners(&self) -> BTreeMap<ListenerId, Listener> {
        let mut listeners = self.desired.listeners.clone();
        listeners.retain(|id, listener| {
            listener.addresses.retain(|ip| !self.unavailable.contains_key(&at(*ip, id)));
            !listener.addresses.is_empty()
        });
        listeners
    }

    /// The configuration without what can't be served.
    #[must_use]
    pub fn configuration(&self) -> Configuration {
        let metrics = self.config.metrics.filter(|address| !self.unavailable.contains_key(address));
        let mut rendered = Rendered::new(&Config { metrics, ..self.config.clone() }, &self.listeners());
        // A listener that has changed since may be accepted. Its servers can't be the reason.
        rendered.proxies.retain(|id, proxy| {
            let refused = self.refused.get(id).map(|(refused, _)| refused);
            refused
                .is_none_or(|refused| Proxy { servers: refused.servers.clone(), ..proxy.clone() } != *refused)
        });
        self.with_pairs(rendered)
    }

    fn with_pairs(&self, rendered: Rendered) -> Configuration {
        let pair = |secret: &ObjectKey| Some((secret.clone(), Arc::clone(self.certificates.get(secret)?)));
        let pairs = rendered.secrets().into_iter().filter_map(pair).collect();
        Configuration { rendered, pairs }
    }

    /// Writes the configuration and has HAProxy validate it. What HAProxy refuses is left out: first certificates, of
    /// which the one in `applied` is used again, then listeners.
    ///
    /// # Errors
    /// If nothing can be validated.
    pub fn stage(
        &mut self,
        program: &Program,
        runtime: &mut Runtime,
        applied: &Configuration,
    ) -> Result<(Staged, Configuration), String> {
        let configuration = self.configuration();
        match validated(program, runtime, &configuration) {
            Ok(staged) => return Ok((staged, configuration)),
            Err(Invalid::NotRun(why)) => return Err(why),
            Err(Invalid::Refused(_)) => {}
        }
        self.refuse_certificates(program, runtime, &configuration, applied)?;
        let configuration = self.configuration();
        let ids: Vec<ListenerId> = configuration.rendered.proxies.keys().cloned().collect();
        let only = |ids: &[ListenerId]| {
            let mut rendered = configuration.rendered.clone();
            rendered.proxies.retain(|id, _| ids.binary_search(id).is_ok());
            self.with_pairs(rendered)
        };
        let mut validate = |ids: &[ListenerId]| validated(program, runtime, &only(ids)).map(drop);
        let split = crate::bisect::split(&ids, &mut validate)?;
        let configuration = only(&split.accepted);
        let proxies = self.configuration().rendered.proxies;
        for (id, why) in split.refused {
            self.refused.insert(id.clone(), (proxies[&id].clone(), why));
        }
        let staged = validated(program, runtime, &configuration).map_err(|why| match why {
            Invalid::Refused(why) | Invalid::NotRun(why) => why,
        })?;
        Ok((staged, configuration))
    }

    /// Finds certificates that HAProxy refuses, by a configuration with only certificates.
    fn refuse_certificates(
        &mut self,
        program: &Program,
        runtime: &mut Runtime,
        configuration: &Configuration,
        applied: &Configuration,
    ) -> Result<(), String> {
        let secrets: Vec<ObjectKey> = configuration.pairs.keys().cloned().collect();
        let id =
            ListenerId { service: ObjectKey::new("certificates", "all"), port: std::num::NonZeroU16::MIN };
        let only = |secrets: &[ObjectKey]| {
            let options = if secrets.is_empty() { "" } else { " ssl crt-list certificates.all.1.list" };
            let sections =
                format!("frontend {id} from tcp\n    bind 127.0.0.1:1{options}\n    timeout client 1s\n");
            let secrets = secrets.to_vec();
            let proxy = Proxy { sections, server_options: "", servers: BTreeSet::new(), secrets };
            let head = configuration.rendered.head.clone();
            self.with_pairs(Rendered { head, proxies: BTreeMap::from([(id.clone(), proxy)]) })
        };
        let mut validate = |secrets: &[ObjectKey]| validated(program, runtime, &only(secrets)).map(drop);
        let split = crate::bisect::split(&secrets, &mut validate)?;
        for (secret, why) in split.refused {
            self.certificates.refuse(&secret, why, applied.pairs.get(&secret));
        }
        self.compute();
        Ok(())
    }

    /// Everything that is not granted.
    #[must_use]
    pub fn findings(&self, now: jiff::Timestamp) -> Vec<Finding> {
        let mut findings = self.desired.findings.clone();
        findings.extend(self.certificates.findings(now));
        for (id, listener) in &self.desired.listeners {
            let mut report = |reason, what: String, accepted: &str| {
                let diagnostic = Diagnostic::error(what).accepting(accepted);
                let meta = self.objects.services.get(&id.service).map(|service| &service.meta);
                let finding = Finding { object: id.service.clone(), reason, diagnostic };
                findings.push(match meta {
                    Some(meta) => Finding::at(meta, "spec.ports", reason, finding.diagnostic),
                    None => finding,
                });
            };
            for address in addresses(id, listener) {
                if let Some(why) = self.unavailable.get(&address) {
                    let what = format!("the edge cannot listen on {address}: {why}");
                    report(Reason::CannotListen, what, "a free port on a local address of this machine");
                }
            }
            if let Some((_, why)) = self.refused.get(id) {
                let what =
                    format!("port {} is not served: HAProxy refuses its configuration: {why}", id.port);
                report(Reason::HaproxyRefused, what, "a configuration that HAProxy accepts");
            }
        }
        if let Some((address, why)) = self.config.metrics.and_then(|it| self.unavailable.get_key_value(&it)) {
            let what = format!("metrics are not served on {address}: {why}");
            let diagnostic = Diagnostic::error(what).accepting("another address or port in metrics");
            let (object, reason) = (ObjectKey::default(), Reason::CannotListen);
            findings.push(Finding { object, reason, diagnostic });
        }
        findings
    }
}

/// Writes a configuration and has HAProxy validate it.
fn validated(program: &Program, runtime: &mut Runtime, wanted: &Configuration) -> Result<Staged, Invalid> {
    let path = runtime.path().to_owned();
    let staged = runtime.stage(&wanted.rendered, &wanted.pairs);
    let staged =
        staged.map_err(|error| Invalid::NotRun(format!("cannot write to {}: {error}", path.display())))?;
    program.validate(&staged.file()).map(|()| staged)
}

fn at(ip: IpAddr, id: &ListenerId) -> SocketAddr {
    SocketAddr::new(ip, id.port.get())
}

/// The addresses and ports of a listener.
pub fn addresses<'a>(
    id: &'a ListenerId,
    listener: &'a Listener,
) -> impl Iterator<Item = SocketAddr> + use<'a> {
    listener.addresses.iter().map(|ip| at(*ip, id))
}
