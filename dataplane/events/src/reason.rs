//! The reasons of events, with their levels and alerts. `docs/events.md` explains each; a test compares it with this
//! list.

use tidegate_spec::named;

named! {
    /// Why an event was recorded: which change of state it is. Scripts and alerts use the names.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Reason {
        /// The gateway serves a Service that it did not serve before.
        ServiceAdded => "ServiceAdded",
        /// A Service is served differently from before.
        ServiceChanged => "ServiceChanged",
        /// The gateway no longer serves a Service.
        ServiceWithdrawn => "ServiceWithdrawn",
        /// A Service got an address.
        VipAdded => "VipAdded",
        /// A Service lost an address.
        VipRemoved => "VipRemoved",
        /// A VIP is announced to routers.
        VipAnnounced => "VipAnnounced",
        /// A VIP of a Service that is still served is no longer announced to routers.
        VipWithdrawn => "VipWithdrawn",
        /// All VIPs are withdrawn because of the gateway.
        VipsWithdrawn => "VipsWithdrawn",
        /// VIPs are announced again after all were withdrawn.
        VipsAnnounced => "VipsAnnounced",
        /// This gateway owns the VIPs of a Lease or VRRP group.
        VipOwned => "VipOwned",
        /// This gateway no longer owns the VIPs of a Lease or VRRP group.
        VipReleased => "VipReleased",
        /// A backend accepts new flows.
        BackendUp => "BackendUp",
        /// A backend fails its checks, is not ready, or cannot be reached.
        BackendDown => "BackendDown",
        /// A backend keeps its flows and gets no new ones.
        BackendDraining => "BackendDraining",
        /// A Service has another backend.
        BackendAdded => "BackendAdded",
        /// A Service no longer has a backend.
        BackendRemoved => "BackendRemoved",
        /// Workers avoid a backend because it refuses or ignores new connections.
        BackendSetAside => "BackendSetAside",
        /// Workers use a backend again.
        BackendReturned => "BackendReturned",
        /// All backends of a port fail their checks, so that none is excluded.
        FailOpenBegun => "FailOpenBegun",
        /// A backend of the port passes its checks again.
        FailOpenEnded => "FailOpenEnded",
        /// New connections to a Service are answered with SYN cookies.
        SynFloodBegun => "SynFloodBegun",
        /// The SYN flood is over.
        SynFloodEnded => "SynFloodEnded",
        /// New flows are refused because a flow table is full.
        FlowTableFull => "FlowTableFull",
        /// No new flow has been refused for a while.
        FlowTableHasSpace => "FlowTableHasSpace",
        /// A link has no carrier, or its port failed.
        LinkDown => "LinkDown",
        /// A link is up.
        LinkUp => "LinkUp",
        /// The tap of an interface is down.
        TapDown => "TapDown",
        /// The tap of an interface is up.
        TapUp => "TapUp",
        /// A BGP session is established.
        BgpUp => "BgpUp",
        /// A BGP session has ended.
        BgpDown => "BgpDown",
        /// BFD with a peer is up.
        BfdUp => "BfdUp",
        /// BFD with a peer is down.
        BfdDown => "BfdDown",
        /// BIRD does not work, so nothing is announced by BGP.
        BirdFailed => "BirdFailed",
        /// BIRD has started.
        BirdStarted => "BirdStarted",
        /// The flows of the previous process were restored.
        FlowsRestored => "FlowsRestored",
        /// The newest state cannot be published to the workers.
        SnapshotRefused => "SnapshotRefused",
        /// The newest state can be published again.
        SnapshotAccepted => "SnapshotAccepted",
        /// A configuration was refused.
        ConfigurationRefused => "ConfigurationRefused",
        /// A configuration was loaded.
        ConfigurationReloaded => "ConfigurationReloaded",
        /// A backend or a node is being drained.
        DrainBegun => "DrainBegun",
        /// A backend or a node is no longer drained.
        DrainEnded => "DrainEnded",
        /// The gateway itself is being drained.
        GatewayDrainBegun => "GatewayDrainBegun",
        /// No more packets arrive at the drained gateway.
        GatewayDrained => "GatewayDrained",
        /// The gateway serves again.
        GatewayDrainEnded => "GatewayDrainEnded",
        /// The gateway forwards.
        GatewayStarted => "GatewayStarted",
        /// The gateway stops.
        GatewayStopping => "GatewayStopping",
        /// The API server answers.
        SourceConnected => "SourceConnected",
        /// The API server does not answer.
        SourceLost => "SourceLost",
        /// The credentials for the API server expire soon, or have expired.
        CredentialsExpiring => "CredentialsExpiring",
        /// The credentials for the API server were renewed.
        CredentialsRenewed => "CredentialsRenewed",
    }
}

named! {
    /// The level of the log line of an event.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Level {
        /// It needs no attention.
        Info => "info",
        /// It may need attention.
        Warning => "warning",
        /// It needs attention.
        Error => "error",
    }
}

impl Reason {
    /// The level of the log line.
    #[must_use]
    pub fn level(self) -> Level {
        match self {
            Self::SnapshotRefused | Self::BirdFailed | Self::ConfigurationRefused => Level::Error,
            Self::VipsWithdrawn
            | Self::FailOpenBegun
            | Self::SynFloodBegun
            | Self::FlowTableFull
            | Self::LinkDown
            | Self::TapDown
            | Self::BgpDown
            | Self::BfdDown
            | Self::SourceLost
            | Self::CredentialsExpiring => Level::Warning,
            _ => Level::Info,
        }
    }

    /// The alert of `deploy/prometheus/rules.yaml` that fires if the new state lasts.
    #[must_use]
    pub fn alert(self) -> Option<&'static str> {
        Some(match self {
            Self::ServiceWithdrawn => "TidegateServiceWithdrawn",
            Self::VipsWithdrawn => "TidegateNotReady",
            Self::BackendDown => "TidegateBackendsFailing",
            Self::FailOpenBegun => "TidegateFailOpen",
            Self::SynFloodBegun => "TidegateSynFlood",
            Self::FlowTableFull => "TidegateFlowTableFull",
            Self::LinkDown | Self::TapDown => "TidegateInterfaceDown",
            Self::BgpDown => "TidegateBgpSessionDown",
            Self::BfdDown => "TidegateBfdDown",
            Self::BirdFailed => "TidegateBirdDown",
            Self::SnapshotRefused => "TidegateStateNotPublished",
            Self::ConfigurationRefused => "TidegateConfigurationRefused",
            Self::GatewayDrainBegun => "TidegateDrainForgotten",
            Self::SourceLost => "TidegateSourceLost",
            Self::CredentialsExpiring => "TidegateCredentialsExpiring",
            _ => return None,
        })
    }

    /// The reason with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}
