//! Section 8, our own annotations: the header of the PROXY protocol and its TLVs.

use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::ProxyTlvs;

use super::*;
use crate::reconcile::annotations::key;

/// The version of the header in the spec, and the messages.
fn proxied(yaml: &str) -> (Vec<Option<ProxyVersion>>, Vec<String>) {
    let outcome = Both::new(yaml).look();
    (outcome.spec.services.iter().map(|service| service.proxy_protocol).collect(), messages(&outcome))
}

#[test]
fn proxy_protocol_reaches_the_spec_in_modes_that_translate() {
    for (value, version) in [
        ("v1", Some(ProxyVersion::V1)),
        (" v2 ", Some(ProxyVersion::V2)),
        ("none", None),
        ("off", None),
        ("false", None),
        ("", None),
    ] {
        for mode in ["nat", "fullnat"] {
            let yaml = annotated_web(&[(key::PROXY_PROTOCOL, value), (key::FORWARDING, mode)]);
            assert_eq!(proxied(&yaml), (vec![version], vec![]), "{value} {mode}");
        }
    }
}

#[test]
fn tlvs_reach_the_spec_with_version_2_and_are_refused_with_version_1() {
    let requested = |version: &str, tlvs: &str| {
        Both::new(&annotated_web(&[(key::PROXY_PROTOCOL, version), (key::PROXY_TLVS, tlvs)])).look()
    };
    let both = ProxyTlvs::UNIQUE_ID.and(ProxyTlvs::CRC32C);
    for (value, tlvs) in [
        ("unique-id", ProxyTlvs::UNIQUE_ID),
        (" crc32c ", ProxyTlvs::CRC32C),
        ("crc32c, unique-id", both),
        ("vpce-id=vpce-08d2bf15fac5001c9,unique-id,crc32c", both.and(ProxyTlvs::VPCE_ID)),
        ("vpce-id=a=b", ProxyTlvs::VPCE_ID),
        ("none", ProxyTlvs::NONE),
        ("", ProxyTlvs::NONE),
    ] {
        let outcome = requested("v2", value);
        assert_eq!(outcome.spec.services.iter().map(|s| s.proxy_tlvs).collect::<Vec<_>>(), [tlvs], "{value}");
        assert_eq!(messages(&outcome), Vec::<String>::new());
    }
    assert_eq!(requested("v2", "vpce-id=vpce-7").spec.services[0].vpce_id.as_str(), "vpce-7");
    let outcome = requested("v1", "unique-id");
    assert_eq!(outcome.spec.services.len(), 0);
    let (reason, what, accepted) = finding(&outcome);
    assert_eq!(reason, Reason::NotSupported);
    assert!(what.contains("version 1 of the PROXY protocol has no TLVs"), "{what}");
    assert!(accepted.contains("v2"), "{accepted}");
    for value in [
        "aws-vpce",
        "unique-id,",
        "unique-id crc32c",
        "vpce-id",
        "vpce-id=",
        "vpce-id=a b",
        "vpce-id=a,vpce-id=b",
        "vpce-id=twenty-three-characters",
    ] {
        let outcome = requested("v2", value);
        assert_eq!(outcome.spec.services.len(), 0, "{value}");
        assert!(messages(&outcome)[0].contains("unique-id, crc32c and vpce-id="), "{:?}", messages(&outcome));
    }
    let without = requested("none", "crc32c");
    assert_eq!(without.spec.services.len(), 1);
    assert!(
        messages(&without)[0].contains("does not request a PROXY protocol header"),
        "{:?}",
        messages(&without)
    );
}

#[test]
fn a_udp_port_gets_a_checksum_tlv_and_no_unique_id() {
    let udp = |tlvs: &str| {
        let yaml = annotated_web(&[(key::PROXY_PROTOCOL, "v2"), (key::PROXY_TLVS, tlvs)])
            .replace("port: 80,", "port: 80, protocol: UDP,")
            .replace("protocol: TCP", "protocol: UDP");
        Both::new(&yaml).look()
    };
    assert_eq!(udp("crc32c").spec.services[0].proxy_tlvs, ProxyTlvs::CRC32C);
    assert_eq!(udp("vpce-id=v").spec.services[0].proxy_tlvs, ProxyTlvs::VPCE_ID);
    let refused = udp("unique-id");
    assert_eq!(refused.spec.services.len(), 0);
    assert!(messages(&refused)[0].contains("UDP has no connections"), "{:?}", messages(&refused));
}

#[test]
fn proxy_protocol_is_refused_in_dsr_modes_with_the_reason() {
    for mode in ["dsr-l2", "dsr-ipip"] {
        let yaml = annotated_web(&[(key::PROXY_PROTOCOL, "v2"), (key::FORWARDING, mode)])
            .replace("port: 80,", "port: 8080,");
        let outcome = Both::new(&yaml).look();
        assert_eq!(outcome.spec.services.len(), 0);
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::NotSupported);
        let why = format!("with {mode}, the backend replies to the client directly");
        assert!(what.contains(key::PROXY_PROTOCOL) && what.contains(&why), "{what}");
        assert_eq!(accepted, "tidegate.dev/forwarding nat or fullnat");
        let refused = outcome.services[0].ports[0].refused.as_ref().expect("it is shown");
        assert!(refused.message.contains(&why), "{refused}");
    }
}

#[test]
fn the_option_toa_is_for_fullnat_and_tcp() {
    let toa = |more: &[(&str, &str)]| annotated_web(&[&[(key::PROXY_PROTOCOL, "toa")], more].concat());
    let fullnat = (key::FORWARDING, "fullnat");
    assert_eq!(proxied(&toa(&[fullnat])), (vec![Some(ProxyVersion::Toa)], vec![]));
    let outcome = Both::new(&toa(&[fullnat])).look();
    let checks: Vec<String> = outcome.targets.iter().map(ToString::to_string).collect();
    assert_eq!(checks, ["tcp://10.0.1.1:8080"], "a check needs no option");
    for mode in ["nat", "dsr-l2"] {
        let yaml = toa(&[(key::FORWARDING, mode)]).replace("port: 80,", "port: 8080,");
        let outcome = Both::new(&yaml).look();
        assert_eq!(outcome.spec.services.len(), 0);
        let (reason, what, accepted) = finding(&outcome);
        let why = format!(
            "with forwarding {mode}, backends see the client's address in every packet and need no TOA"
        );
        assert!(reason == Reason::NotSupported && what.contains(&why), "{what}");
        assert_eq!(accepted, "tidegate.dev/forwarding fullnat, or no TOA");
        let refused = outcome.services[0].ports[0].refused.as_ref().expect("it is shown");
        assert!(
            refused.message.contains("proxy-protocol toa: ") && refused.message.contains(&why),
            "{refused}"
        );
    }
    let udp = toa(&[fullnat])
        .replace("port: 80,", "port: 80, protocol: UDP,")
        .replace("protocol: TCP", "protocol: UDP");
    let (specs, reported) = proxied(&udp);
    assert_eq!((specs, reported.len()), (vec![], 1));
    assert!(reported[0].contains("TOA is a TCP option"), "{}", reported[0]);
    let (specs, reported) = proxied(&toa(&[fullnat, (key::PROXY_TLVS, "crc32c")]));
    assert_eq!(specs, vec![]);
    assert!(reported[0].contains("the TOA option has no TLVs"), "{}", reported[0]);
}

#[test]
fn a_udp_port_gets_the_header_of_version_2_and_none_with_version_1() {
    let udp = |version: &str| {
        annotated_web(&[(key::PROXY_PROTOCOL, version)])
            .replace("port: 80,", "port: 80, protocol: UDP,")
            .replace("protocol: TCP", "protocol: UDP")
    };
    assert_eq!(proxied(&udp("v2")), (vec![Some(ProxyVersion::V2)], vec![]));
    let (specs, reported) = proxied(&udp("v1"));
    assert_eq!((specs, reported.len()), (vec![], 1));
    assert!(reported[0].contains(
        "version 1 of the PROXY protocol does not support UDP; accepted: tidegate.dev/proxy-protocol: v2"
    ));
}

#[test]
fn only_checks_of_the_clients_port_have_the_header() {
    let requested = |annotations: &[(&str, &str)]| -> Vec<String> {
        let outcome = Both::new(&annotated_web(annotations)).look();
        outcome.targets.iter().map(ToString::to_string).collect()
    };
    let v1 = (key::PROXY_PROTOCOL, "v1");
    assert_eq!(requested(&[v1]), ["tcp://10.0.1.1:8080 with PROXY v1"]);
    assert_eq!(requested(&[v1, (key::HEALTH_PROTOCOL, "http")]), ["http://10.0.1.1:8080/ with PROXY v1"]);
    assert_eq!(requested(&[v1, (key::HEALTH_PORT, "8080")]), ["tcp://10.0.1.1:8080 with PROXY v1"]);
    assert_eq!(requested(&[v1, (key::HEALTH_PORT, "9000")]), ["tcp://10.0.1.1:9000"]);
}

#[test]
fn a_local_service_with_a_proxy_header_loses_no_client_address() {
    let local = |annotations: &[(&str, &str)]| {
        let yaml = annotated_web(annotations);
        let policy = "allocateLoadBalancerNodePorts: false\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500";
        let outcome = Both::new(&yaml.replace("allocateLoadBalancerNodePorts: false", policy)).look();
        outcome.findings.iter().any(|finding| finding.reason == Reason::ClientAddressLost)
    };
    assert!(local(&[]));
    assert!(!local(&[(key::PROXY_PROTOCOL, "v1")]));
}
