//! Applies the value of each annotation to the options, for our annotations and for aliases of other vendors.
//!
//! Invariant: an invalid value changes no option. If the default could include what the value should exclude, no port
//! is programmed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_model::config::{self, FlowLogRequest};
use tidegate_model::objects::{Labels, Protocol, Selector};
use tidegate_model::yaml::text;
use tidegate_spec::{HashInput, SynCookies};
use tidegate_wire::Named;

use super::{DAY, Options, SECOND, idle_max};
use crate::reconcile::aliases::{self, AliasValue};
use crate::reconcile::annotation_reader::Reader;
use crate::reconcile::annotations::{self, annotation_field, edge_key, key};
use crate::reconcile::finding::Reason;
use crate::reconcile::proxy_protocol::{self, ProxyHeaderRequest};
use crate::reconcile::view::{PortRefusal, RefusalReason};
use crate::reconcile::{announce_options, service_limits, tunnel_options};

impl Reader<'_> {
    /// Applies the annotations of other load balancers. Returns the annotation that requests an internal address, if
    /// any.
    pub(super) fn aliases<'a>(
        &mut self,
        options: &mut Options,
        annotations: &'a Labels,
        compat: &BTreeSet<String>,
    ) -> Option<&'a str> {
        if compat.contains("aws") {
            aliases::probe_defaults(annotations, options.health.rules_mut());
            if let Some((annotation, why)) = aliases::classic_defaults(annotations) {
                self.ignored(annotation, &why, aliases::ALL_HEALTH_CHECKS);
            }
        }
        let mut internal = None;
        let mut applied: BTreeMap<&'static str, (&str, Cow<'_, str>)> = BTreeMap::new();
        for (annotation, value) in annotations {
            let Some(alias) = aliases::known(annotation) else { continue };
            let enabled = compat.contains(alias.vendor);
            let unless_ours = |ours: &str| !annotations.contains_key(ours);
            let meanings = match alias.read(value, annotations) {
                // One warning is enough.
                AliasValue::Several(all) if !enabled => {
                    all.into_iter().find(|one| !matches!(one, AliasValue::Nothing)).into_iter().collect()
                }
                AliasValue::Several(all) => all,
                one => vec![one],
            };
            for meaning in meanings {
                match meaning {
                    AliasValue::Nothing => {}
                    AliasValue::Ignored(why, accepted) => self.ignored(annotation, &why, accepted),
                    _ if !enabled => {
                        let why = format!("{} is not in services.compat", alias.vendor);
                        let accepted =
                            format!("{} in services.compat, or tidegate.dev/ annotations", alias.vendor);
                        self.ignored(annotation, &why, &accepted);
                    }
                    AliasValue::Ours(ours, translated) if unless_ours(ours) => match applied.get(ours) {
                        Some((first, before)) if *before != translated => {
                            let why = format!("it contradicts annotation {first}");
                            self.ignored(annotation, &why, "only one of the two annotations");
                        }
                        Some(_) => {}
                        None => {
                            self.written = Some(value.clone());
                            self.apply(options, ours, annotation, &translated);
                            self.written = None;
                            applied.insert(ours, (annotation, translated));
                        }
                    },
                    AliasValue::Ours(..) => {}
                    AliasValue::Internal => internal = Some(annotation.as_str()),
                    AliasValue::ClientAddress => options.proxy.keeps_client = Some(annotation.clone()),
                    AliasValue::Refused(why, accepted) => {
                        self.refuse(options, annotation, why, accepted);
                    }
                    AliasValue::Invalid(accepted) => self.invalid(annotation, value, &accepted),
                    AliasValue::InvalidPort(accepted) => {
                        self.invalid_port(options, annotation, value, &accepted);
                    }
                    AliasValue::InvalidAddress(accepted) => {
                        options.addresses.invalid(self, annotation, value, &accepted);
                    }
                    AliasValue::Several(_) => {}
                }
            }
        }
        internal
    }

    /// Applies our annotation `ours`. `annotation` is its name as written, which may be an alias.
    pub(super) fn apply(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        let value = value.trim();
        match ours {
            key::FORWARDING => {
                options.mode_is_set |= self.named(&mut options.mode, annotation, value);
            }
            key::TARGET | key::BACKEND_NODE_SELECTOR | key::SCHEDULER | key::HASH | key::TABLE_SIZE => {
                self.apply_to_choice(options, ours, annotation, value);
            }
            key::GUE_VARIANT
            | key::GUE_PORT
            | key::GRE_KEY
            | key::GENEVE_PORT
            | key::GENEVE_VNI
            | key::DSCP => {
                tunnel_options::apply(self, &mut options.tunnel, ours, annotation, value);
            }
            key::PROXY_PROTOCOL | key::PROXY_TLVS => {
                self.apply_to_proxy_header(options, ours, annotation, value);
            }
            key::MAX_BANDWIDTH | key::MAX_CONNECTION_RATE | key::MAX_CONNECTIONS => {
                if let Err(accepted) = service_limits::apply(&mut options.limits, ours, value) {
                    self.invalid_port(options, annotation, value, accepted);
                }
            }
            key::LOAD_BALANCER_IPS | key::ADDRESS_POOL | key::ALLOW_SHARED_IP => {
                options.addresses.apply(self, ours, annotation, value);
            }
            key::DRAIN_TIMEOUT => {
                self.duration(&mut options.backends.drain_timeout, annotation, value, Duration::ZERO, DAY);
            }
            key::SLOW_START => match config::slow_start(value) {
                Some(time) => options.choice.slow_start = time,
                None => self.invalid(annotation, value, config::SLOW_START_ACCEPTED),
            },
            key::PASSIVE_HEALTH => match config::passive_health(value) {
                Some(on) => options.passive_health = options.passive_health.filter(|_| on),
                None => self.invalid(annotation, value, config::PASSIVE_HEALTH_ACCEPTED),
            },
            key::FLOW_LOG => self.apply_to_flow_log(options, annotation, value),
            key::FLOW_TRACKING | key::MSS_CLAMP | key::SYN_COOKIES => {
                self.apply_to_flows(options, ours, annotation, value);
            }
            key::IDLE_TIMEOUT_TCP | key::IDLE_TIMEOUT_UDP | key::IDLE_TIMEOUT_SCTP => {
                self.apply_to_idle_timeout(options, ours, annotation, value);
            }
            key::HEALTH_PROTOCOL
            | key::HEALTH_PORT
            | key::HEALTH_PATH
            | key::HEALTH_INTERVAL
            | key::HEALTH_TIMEOUT
            | key::HEALTHY_THRESHOLD
            | key::UNHEALTHY_THRESHOLD => options.health.apply(self, ours, annotation, value),
            key::BGP_COMMUNITIES | key::BGP_LOCAL_PREF | key::BGP_MED | key::BGP_PREPENDS => {
                announce_options::apply(self, &mut options.bgp, ours, annotation, value);
            }
            key::WEIGHT => {
                self.ignored(annotation, "it works only on Pods and Nodes", "no annotation");
            }
            _ if edge_key::ALL.contains(&annotation) => {
                let why = "a gateway ends neither TLS nor HTTP, and the backends may expect plain text";
                self.refuse(options, annotation, why, "this annotation only in the manifests of edges");
            }
            _ => {
                let finding = annotations::unknown(annotation);
                self.push(&annotation_field(annotation), Reason::InvalidValue, finding);
            }
        }
    }

    /// Applies the annotations that select the backends, and the backend for a flow.
    fn apply_to_choice(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        match ours {
            key::TARGET => {
                self.named(&mut options.backends.target, annotation, value);
            }
            key::BACKEND_NODE_SELECTOR if value.is_empty() => {}
            key::BACKEND_NODE_SELECTOR => match Selector::parse(value) {
                Some(selector) => options.backends.node_selector = Some(selector),
                // The default, all nodes, would include nodes that the Service excludes.
                None => self.invalid_port(options, annotation, value, Selector::ACCEPTED),
            },
            key::TABLE_SIZE => match config::table_size(value) {
                Ok(size) => options.choice.table_size = size,
                Err(accepted) => self.invalid(annotation, value, &accepted),
            },
            key::SCHEDULER => match config::scheduler(value) {
                Some(scheduler) => options.choice.scheduler = scheduler,
                None => self.invalid(annotation, value, config::SCHEDULER_ACCEPTED),
            },
            key::HASH => match HashInput::named(value) {
                Some(hash) => options.choice.hash = hash,
                // The backends may rely on receiving all connections of a client.
                None => self.invalid_port(options, annotation, value, &text::names::<HashInput>()),
            },
            _ => {}
        }
    }

    /// Applies the annotations about the PROXY protocol header.
    fn apply_to_proxy_header(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        match ours {
            key::PROXY_PROTOCOL => match proxy_protocol::version(value) {
                Ok(version) => {
                    let request = |version| ProxyHeaderRequest { version, annotation: annotation.to_owned() };
                    options.proxy.header = version.map(request);
                }
                // Backends that expect the header would read the client's first bytes as a header, and vice versa.
                Err(()) => self.invalid_port(options, annotation, value, proxy_protocol::ACCEPTED),
            },
            key::PROXY_TLVS => match proxy_protocol::tlvs(value) {
                Some((tlvs, vpce_id)) => (options.proxy.tlvs, options.proxy.vpce_id) = (tlvs, vpce_id),
                // Backends may rely on the requested TLVs.
                None => self.invalid_port(options, annotation, value, proxy_protocol::TLVS_ACCEPTED),
            },
            _ => {}
        }
    }

    fn apply_to_idle_timeout(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        match ours {
            key::IDLE_TIMEOUT_TCP => {
                let mut idle = options.idle.tcp.unwrap_or_default();
                self.duration(&mut idle, annotation, value, SECOND, idle_max(Protocol::Tcp));
                options.idle.tcp = Some(idle).filter(|idle| !idle.is_zero());
            }
            key::IDLE_TIMEOUT_UDP => {
                let max = idle_max(Protocol::Udp);
                self.duration(&mut options.idle.udp, annotation, value, SECOND, max);
            }
            key::IDLE_TIMEOUT_SCTP => {
                let max = idle_max(Protocol::Sctp);
                self.duration(&mut options.idle.sctp, annotation, value, SECOND, max);
            }
            _ => {}
        }
    }

    /// Applies the annotations about the flows of a Service.
    fn apply_to_flows(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        match ours {
            key::FLOW_TRACKING => {
                self.named(&mut options.choice.flow_tracking, annotation, value);
            }
            key::SYN_COOKIES => match SynCookies::named(value) {
                Some(choice) => options.handshake.syn_cookies = Some(choice),
                None => self.invalid(annotation, value, &text::names::<SynCookies>()),
            },
            _ => match config::mss_clamp(value) {
                Some(clamp) => options.handshake.mss_clamp = clamp,
                None => self.invalid(annotation, value, config::MSS_CLAMP_ACCEPTED),
            },
        }
    }

    /// Applies a name. Returns whether it is valid.
    fn named<T: Named>(&mut self, to: &mut T, annotation: &str, value: &str) -> bool {
        let named = T::named(value);
        match named {
            Some(named) => *to = named,
            None => self.invalid(annotation, value, &text::names::<T>()),
        }
        named.is_some()
    }

    /// Applies the annotation about the flow log, if this gateway has one.
    fn apply_to_flow_log(&mut self, options: &mut Options, annotation: &str, value: &str) {
        let Some(request) = config::flow_log(value) else {
            return self.invalid(annotation, value, config::FLOW_LOG_ACCEPTED);
        };
        options.flow_log = match (request, options.flow_log_sample) {
            (FlowLogRequest::Off, _) => None,
            (FlowLogRequest::On, Some(sample)) => Some(sample),
            (FlowLogRequest::Sampled(every), Some(_)) => Some(every),
            (FlowLogRequest::On | FlowLogRequest::Sampled(_), None) => {
                let accepted =
                    "flowLog.file or flowLog.ipfix in the configuration of the gateway, or no annotation";
                self.ignored(annotation, "the gateway has no flow log", accepted);
                None
            }
        };
    }

    fn duration(&mut self, to: &mut Duration, annotation: &str, value: &str, min: Duration, max: Duration) {
        match text::duration(value) {
            Some(parsed) if (min..=max).contains(&parsed) => *to = parsed,
            _ => {
                let [min, max] = [min, max].map(text::show_duration);
                self.invalid(annotation, value, &format!("{}, {min} to {max}", text::DURATION));
            }
        }
    }

    /// Refuses an alias that limits the outgoing bandwidth, if replies don't pass the gateway.
    pub(super) fn outgoing_bandwidth(&mut self, options: &mut Options, annotations: &Labels) {
        let is_alias = options.limits.bandwidth.is_some() && !annotations.contains_key(key::MAX_BANDWIDTH);
        if !is_alias || !options.mode.is_dsr() {
            return;
        }
        let Some((annotation, value)) = annotations.iter().find(|(name, _)| aliases::limits_replies(name))
        else {
            return;
        };
        let (mode, value) = (options.mode, text::shown(value));
        let why = format!("with forwarding {mode}, replies do not pass through the gateway");
        let what =
            format!("annotation {annotation}: {value:?} cannot be enforced: {why}; no port is programmed");
        let message = format!("{annotation}: {value:?}: {why}");
        options.refused.push(PortRefusal::new(RefusalReason::NotProgrammed, message));
        let accepted = "tidegate.dev/forwarding nat or fullnat, or tidegate.dev/max-bandwidth to limit only what \
            clients send";
        self.invalid_at(&annotation_field(annotation), what, accepted);
    }

    /// Reports an invalid value whose default could include what the value should exclude.
    fn invalid_port(&mut self, options: &mut Options, annotation: &str, value: &str, accepted: &str) {
        let value = text::shown(value);
        let what = format!("annotation {annotation}: {value:?} is invalid: no port is programmed");
        let message = format!("{annotation}: {value:?} is invalid");
        options.refused.push(PortRefusal::new(RefusalReason::NotProgrammed, message));
        self.invalid_at(&annotation_field(annotation), what, accepted);
    }

    /// Reports a valid request that can't be granted. No port may be programmed without it.
    pub(super) fn refuse(&mut self, options: &mut Options, annotation: &str, why: &str, accepted: &str) {
        let message = format!("annotation {annotation} is not supported: {why}");
        self.not_supported(annotation, format!("{message}; no port is programmed"), accepted);
        options.refused.push(PortRefusal::new(RefusalReason::NotSupported, message));
    }
}
