//! Expectations of the tests with nodes: the weights in the gateway, and the node that received the packet according to
//! the Pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tidegate_netlab::addresses as plan;
use tidegate_netlab::client::{BackendAnswer, spread};
use tidegate_netlab::modes::ModePath;
use tidegate_netlab::wait_for;

use super::{Pod, pod_address};
use crate::world::{APPLIED, World};

/// Waits until the gateway has these weights for these nodes, and no other node takes new flows.
pub(crate) fn wait_until_weighted(world: &World, path: ModePath, weights: &[(u8, u64)]) {
    let expected: BTreeSet<(String, u64)> =
        weights.iter().map(|(n, weight)| (plan::server(path.family, *n).to_string(), *weight)).collect();
    let mut seen = BTreeSet::new();
    let what = format!("{expected:?} for {} {}", path.label(), path.family);
    let waited = wait_for(&what, APPLIED, || {
        let ports = world.ports_at(path.vip).ok()?;
        seen = ports.iter().flat_map(active).collect();
        let all = ports.iter().all(|port| active(port).collect::<BTreeSet<_>>() == expected);
        (all && !ports.is_empty()).then_some(())
    });
    waited.unwrap_or_else(|error| panic!("{error:#}; seen last: {seen:?}"));
}

/// Address and weight of the backends that take new flows.
fn active(port: &serde_json::Value) -> impl Iterator<Item = (String, u64)> + '_ {
    let backends = port["backends"].as_array().into_iter().flatten();
    let active = backends.filter(|backend| backend["state"] == "active");
    active.filter_map(|b| Some((b["address"].as_str()?.to_owned(), b["weight"].as_u64()?)))
}

pub(crate) fn seen(answers: &[BackendAnswer]) -> BTreeSet<IpAddr> {
    answers.iter().map(|answer| answer.client.ip()).collect()
}

/// The nodes whose proxies masqueraded. A packet to a Pod of the same node leaves through the bridge, and one to
/// another node through the link. 0 stands for any other address.
pub(crate) fn masqueraded_by(path: ModePath, nodes: u8, answers: &[BackendAnswer]) -> BTreeSet<u8> {
    let node = |address: IpAddr| {
        (1..=nodes)
            .find(|n| [plan::server(path.family, *n), pod_address(path.family, *n, 0)].contains(&address))
    };
    seen(answers).into_iter().map(|address| node(address).unwrap_or(0)).collect()
}

pub(crate) fn assert_every_pod_answered(name: &str, answers: &[BackendAnswer], pods: &[Pod]) {
    let expected: BTreeSet<String> = pods.iter().map(Pod::name).collect();
    let answered: BTreeSet<String> = spread(answers).into_keys().collect();
    assert_eq!(answered, expected, "{name}: {:?}", spread(answers));
}
