//! The weights of the backends of a Gateway's listener (Gateway API, `BackendRef.weight`).
//!
//! A route gives weights to Services. An endpoint's share of the new flows is the share of its Service, times its own
//! weight, divided by the sum of the weights of the Service's endpoints that take new flows. A Service without such an
//! endpoint, and an invalid reference, keep their share: these flows are rejected.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_model::objects::{EndpointShare, Port};

/// The share of all new flows in parts per million.
const ALL_PPM: u64 = 1_000_000;

/// The largest weight of a backend.
const WEIGHT_MAX: u128 = u16::MAX as u128;

/// The endpoints that take new flows, with their own weights.
pub(super) type Takers = BTreeMap<(IpAddr, Port), u16>;

/// The weights of the endpoints of a listener.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RouteWeights {
    /// The weight of each endpoint that takes new flows.
    pub(super) weights: BTreeMap<(IpAddr, Port), u16>,
    /// The share of new flows that is rejected, in parts per million.
    pub(super) rejected_ppm: u32,
}

/// Whether the route gives an endpoint a share of new flows.
pub(super) fn has_share(shares: &[EndpointShare], endpoint: (IpAddr, Port)) -> bool {
    shares.iter().any(|share| share.weight > 0 && share.endpoints.binary_search(&endpoint).is_ok())
}

/// Computes the weights. They are exact unless their ratios need more than 16 bits. Then each is at least 1, so that
/// every endpoint gets flows: a Service with a small share and many endpoints gets more than its share.
pub(super) fn weights(shares: &[EndpointShare], takers: &Takers) -> RouteWeights {
    let sums: Vec<u64> = shares
        .iter()
        .map(|share| {
            share.endpoints.iter().filter_map(|one| takers.get(one)).map(|own| u64::from(*own)).sum()
        })
        .collect();
    let total: u64 = shares.iter().map(|share| u64::from(share.weight)).sum();
    let rejected = shares.iter().zip(&sums).filter(|(_, sum)| **sum == 0).map(|(share, _)| share.weight);
    let rejected: u64 = rejected.map(u64::from).sum();
    // All shares as multiples of 1/common. Sums beyond 64 bits do not occur in practice; then the result is rounded.
    let common = sums.iter().filter(|sum| **sum > 0).fold(1_u128, |all, sum| {
        let next = lcm(all, u128::from(*sum));
        if next > u128::from(u64::MAX) { u128::from(u64::MAX) } else { next }
    });
    let mut exact: BTreeMap<(IpAddr, Port), u128> = BTreeMap::new();
    for (share, sum) in shares.iter().zip(&sums).filter(|(_, sum)| **sum > 0) {
        for endpoint in &share.endpoints {
            if let Some(own) = takers.get(endpoint) {
                let part = u128::from(share.weight) * u128::from(*own) * common / u128::from(*sum);
                *exact.entry(*endpoint).or_default() += part;
            }
        }
    }
    let divisor = exact.values().copied().fold(0, gcd).max(1);
    let largest = exact.values().copied().max().unwrap_or(0) / divisor;
    let fitted = |value: u128| {
        let value = value / divisor;
        match largest > WEIGHT_MAX {
            // A share that is not zero stays above zero.
            true if value > 0 => ((value * WEIGHT_MAX + largest / 2) / largest).max(1),
            _ => value,
        }
    };
    let weights = exact
        .into_iter()
        .map(|(endpoint, value)| (endpoint, u16::try_from(fitted(value)).unwrap_or(u16::MAX)));
    RouteWeights {
        weights: weights.collect(),
        rejected_ppm: u32::try_from((rejected * ALL_PPM).checked_div(total).unwrap_or(0)).unwrap_or(0),
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u128, b: u128) -> u128 {
    a / gcd(a, b) * b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(last: u8) -> (IpAddr, Port) {
        (IpAddr::from([10, 244, 0, last]), Port::new(8080).expect("not zero"))
    }

    fn share(weight: u32, endpoints: &[u8]) -> EndpointShare {
        EndpointShare { weight, endpoints: endpoints.iter().map(|last| endpoint(*last)).collect() }
    }

    fn result(shares: &[EndpointShare], takers: &[(u8, u16)]) -> (Vec<u16>, u32) {
        let takers = takers.iter().map(|(last, own)| (endpoint(*last), *own)).collect();
        let result = weights(shares, &takers);
        (result.weights.into_values().collect(), result.rejected_ppm)
    }

    #[test]
    fn a_single_service_keeps_the_weights_of_its_endpoints() {
        assert_eq!(result(&[share(1, &[1, 2])], &[(1, 1), (2, 1)]), (vec![1, 1], 0));
        assert_eq!(result(&[share(7, &[1, 2])], &[(1, 2), (2, 6)]), (vec![1, 3], 0));
    }

    #[test]
    fn weights_are_between_services_whatever_the_number_of_their_endpoints() {
        // 70 % over three endpoints, 30 % over one: 7/30 each, and 9/30.
        let shares = [share(70, &[1, 2, 3]), share(30, &[4]), share(0, &[5])];
        assert_eq!(result(&shares, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]), (vec![7, 7, 7, 9, 0], 0));
    }

    #[test]
    fn an_endpoint_of_two_services_has_both_shares() {
        assert_eq!(result(&[share(1, &[1]), share(1, &[1, 2])], &[(1, 1), (2, 1)]), (vec![3, 1], 0));
    }

    #[test]
    fn a_reference_without_endpoints_that_take_flows_is_rejected() {
        assert_eq!(result(&[share(80, &[]), share(20, &[1])], &[(1, 1)]), (vec![1], 800_000));
        assert_eq!(result(&[share(1, &[1]), share(2, &[2])], &[(1, 1)]), (vec![1], 666_666));
        assert_eq!(result(&[share(0, &[]), share(0, &[1])], &[(1, 1)]), (vec![0], 0));
        assert_eq!(result(&[], &[]), (vec![], 0));
    }

    #[test]
    fn large_weights_keep_their_ratio_and_no_share_vanishes() {
        let shares = [share(1_000_000, &[1]), share(1, &[2]), share(333_333, &[3, 4, 5, 6, 7, 8, 9])];
        let takers: Vec<(u8, u16)> = (1..=9).map(|last| (last, 1)).collect();
        let (weights, rejected) = result(&shares, &takers);
        assert_eq!((weights[0], weights[1], weights[2], rejected), (u16::MAX, 1, 3121, 0));
    }
}
