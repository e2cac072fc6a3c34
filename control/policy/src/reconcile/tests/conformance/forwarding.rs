//! Section 8, our own annotations: the forwarding mode, and the choices within the tunnels and `dsr-dscp`.

use tidegate_spec::{ForwardingMode, SharedService, TunnelOptions};
use tidegate_wire::encapsulation::{GueVariant, ServiceIdentity, Vni};

use super::*;
use crate::reconcile::annotations::key;

#[test]
fn forwarding_chooses_the_mode() {
    for (word, mode) in [
        ("dsr-l2", ForwardingMode::DsrL2),
        ("dsr-ipip", ForwardingMode::DsrIpip),
        ("dsr-gue", ForwardingMode::DsrGue),
        ("dsr-gre", ForwardingMode::DsrGre),
        ("dsr-geneve", ForwardingMode::DsrGeneve),
        ("nat", ForwardingMode::Nat),
        ("fullnat", ForwardingMode::FullNat),
    ] {
        let both = Both::new(&annotated_web(&[(key::FORWARDING, word)]).replace("port: 80,", "port: 8080,"));
        let outcome = both.look();
        assert_eq!(only(&outcome).mode, mode);
        assert_eq!(
            (states(only(&outcome)), messages(&outcome)),
            (vec!["10.0.1.1:8080 active".to_owned()], vec![])
        );
    }
}

#[test]
fn tunnel_annotations_override_the_configuration_for_one_service() {
    let configured = TunnelOptions {
        gue_variant: GueVariant::Header,
        gue_port: 5555,
        gre_key: Some(7),
        geneve_port: 5556,
        ..TunnelOptions::default()
    };
    let geneve_service = ServiceIdentity::of("default", "web");
    for (annotations, expected) in [
        (vec![(key::FORWARDING, "dsr-gue")], configured),
        (
            vec![(key::FORWARDING, "dsr-gue"), (key::GUE_VARIANT, "1"), (key::GUE_PORT, "6081")],
            TunnelOptions { gue_variant: GueVariant::Direct, gue_port: 6081, ..configured },
        ),
        (
            vec![(key::FORWARDING, "dsr-gre"), (key::GRE_KEY, "4294967295")],
            TunnelOptions { gre_key: Some(u32::MAX), ..configured },
        ),
        (
            vec![(key::FORWARDING, "dsr-gre"), (key::GRE_KEY, "none")],
            TunnelOptions { gre_key: None, ..configured },
        ),
        (vec![(key::FORWARDING, "dsr-geneve")], TunnelOptions { geneve_service, ..configured }),
        (
            vec![(key::FORWARDING, "dsr-geneve"), (key::GENEVE_PORT, "6081"), (key::GENEVE_VNI, "16777215")],
            TunnelOptions {
                geneve_port: 6081,
                geneve_vni: Vni::new(0x00ff_ffff).expect("24 bits"),
                geneve_service,
                ..configured
            },
        ),
    ] {
        let yaml = annotated_web(&annotations).replace("port: 80,", "port: 8080,");
        let both = Both::new(&yaml).with(|world| world.settings.services.defaults.tunnel = configured);
        let outcome = both.look();
        assert_eq!((only(&outcome).tunnel, messages(&outcome)), (expected, vec![]), "{annotations:?}");
    }
}

#[test]
fn a_tunnel_annotation_for_another_mode_is_reported_as_without_effect() {
    for (mode, key, value) in [
        ("dsr-ipip", key::GUE_PORT, "6081"),
        ("dsr-gre", key::GUE_VARIANT, "0"),
        ("nat", key::GRE_KEY, "7"),
        ("dsr-gue", key::GENEVE_PORT, "6081"),
        ("dsr-gre", key::GENEVE_VNI, "7"),
    ] {
        let outcome = annotated_with_mode(mode, key, value);
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::InvalidValue);
        assert!(what.contains(&format!("{key} has no effect: forwarding is {mode}")), "{what}");
        assert!(accepted.starts_with("tidegate.dev/forwarding dsr-g"), "{accepted}");
    }
}

#[test]
fn dsr_dscp_reports_backends_that_cannot_distinguish_two_vips() {
    let marked = |dscp: &str| {
        let yaml = annotated_web(&[(key::FORWARDING, "dsr-dscp"), (key::DSCP, dscp)]);
        Both::new(&yaml.replace("port: 80,", "port: 8080,")).look()
    };
    let outcome = marked(" 46 ");
    assert_eq!((only(&outcome).mode, only(&outcome).tunnel.dscp), (ForwardingMode::DsrDscp, 46));
    assert_eq!(
        (states(only(&outcome)), messages(&outcome)),
        (vec!["10.0.1.1:8080 active".to_owned()], vec![])
    );
    for wrong in ["0", "64", "ef", "-1"] {
        let outcome = marked(wrong);
        assert!(outcome.spec.services.is_empty(), "{wrong}: nothing is served without a mark");
        let messages = messages(&outcome);
        assert!(messages.iter().any(|reported| reported.contains("1 to 63")), "{messages:?}");
        assert!(
            messages.iter().any(|reported| reported.contains("is invalid: it is ignored")),
            "{messages:?}"
        );
    }

    let mut other = only(&outcome).clone();
    other.key.vip = "203.0.113.99".parse().unwrap();
    other.name = "other".into();
    let services = [outcome.spec.services[0].clone(), other.into()];
    let mut conflicts = DscpConflicts::default();
    let mut among = |services: &[SharedService]| -> Vec<String> {
        conflicts.among(services).iter().map(|one| format!("{}: {one}", one.service)).collect()
    };
    assert_eq!(among(&services), among(&services), "the second time from the first");
    assert_eq!(
        among(&services),
        [
            "default/web: 203.0.113.12 and 203.0.113.99 of Service default/other both have DSCP 46: backend 10.0.1.1 cannot distinguish them",
            "default/other: 203.0.113.99 and 203.0.113.12 of Service default/web both have DSCP 46: backend 10.0.1.1 cannot distinguish them",
        ]
    );
    let mut apart = services.clone();
    apart[1].tunnel.dscp = 47;
    assert!(among(&apart).is_empty());
    let mut elsewhere = services.clone();
    elsewhere[1].backends[0].address = "10.0.1.9".parse().unwrap();
    assert!(among(&elsewhere).is_empty());
    let mut third = (*services[0]).clone();
    third.key.vip = "203.0.113.5".parse().unwrap();
    let found = among(&[services[0].clone(), services[1].clone(), third.into()]);
    assert!(found[0].contains("and 203.0.113.5 of Service default"), "the lowest of the others: {found:?}");
    assert!(found[2].contains("and 203.0.113.12 of Service default"), "{found:?}");
    let conflict = &conflicts.among(&services)[0];
    let finding = conflict.finding(&Objects::default());
    assert_eq!((finding.reason, finding.object.to_string().as_str()), (Reason::DscpConflict, "default/web"));
}

fn annotated_with_mode(mode: &str, key: &str, value: &str) -> Outcome {
    let yaml = annotated_web(&[(key::FORWARDING, mode), (key, value)]);
    Both::new(&yaml.replace("port: 80,", "port: 8080,")).look()
}
