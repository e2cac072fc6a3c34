//! The families of Services with limits.

use std::num::NonZeroU32;

use tidegate_pipeline::testing::builder::Builder;
use tidegate_pipeline::testing::lab::{self, Lab};
use tidegate_spec::{ForwardingMode, Protocol, ServiceLimits, ServiceSpec};

use super::*;

/// The Services with limits of a gateway: one, with two connections, that refused three.
pub(super) fn limited() -> Vec<LimitedService> {
    let limits = ServiceLimits { connections: NonZeroU32::new(2), ..ServiceLimits::default() };
    let web = lab::service(ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.5:80", &["10.0.0.1:80"]);
    let mut lab = Lab::new(vec![ServiceSpec { limits, ..web }]);
    for port in 1..=5 {
        lab.send(Builder::udp((lab::ip("198.51.100.7"), port), "203.0.113.5:80"));
    }
    lab.pipeline.report_limits(&lab.snapshot);
    lab.snapshot.limited_services().to_vec()
}

#[test]
fn series_of_services_with_limits_exist_from_the_start() {
    let (world, limited) = (world(), limited());
    let dataplane = DataplaneSample { limited: &limited, ..world.sample().dataplane };
    let page = Page::parse(&render(&Sample { dataplane, ..world.sample() }));
    let web = [("namespace", "default"), ("service", "web")];
    assert_eq!(page.value("tidegate_service_connections", &web), 2.0);
    assert_eq!(page.value("tidegate_service_connections_max", &web), 2.0);
    for (reason, count) in
        [("service_connections", 3.0), ("service_connection_rate", 0.0), ("service_bandwidth", 0.0)]
    {
        let labels = [web[0], web[1], ("reason", reason)];
        assert_eq!(page.value("tidegate_service_limit_drops_total", &labels), count, "{reason}");
    }
    assert_eq!(world.page().of("tidegate_service_connections").count(), 0, "no Service has limits");
}
