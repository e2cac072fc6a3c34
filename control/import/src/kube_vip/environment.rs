//! The environment variables of kube-vip.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use tidegate_model::yaml::{Field, Node, Value};

use crate::bgp;
use crate::note::{NoteKind, Notes};

/// Variables by which a container of kube-vip is found.
const FOUND_BY: [&str; 5] = ["vip_arp", "bgp_enable", "svc_enable", "cp_enable", "vip_routingtable"];

const INTERFACES: &str = "the gateway uses its dataplane.interfaces";
const LEASE: &str =
    "announce.l2.lease has the timers of the Leases, announce.l2.mode another way to elect the owner";
const CONTROL_PLANE: &str = "the address of the control plane is not a Service; keep kube-vip for it";

/// Why variables are not converted.
const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    ("vip_interface", INTERFACES),
    ("vip_servicesinterface", INTERFACES),
    ("vip_cidr", "a VIP is a single address"),
    ("vip_subnet", "a VIP is a single address"),
    ("vip_leaderelection", LEASE),
    ("vip_leasename", LEASE),
    ("vip_leaseduration", LEASE),
    ("vip_renewdeadline", LEASE),
    ("vip_retryperiod", LEASE),
    ("svc_election", LEASE),
    ("svc_leasename", LEASE),
    ("svc_namespace", "pools select namespaces"),
    ("address", CONTROL_PLANE),
    ("vip_address", CONTROL_PLANE),
    ("port", CONTROL_PLANE),
    ("cp_enable", CONTROL_PLANE),
    ("cp_namespace", CONTROL_PLANE),
    ("lb_enable", CONTROL_PLANE),
    ("lb_port", CONTROL_PLANE),
    ("lb_fwdmethod", CONTROL_PLANE),
    ("prometheus_server", "admin.listen is the address of the metrics"),
    ("bgp_sourceif", bgp::SOURCE_ADDRESS),
    ("bgp_sourceip", bgp::SOURCE_ADDRESS),
    ("lb_class_name", "the class of Services is source.kubernetes.loadBalancerClass"),
];

/// One variable.
pub(super) struct Variable<'a> {
    name: &'a str,
    /// Its value, or the item of the list if it has none.
    pub(super) field: Field<'a>,
    /// The value; empty if it has none.
    pub(super) value: &'a str,
    /// Whether the value is in another object, such as a Secret.
    is_elsewhere: bool,
}

/// The variables of a container.
pub(super) struct Environment<'a> {
    variables: Vec<Variable<'a>>,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Environment<'a> {
    /// The environment of a container; `None` if it is not one of kube-vip.
    pub(super) fn of(container: &Field<'a>, notes: &Notes) -> Option<Self> {
        let is_known = |item: &Node| {
            item.entry("name").and_then(|name| name.node.text()).is_some_and(|name| FOUND_BY.contains(&name))
        };
        let env = &container.node.entry("env")?.node.value;
        if !matches!(env, Value::Sequence(items) if items.iter().any(is_known)) {
            return None;
        }
        let variables = container.fields()?.items("env").into_iter().filter_map(|item| {
            let fields = item.fields()?;
            let name = fields.required("name", "the name of a variable")?.string()?;
            let value = fields.get("value");
            // The value may be a password, which errors must not repeat.
            let text = value
                .as_ref()
                .and_then(|value| value.secret("the value of the variable"))
                .unwrap_or_default();
            notes.key(
                NoteKind::Decide,
                &fields,
                "valueFrom",
                format_args!("the value of {name} is not in the input"),
            );
            notes.rest(&fields);
            let is_elsewhere = fields.get("valueFrom").is_some();
            Some(Variable { name, field: value.unwrap_or(item), value: text.trim(), is_elsewhere })
        });
        Some(Self { variables: variables.collect(), read: RefCell::default() })
    }

    /// A variable that is not empty.
    pub(super) fn get(&self, name: &'static str) -> Option<&Variable<'a>> {
        self.read.borrow_mut().insert(name);
        self.variables.iter().find(|variable| variable.name == name && !variable.value.is_empty())
    }

    /// Whether a variable has a value, perhaps in another object.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.read.borrow_mut().insert(name);
        self.variables.iter().any(|v| v.name == name && (v.is_elsewhere || !v.value.is_empty()))
    }

    /// A boolean, as kube-vip reads it.
    pub(super) fn flag(&self, name: &'static str) -> Option<bool> {
        let variable = self.get(name)?;
        let read = boolean(variable.value);
        if read.is_none() {
            variable.field.error(
                format_args!("{name}: {:?} is not a boolean", variable.value),
                "\"true\" or \"false\"",
            );
        }
        read
    }

    /// A number.
    pub(super) fn number(&self, name: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let variable = self.get(name)?;
        let read = variable.value.parse().ok().filter(|number| range.contains(number));
        if read.is_none() {
            let accepted = format!("a whole number from {} to {}, in quotes", range.start(), range.end());
            variable.field.error(format_args!("{name}: {:?} is not accepted", variable.value), accepted);
        }
        read
    }

    /// Reports the variables that were not read, unless they are off.
    pub(super) fn rest(&self, notes: &Notes) {
        let read = self.read.borrow();
        for Variable { name, field, value, .. } in &self.variables {
            if read.contains(name) || value.is_empty() || boolean(value) == Some(false) && !is_number(value) {
                continue;
            }
            let why = WITHOUT_COUNTERPART.iter().find(|(known, _)| known == name);
            let why = why.map_or("not converted", |(_, why)| why);
            notes.add(NoteKind::NoCounterpart, field, format_args!("{name}: {why}"));
        }
    }
}

fn is_number(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit())
}

/// The spellings that Go's `strconv.ParseBool` accepts.
pub(super) fn boolean(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
