//! Expands `${NODE_NAME}` and the addresses of the node in the values of a configuration.
//!
//! A DaemonSet gives every Pod the same file. Values that differ between nodes come from environment variables, which
//! the Pod sets with the downward API: `NODE_NAME` (`spec.nodeName`) and `NODE_IPS` (`status.hostIPs`, or `NODE_IP`:
//! `status.hostIP`). Any value in the file may contain `${NODE_NAME}`, `${NODE_IP}` (the first address),
//! `${NODE_IPV4}` and `${NODE_IPV6}`, also within other text: `"${NODE_IPV4}/24"`. Nothing else is expanded. `${`
//! with another name is an error, because it is probably a typo.

use std::net::IpAddr;

use crate::yaml::{Node, Position, Sheet, Value};

const ACCEPTED: &str = "${NODE_NAME}, ${NODE_IP}, ${NODE_IPV4}, ${NODE_IPV6}";

/// Expands the variables in every text. A fault is reported at its position, and the text stays unchanged.
pub(super) fn expand(sheet: &Sheet, root: &mut Node, environment: &dyn Fn(&str) -> Option<String>) {
    let at = root.at;
    match &mut root.value {
        Value::Sequence(items) => items.iter_mut().for_each(|item| expand(sheet, item, environment)),
        Value::Mapping(entries) => {
            entries.iter_mut().for_each(|entry| expand(sheet, &mut entry.node, environment));
        }
        Value::Scalar(scalar) => {
            if let Some(text) = expanded(sheet, at, &scalar.text, environment) {
                scalar.text = text;
            }
        }
    }
}

fn expanded(
    sheet: &Sheet,
    at: Position,
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    let (mut result, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find("${") {
        let Some(length) = rest[begin..].find('}') else {
            sheet.error(at, format!("{text:?}: ${{ is not closed with }}"), ACCEPTED);
            return None;
        };
        let name = &rest[begin + 2..begin + length];
        match value(name, environment) {
            Ok(value) => {
                result.push_str(&rest[..begin]);
                result.push_str(&value);
            }
            Err((why, accepted)) => {
                sheet.error(at, format!("{text:?}: {why}"), accepted);
                return None;
            }
        }
        rest = &rest[begin + length + 1..];
    }
    (rest.len() < text.len()).then(|| result + rest)
}

fn value(name: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, (String, String)> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    let unset = |what: &str, field: &str| {
        let accepted =
            format!("the environment variable {what}; a Pod sets it with the downward API ({field})");
        (format!("the environment variable {what} is not set"), accepted)
    };
    let addresses = || {
        let listed = set("NODE_IPS").or_else(|| set("NODE_IP"));
        let listed = listed.ok_or_else(|| unset("NODE_IPS", "status.hostIPs"))?;
        let addresses: Result<Vec<IpAddr>, _> = listed.split(',').map(|ip| ip.trim().parse()).collect();
        addresses.map_err(|_| {
            let accepted = "addresses separated by commas".to_owned();
            (
                format!("the environment variable NODE_IPS or NODE_IP is {listed:?}, which is not a list of addresses"),
                accepted,
            )
        })
    };
    let first = |is: fn(&IpAddr) -> bool, what: &str| {
        let addresses = addresses()?;
        let found = addresses.iter().find(|ip| is(ip)).map(ToString::to_string);
        found.ok_or_else(|| {
            let why = format!("the node has no {what}address ({addresses:?})");
            (why, format!("a node with an {what}address"))
        })
    };
    match name {
        "NODE_NAME" => set(name).ok_or_else(|| unset(name, "spec.nodeName")),
        "NODE_IP" => first(|_| true, ""),
        "NODE_IPV4" => first(IpAddr::is_ipv4, "IPv4 "),
        "NODE_IPV6" => first(IpAddr::is_ipv6, "IPv6 "),
        _ => Err((format!("${{{name}}} is not a known variable"), ACCEPTED.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expanded text, and the faults.
    fn read(text: &str, environment: &[(&str, &str)]) -> (String, String) {
        let sheet = Sheet::new("gateway.yaml");
        let mut documents = sheet.documents(&format!("metadata: {{name: '{text}'}}"));
        let lookup = |name: &str| {
            let found = environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        expand(&sheet, &mut documents[0], &lookup);
        let metadata = documents[0].entry("metadata").expect("it is written");
        let name =
            metadata.node.entry("name").expect("it is written").node.text().expect("a text").to_owned();
        (name, sheet.into_report().to_string())
    }

    #[test]
    fn variables_expand_to_the_name_and_addresses_of_the_node() {
        let environment = [("NODE_NAME", "node-7"), ("NODE_IPS", "192.0.2.7,2001:db8::7")];
        for (text, expected) in [
            ("${NODE_NAME}", "node-7"),
            ("edge-${NODE_NAME}-a", "edge-node-7-a"),
            ("${NODE_IP}/24", "192.0.2.7/24"),
            ("${NODE_IPV6}/64", "2001:db8::7/64"),
            ("plain $text }", "plain $text }"),
        ] {
            assert_eq!(read(text, &environment), (expected.to_owned(), String::new()), "{text}");
        }
        assert_eq!(read("${NODE_IPV4}", &[("NODE_IP", "192.0.2.7")]).0, "192.0.2.7");
    }

    #[test]
    fn an_unknown_variable_is_reported_at_its_position() {
        for (text, environment, expected) in [
            (
                "${NODE_NAME}",
                &[][..],
                "the environment variable NODE_NAME is not set; accepted: the environment variable NODE_NAME",
            ),
            ("${NODE_IPV6}", &[("NODE_IPS", "192.0.2.7")][..], "the node has no IPv6 address"),
            (
                "${HOSTNAME}",
                &[("HOSTNAME", "a")][..],
                "${HOSTNAME} is not a known variable; accepted: ${NODE_NAME}",
            ),
            ("${NODE_NAME", &[][..], "${ is not closed with }"),
            ("${NODE_IP}", &[("NODE_IP", "nowhere")][..], "NODE_IPS or NODE_IP is \"nowhere\""),
        ] {
            let (_, report) = read(text, environment);
            assert!(report.contains("gateway.yaml:1:18: error") && report.contains(expected), "{report}");
        }
    }
}
