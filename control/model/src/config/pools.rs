//! `pools`: the addresses that Services can get, and the rules that decide which Services may get them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::announce;
use super::dataplane::once;
use crate::objects::{AddressRange, AnnounceMethods, Expression, Labels, Operator, Pool, Selector};
use crate::yaml::{Field, Fields, Unknown, text};

/// Reads `pools`. [`super::keys`] describes the keys.
pub(super) fn decode(parent: &Fields<'_>) -> Vec<Pool> {
    let mut names = BTreeMap::new();
    let mut seen: Vec<(AddressRange, String)> = Vec::new();
    parent.sections("pools", |fields| {
        let name = fields.required("name", NAME).and_then(|f| {
            let name = f.string_where(text::is_rfc1123_subdomain, NAME)?.to_owned();
            once(&mut names, name.clone(), &f).then_some(name)
        });
        let mut pool = pool(fields, name.unwrap_or_default(), &mut seen);
        pool.labels = fields.get("labels").map(|f| f.labels()).unwrap_or_default();
        Some(pool)
    })
}

/// Reads the keys that pools of the configuration and `AddressPool` objects have in common. `seen` contains the
/// ranges so far with their locations; an overlap is a warning. The caller reads the labels, which an object has in
/// its metadata.
///
/// An invalid value grants less than any valid value, because an `AddressPool` that an older API server accepted must
/// not grant more than intended.
pub fn pool(fields: &Fields<'_>, name: String, seen: &mut Vec<(AddressRange, String)>) -> Pool {
    let flag = |key, absent, broken| fields.get(key).map_or(absent, |f| f.boolean().unwrap_or(broken));
    let methods = announce_methods(fields.get("announce"));
    let sheet = fields.itself().sheet;
    let before = sheet.errors();
    let routes = announce::of_pool(fields);
    // A missing community may be what keeps a route within a network.
    let is_readable = sheet.errors() == before;
    Pool {
        name,
        ranges: addresses(fields, seen),
        auto_assign: flag("autoAssign", true, false),
        external_ips: flag("externalIPs", false, false),
        disabled: flag("disabled", false, true),
        namespace_selector: selector(fields.get("namespaceSelector")),
        service_selector: selector(fields.get("serviceSelector")),
        quota_per_namespace: fields.get("quotaPerNamespace").map(|f| f.integer(1..=u32::MAX).unwrap_or(0)),
        shared_across_namespaces: flag("shareAcrossNamespaces", false, false),
        force_release: flag("forceRelease", false, false),
        gateway_selector: selector(fields.get("gatewaySelector")),
        announce: AnnounceMethods { bgp: methods.bgp && is_readable, ..methods },
        routes,
        labels: Labels::new(),
    }
}

const NAME: &str = "a name of a-z, 0-9, - and . (RFC 1123)";
const ADDRESSES: &str =
    "an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20";

fn addresses(fields: &Fields<'_>, seen: &mut Vec<(AddressRange, String)>) -> Vec<AddressRange> {
    let Some(list) = fields.required("addresses", ADDRESSES) else { return Vec::new() };
    let items = list.list();
    if items.is_empty() {
        list.error("the list is empty", ADDRESSES);
    }
    let mut ranges = Vec::new();
    for item in &items {
        let Some(range) = address_range(item) else { continue };
        if let Some((other, location)) = seen.iter().find(|(other, _)| other.overlaps(&range)) {
            item.warning(format_args!("overlaps {other} at {location}"), "ranges that do not overlap");
        }
        seen.push((range, item.path.clone()));
        ranges.push(range);
    }
    ranges
}

fn address_range(field: &Field<'_>) -> Option<AddressRange> {
    let written = field.string()?;
    let range = if written.contains('-') {
        let range = text::ip_range(written).and_then(|(first, last)| AddressRange::new(first, last));
        if range.is_none() {
            field.error(format_args!("{written:?} is not a range"), ADDRESSES);
        }
        range?
    } else if written.contains('/') {
        AddressRange::from(field.network()?)
    } else {
        let ip = field.parsed(|t| t.parse().ok(), ADDRESSES)?;
        AddressRange::new(ip, ip)?
    };
    if let Some(why) = unusable(range.first()).or_else(|| unusable(range.last())) {
        field.error(
            format_args!("{written} contains {why} addresses"),
            "unicast addresses that clients can send to",
        );
        return None;
    }
    Some(range)
}

/// Why clients cannot send to an address.
fn unusable(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("IPv4-mapped"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("broadcast"),
        _ => crate::objects::refused_endpoint(ip),
    }
}

const LABEL_KEY: &str =
    "a name of up to 63 letters, digits, '-', '_' and '.', after an optional prefix such as example.org/";
const LABEL_VALUE: &str = "up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends";

/// `{matchLabels, matchExpressions}`. An absent selector selects everything, and a selector with a fault selects
/// nothing.
pub fn selector(field: Option<Field<'_>>) -> Selector {
    let Some(field) = field else { return Selector::default() };
    let before = field.sheet.errors();
    let selector = read_selector(&field);
    if field.sheet.errors() == before { selector } else { Selector::none() }
}

fn read_selector(field: &Field<'_>) -> Selector {
    let Some(fields) = field.fields() else { return Selector::none() };
    // A label that no object can have selects nothing, which is never intended.
    fields.whole(Unknown::Refused, |fields| Selector {
        match_labels: fields.get("matchLabels").map(|f| valid_labels(&f)).unwrap_or_default(),
        match_expressions: fields.sections("matchExpressions", expression),
    })
}

/// Reads labels, and reports an error for each label that no object can have.
pub(super) fn valid_labels(field: &Field<'_>) -> Labels {
    let labels = field.labels();
    for (key, value) in &labels {
        if !text::is_qualified_name(key) {
            field.error(format_args!("{key:?} is not a valid label key"), LABEL_KEY);
        } else if !text::is_label_value(value) {
            field.error(format_args!("{value:?} is not a valid value of the label {key}"), LABEL_VALUE);
        }
    }
    labels
}

/// `[l2, bgp]`; if absent, both. A list with a fault announces nothing.
fn announce_methods(field: Option<Field<'_>>) -> AnnounceMethods {
    let Some(field) = field else { return AnnounceMethods::default() };
    let before = field.sheet.errors();
    let choices = [("l2", true), ("bgp", false)];
    let methods: Vec<_> = field.list().iter().filter_map(|method| method.one_of(&choices)).collect();
    if field.sheet.errors() > before {
        return AnnounceMethods::NONE;
    }
    AnnounceMethods { l2: methods.contains(&true), bgp: methods.contains(&false) }
}

fn expression(fields: &Fields<'_>) -> Option<Expression> {
    let key = fields
        .required("key", "a label key")
        .and_then(|f| f.string_where(text::is_qualified_name, "a label key"))
        .map(str::to_owned);
    let values_field = fields.get("values");
    let values = fields.each("values", |value| value.string().map(str::to_owned));
    if let (Some(field), Some(value)) =
        (&values_field, values.iter().find(|value| !text::is_label_value(value)))
    {
        field.error(format_args!("{value:?} is not a valid label value"), LABEL_VALUE);
    }
    type Make = fn(Vec<String>) -> Operator;
    let choices: [(&str, Make); 4] = [
        ("In", Operator::In),
        ("NotIn", Operator::NotIn),
        ("Exists", |_| Operator::Exists),
        ("DoesNotExist", |_| Operator::DoesNotExist),
    ];
    let operator = fields.required("operator", "In, NotIn, Exists, DoesNotExist");
    let operator = operator.and_then(|f| f.one_of(&choices)).map(|of| of(values.clone()));
    if let Some(operator) = &operator {
        let wanted = matches!(operator, Operator::In(_) | Operator::NotIn(_));
        if wanted && values_field.is_none() {
            fields.itself().error("values is missing", "at least one value for In and NotIn");
        } else if let Some(values_field) = values_field
            && (wanted == values.is_empty())
        {
            values_field.error(
                "the number of values does not fit the operator",
                "at least one value for In and NotIn, no values for Exists and DoesNotExist",
            );
        }
    }
    Some(Expression { key: key?, operator: operator? })
}
