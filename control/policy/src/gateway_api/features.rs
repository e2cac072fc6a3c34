//! The features of the Gateway API that Tidegate implements.

/// The names for `status.supportedFeatures` of a GatewayClass (gateway-api `pkg/features`), sorted.
pub const SUPPORTED_FEATURES: [&str; 8] = [
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "UDPRoute",
];
