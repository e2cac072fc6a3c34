//! Section 8, the AWS annotations that belong together: health checks with the ranges and defaults of AWS, and
//! draining.

use tidegate_model::health::Rules;

use super::aliases::compat;
use super::*;

const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// `default/web` with these annotations of AWS, given without their prefix.
fn aws(annotations: &[(&str, &str)]) -> Both {
    let keyed: Vec<(String, &str)> = annotations.iter().map(|(k, v)| (format!("{AWS}{k}"), *v)).collect();
    let keyed: Vec<(&str, &str)> = keyed.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    compat(&keyed, &["aws"])
}

fn rules(outcome: &Outcome) -> Rules {
    outcome.targets.first().expect("one target").probe.rules
}

/// Interval and timeout in seconds, healthy and unhealthy threshold.
fn checks(annotations: &[(&str, &str)]) -> (u64, u64, u32, u32) {
    let outcome = aws(annotations).look();
    assert_eq!(messages(&outcome), [] as [String; 0], "{annotations:?}");
    let rules = rules(&outcome);
    (rules.interval.as_secs(), rules.timeout.as_secs(), rules.healthy_threshold, rules.unhealthy_threshold)
}

#[test]
fn health_checks_have_the_defaults_of_aws_if_one_of_them_is_set() {
    let ours = rules(&aws(&[]).look());
    assert_eq!((ours.interval.as_secs(), ours.healthy_threshold, ours.unhealthy_threshold), (2, 2, 3));
    assert_eq!(checks(&[("healthcheck-healthy-threshold", "3")]), (10, 5, 3, 6));
    assert_eq!(checks(&[("healthcheck-unhealthy-threshold", "4")]), (10, 5, 2, 4));
    assert_eq!(checks(&[("healthcheck-interval", "30")]), (30, 5, 2, 6));
    assert_eq!(checks(&[("healthcheck-timeout", "3")]), (10, 3, 2, 6));
    assert_eq!(checks(&[("healthcheck-interval", "5")]), (5, 4, 2, 6), "a check ends before the next begins");
}

#[test]
fn health_checks_have_the_ranges_of_aws() {
    for (key, fine, faulty, accepted) in [
        ("healthy-threshold", ["2", "10"], ["1", "11"], "a number from 2 to 10"),
        ("unhealthy-threshold", ["2", "10"], ["1", "11"], "a number from 2 to 10"),
        ("interval", ["5", "300"], ["4", "301"], "a number of seconds from 5 to 300"),
        (
            "timeout",
            ["2", "9"],
            ["1", "61"],
            "a number of seconds from 2 to 60, less than the interval of 10 s",
        ),
    ] {
        let key = format!("healthcheck-{key}");
        for value in fine {
            let (interval, timeout, healthy, unhealthy) = checks(&[(&key, value)]);
            let seen = match key.as_str() {
                "healthcheck-interval" => interval,
                "healthcheck-timeout" => timeout,
                "healthcheck-healthy-threshold" => u64::from(healthy),
                _ => u64::from(unhealthy),
            };
            assert_eq!(seen.to_string(), value, "{key}");
        }
        for value in faulty.into_iter().chain(["", "5s", "many", "+5"]) {
            let outcome = aws(&[(&key, value)]).look();
            let (reason, what, reported) = finding(&outcome);
            assert_eq!((reason, reported), (Reason::InvalidValue, accepted));
            assert_eq!(what, format!("annotation {AWS}{key}: {value:?} is invalid: the default is used"));
            let rules = rules(&outcome);
            assert_eq!(
                (rules.interval.as_secs(), rules.timeout.as_secs()),
                (10, 5),
                "the default is that of AWS"
            );
            assert_eq!((rules.healthy_threshold, rules.unhealthy_threshold), (2, 6));
        }
    }
}

#[test]
fn the_timeout_is_less_than_the_interval() {
    assert_eq!(checks(&[("healthcheck-interval", "61"), ("healthcheck-timeout", "60")]), (61, 60, 2, 6));
    for (interval, timeout) in [("10", "10"), ("20", "30")] {
        let outcome = aws(&[("healthcheck-interval", interval), ("healthcheck-timeout", timeout)]).look();
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::InvalidValue);
        assert!(what.contains(&format!("healthcheck-timeout: {timeout:?}")), "{what}");
        assert!(accepted.contains(&format!("less than the interval of {interval} s")), "{accepted}");
    }
}

#[test]
fn the_path_and_protocol_of_aws_health_checks_are_used() {
    let outcome = aws(&[("healthcheck-protocol", "HTTP"), ("healthcheck-path", "/ping")]).look();
    let urls: Vec<String> = outcome.targets.iter().map(ToString::to_string).collect();
    assert_eq!((urls, messages(&outcome)), (vec!["http://10.0.1.1:8080/ping".to_owned()], vec![]));
}

/// The drain time of a removed backend in seconds.
fn drains(annotations: &[(&str, &str)]) -> Option<u64> {
    let mut both = aws(annotations);
    let outcome = both.step();
    assert_eq!(messages(&outcome), [] as [String; 0], "{annotations:?}");
    both.both(|world| world.set_slices(vec![]));
    let ends = both.step().reconcile_at;
    ends.map(|at| (at - both.directory.now).as_secs())
}

#[test]
fn connection_draining_has_a_timeout_if_enabled() {
    assert_eq!(drains(&[]), Some(300));
    assert_eq!(drains(&[("connection-draining-enabled", "false")]), None, "no draining");
    assert_eq!(drains(&[("connection-draining-enabled", "true")]), Some(300));
    let timed = |value| [("connection-draining-enabled", "true"), ("connection-draining-timeout", value)];
    for (value, seconds) in [("1", 1), ("60", 60), ("3600", 3600)] {
        assert_eq!(drains(&timed(value)), Some(seconds));
    }
    for value in ["0", "3601", "1m"] {
        let outcome = aws(&timed(value)).look();
        assert_eq!(finding(&outcome).2, "a number of seconds from 1 to 3600");
        assert!(finding(&outcome).1.contains(&format!("connection-draining-timeout: {value:?}")));
    }
    let alone = aws(&[("connection-draining-timeout", "60")]).look();
    let (reason, what, accepted) = finding(&alone);
    assert!(what.contains("connection-draining-enabled is not \"true\""), "{what}");
    assert_eq!(
        (reason, accepted),
        (
            Reason::AliasIgnored,
            "aws-load-balancer-connection-draining-enabled: true in addition, or no annotation"
        )
    );
}

#[test]
fn the_idle_timeout_of_aws_is_that_of_tcp_flows() {
    for (value, seconds) in [("1", 1), ("350", 350), ("4000", 4000)] {
        let outcome = aws(&[("connection-idle-timeout", value)]).look();
        assert_eq!(only(&outcome).idle_timeout_tcp.as_secs(), seconds);
    }
}

#[test]
fn classic_defaults_with_a_network_load_balancer_type_are_reported() {
    for kind in ["nlb", "nlb-ip", "external"] {
        let outcome = aws(&[("type", kind), ("healthcheck-interval", "30")]).look();
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::AliasIgnored);
        assert!(
            what.starts_with(&format!("annotation {AWS}type has no effect: health checks use the defaults"))
                && what.contains(&format!("even with \"{kind}\"")),
            "{what}"
        );
        assert!(what.contains("a check every 10 s with a timeout of 5 s, 2 successes, 6 failures"), "{what}");
        assert!(accepted.contains("-healthy-threshold and -unhealthy-threshold"), "{accepted}");
        assert_eq!(rules(&outcome).interval.as_secs(), 30);
    }
    let all = [
        ("type", "nlb"),
        ("healthcheck-interval", "30"),
        ("healthcheck-timeout", "10"),
        ("healthcheck-healthy-threshold", "3"),
        ("healthcheck-unhealthy-threshold", "3"),
    ];
    assert_eq!(checks(&all), (30, 10, 3, 3), "explicit values are not defaults");
    assert_eq!(messages(&aws(&[("type", "nlb")]).look()), [] as [String; 0]);
}
