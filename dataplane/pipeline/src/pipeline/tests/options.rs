//! Changes of every option of a service, for the comparison of the fast path with the stages.
//!
//! Invariant: the pattern in [`Change::apply`] names every field of [`ServiceSpec`], like the one by which the snapshot
//! decides about the fast path (`compile/records.rs`). A new option compiles in neither place until somebody decides.

use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_spec::{
    BackendState, ChoiceOptions, FlowTracking, FormerWeight, HashInput, LoadRule, MssClamp, NoEndpoints,
    PassiveHealth, Protocol, Scheduler, ServiceKey, ServiceLimits, ServiceSpec, SynCookies, TunnelOptions,
    Warming,
};
use tidegate_wire::encapsulation::GueVariant;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};

/// The first client of each family.
const FIRST_CLIENT: [&str; 2] = ["198.51.100.1/32", "2001:db8::1/128"];

/// A change of one option.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// The state of the first backend.
    State(BackendState),
    /// The weight of the first backend.
    Weight(u16),
    /// The former weight of the first backend, if it differs.
    Flux(Option<u16>),
    Scheduler(Scheduler),
    Hash(HashInput),
    /// Whether the first backend warms up.
    Warming(bool),
    Affinity(bool),
    NoEndpoints(NoEndpoints),
    /// The share of rejected flows, in parts per million.
    Rejected(u32),
    Mss(MssClamp),
    IdleTimeout(u64),
    /// Whether only the first client of each family is admitted.
    Ranges(bool),
    Limits(ServiceLimits),
    /// With these TLVs. Services that are not TCP only get version 2.
    Proxy(Option<ProxyVersion>, ProxyTlvs),
    Cookies(Option<SynCookies>),
    Passive(bool),
    Logged(bool),
    Gue(GueVariant, u16),
    Gre(Option<u32>),
    Dscp(u8),
}

/// Changes that the fast path must not react to are as likely as changes that disable it.
pub(super) fn change() -> impl Strategy<Value = Change> {
    use Change as C;
    let schedulers = vec![
        Scheduler::Rendezvous,
        Scheduler::Rendezvous,
        Scheduler::Maglev { slots: 251 },
        Scheduler::WeightedRoundRobin,
        Scheduler::Loads(LoadRule::LeastConnections),
        Scheduler::SourceHash,
        Scheduler::DestinationHash,
    ];
    let limits = vec![
        ServiceLimits::default(),
        ServiceLimits { bandwidth: NonZeroU64::new(2_000_000), ..Default::default() },
        ServiceLimits { connection_rate: NonZeroU32::new(2), ..Default::default() },
        ServiceLimits { connections: NonZeroU32::new(5), ..Default::default() },
        ServiceLimits::default(),
    ];
    let answers = vec![NoEndpoints::Reject, NoEndpoints::Drop, NoEndpoints::Unserved];
    let clamps = vec![MssClamp::Off, MssClamp::Path, MssClamp::AtMost(1000), MssClamp::Off];
    let proxy = vec![
        (None, ProxyTlvs::NONE),
        (Some(ProxyVersion::V1), ProxyTlvs::NONE),
        (Some(ProxyVersion::V2), ProxyTlvs::UNIQUE_ID.and(ProxyTlvs::CRC32C).and(ProxyTlvs::VPCE_ID)),
        (Some(ProxyVersion::Toa), ProxyTlvs::NONE),
    ];
    let cookies = vec![None, Some(SynCookies::Off), Some(SynCookies::Auto), Some(SynCookies::Always)];
    let states = vec![BackendState::Active, BackendState::Draining, BackendState::Down];
    prop_oneof![
        20 => select(states).prop_map(C::State),
        5 => (0u16..3).prop_map(C::Weight),
        40 => select(vec![None, Some(0), Some(3)]).prop_map(C::Flux),
        5 => select(schedulers).prop_map(C::Scheduler),
        5 => select(vec![HashInput::Flow, HashInput::Client]).prop_map(C::Hash),
        5 => any::<bool>().prop_map(C::Warming),
        5 => select(vec![true, false, false]).prop_map(C::Affinity),
        5 => select(answers).prop_map(C::NoEndpoints),
        5 => select(vec![0, 0, 500_000, 1_000_000]).prop_map(C::Rejected),
        5 => select(clamps).prop_map(C::Mss),
        5 => (1u64..900).prop_map(C::IdleTimeout),
        20 => any::<bool>().prop_map(C::Ranges),
        20 => select(limits).prop_map(C::Limits),
        // Once a flow has had a header or a cookie, the stages process all NAT packets.
        1 => select(proxy).prop_map(|(version, tlvs)| C::Proxy(version, tlvs)),
        3 => select(cookies).prop_map(C::Cookies),
        10 => any::<bool>().prop_map(C::Passive),
        5 => any::<bool>().prop_map(C::Logged),
        5 => (select(vec![GueVariant::Direct, GueVariant::Header]), 6000u16..6090)
            .prop_map(|(variant, port)| C::Gue(variant, port)),
        5 => select(vec![None, Some(7)]).prop_map(C::Gre),
        5 => (1u8..64).prop_map(C::Dscp),
    ]
}

impl Change {
    pub(super) fn apply(&self, spec: &mut ServiceSpec) {
        let ServiceSpec {
            key: ServiceKey { vip: _, protocol, port: _ },
            // The services of the test have every mode and protocol.
            mode: _,
            tunnel:
                TunnelOptions {
                    gue_variant,
                    gue_port,
                    gre_key,
                    geneve_port: _,
                    geneve_vni: _,
                    geneve_service: _,
                    dscp,
                },
            scheduler,
            choice: ChoiceOptions { hash, warming },
            flow_tracking,
            affinity,
            no_endpoints,
            rejected_ppm,
            mss_clamp,
            idle_timeout_tcp,
            idle_timeout_udp,
            idle_timeout_sctp,
            source_ranges,
            limits,
            proxy_protocol,
            proxy_tlvs,
            vpce_id,
            syn_cookies,
            passive_health,
            flow_log,
            backends,
            // They have no effect on packets.
            namespace: _,
            name: _,
            port_name: _,
            layer2: _,
        } = spec;
        let first = SocketAddr::new(backends[0].address, backends[0].port);
        match self {
            Self::State(state) => backends[0].state = *state,
            Self::Weight(weight) => backends[0].weight = *weight,
            Self::Flux(weight) => {
                let former = |weight| FormerWeight { address: first.ip(), port: first.port(), weight };
                let former = weight.map(former).into_iter().collect();
                *flow_tracking = match flow_tracking {
                    FlowTracking::OnChange(_) => FlowTracking::OnChange(former),
                    _ => FlowTracking::AlwaysAfter(former),
                };
            }
            Self::Scheduler(one) => *scheduler = *one,
            Self::Hash(one) => *hash = *one,
            Self::Warming(is_on) => {
                let one = Warming { address: first.ip(), port: first.port(), step: 3 };
                *warming = is_on.then_some(one).into_iter().collect();
            }
            Self::Affinity(is_on) => *affinity = is_on.then_some(Duration::from_secs(600)),
            Self::NoEndpoints(one) => *no_endpoints = *one,
            Self::Rejected(ppm) => *rejected_ppm = *ppm,
            Self::Mss(clamp) => *mss_clamp = *clamp,
            Self::IdleTimeout(seconds) => {
                let timeout = Duration::from_secs(*seconds);
                (*idle_timeout_tcp, *idle_timeout_udp, *idle_timeout_sctp) = (timeout, timeout, timeout);
            }
            Self::Ranges(only) => {
                let nets = FIRST_CLIENT.map(|net| net.parse::<IpNet>().expect("a prefix"));
                *source_ranges = only.then(|| nets.into());
            }
            Self::Limits(one) => *limits = *one,
            Self::Proxy(version, tlvs) => {
                let is_tcp = *protocol == Protocol::Tcp;
                *proxy_protocol = version.filter(|version| is_tcp || *version == ProxyVersion::V2);
                *proxy_tlvs = *tlvs;
                *vpce_id = VpceId::new("vpce-1").expect("a short text");
            }
            Self::Cookies(one) => *syn_cookies = *one,
            Self::Logged(is_on) => *flow_log = NonZeroU16::new(2).filter(|_| *is_on),
            Self::Passive(is_on) => *passive_health = is_on.then(PassiveHealth::default),
            Self::Gue(variant, port) => (*gue_variant, *gue_port) = (*variant, *port),
            Self::Gre(key) => *gre_key = *key,
            Self::Dscp(one) => *dscp = *one,
        }
    }
}
