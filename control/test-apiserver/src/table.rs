//! The `Table` format that kubectl prints: columns and cells of the built-in kinds, and of custom kinds from
//! `additionalPrinterColumns`. Also `PartialObjectMetadata`, the other format that clients may request.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::json_path;
use crate::resource::Resource;

/// The format in which a client requests objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Table,
    Metadata,
}

impl Form {
    /// Chooses from `Accept`: the first listed format that is supported.
    pub(crate) fn of(accept: &str) -> Self {
        for kind in accept.split(',') {
            if kind.contains("as=Table") && kind.contains("json") {
                return Self::Table;
            } else if kind.contains("as=PartialObjectMetadata") && kind.contains("json") {
                return Self::Metadata;
            } else if !kind.contains("as=") && (kind.contains("json") || kind.contains("*/*")) {
                return Self::Whole;
            }
        }
        Self::Whole
    }

    /// Renders an object in this format.
    pub(crate) fn object(self, resource: &Resource, object: &Value) -> Value {
        match self {
            Self::Whole => object.clone(),
            Self::Table => table(resource, [object], &object["metadata"]["resourceVersion"]),
            Self::Metadata => metadata_of(object),
        }
    }

    /// Renders a list in this format. `metadata` is that of the list.
    pub(crate) fn list(self, resource: &Resource, items: &[Value], metadata: &Value) -> Value {
        match self {
            Self::Whole => json!({
                "kind": resource.list_kind, "apiVersion": resource.api_version(), "metadata": metadata,
                "items": items,
            }),
            Self::Table => {
                let mut table = table(resource, items, &Value::Null);
                table["metadata"] = metadata.clone();
                table
            }
            // An empty list is null, as kube-apiserver writes it here, though not in the other formats.
            Self::Metadata => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "items": (!items.is_empty()).then(|| items.iter().map(metadata_of).collect::<Vec<_>>()),
            }),
        }
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn table<'a>(resource: &Resource, objects: impl IntoIterator<Item = &'a Value>, version: &Value) -> Value {
    let columns = columns(resource);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name, "type": column.kind, "priority": column.priority, "description": column.name,
                "format": if column.name == "Name" { "name" } else { "" },
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object)).collect();
            json!({"cells": cells, "object": metadata_of(object)})
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions, "rows": rows,
    })
}

type Cell<'a> = Box<dyn Fn(&Value) -> Value + 'a>;

struct Column<'a> {
    name: String,
    kind: String,
    priority: u64,
    cell: Cell<'a>,
}

fn columns(resource: &Resource) -> Vec<Column<'_>> {
    let mut columns = vec![column("Name", 0, |object| object["metadata"]["name"].clone())];
    if let Some(custom) = &resource.custom {
        for column in &custom.columns {
            columns.push(custom_column(column));
        }
        if custom.columns.is_empty() {
            columns.push(age());
        }
        return columns;
    }
    match resource.kind.as_str() {
        "Service" => columns.extend([
            column("Type", 0, |object| object["spec"]["type"].clone()),
            column("Cluster-IP", 0, |object| or(&object["spec"]["clusterIP"], "<none>")),
            column("External-IP", 0, external_ip),
            column("Port(s)", 0, ports),
            age(),
            column("Selector", 1, |object| pairs(&object["spec"]["selector"])),
        ]),
        "Node" => columns.extend([
            column("Status", 0, node_status),
            age(),
            column("Internal-IP", 1, |object| node_address(object, "InternalIP")),
        ]),
        "Namespace" => {
            columns.extend([column("Status", 0, |object| object["status"]["phase"].clone()), age()]);
        }
        "Pod" => columns.extend([
            column("Status", 0, |object| or(&object["status"]["phase"], "Unknown")),
            age(),
            column("IP", 1, |object| or(&object["status"]["podIP"], "<none>")),
            column("Node", 1, |object| or(&object["spec"]["nodeName"], "<none>")),
        ]),
        "EndpointSlice" => columns.extend([
            column("AddressType", 0, |object| object["addressType"].clone()),
            column("Ports", 0, |object| joined(&object["ports"], |port| port["port"].to_string())),
            column("Endpoints", 0, |object| {
                joined(&object["endpoints"], |endpoint| text(&endpoint["addresses"][0]))
            }),
            age(),
        ]),
        "Event" => {
            columns.clear();
            columns.extend([
                column("Last Seen", 0, |object| {
                    let seen = [&object["lastTimestamp"], &object["eventTime"], &object["firstTimestamp"]];
                    human_age(seen.into_iter().find(|time| time.is_string()).unwrap_or(&Value::Null))
                }),
                column("Type", 0, |object| object["type"].clone()),
                column("Reason", 0, |object| object["reason"].clone()),
                column("Object", 0, |object| {
                    let about = &object["involvedObject"];
                    format!("{}/{}", text(&about["kind"]).to_lowercase(), text(&about["name"])).into()
                }),
                column("Message", 0, |object| object["message"].clone()),
                column("Name", 1, |object| object["metadata"]["name"].clone()),
            ]);
        }
        "Lease" => {
            columns.extend([column("Holder", 0, |object| or(&object["spec"]["holderIdentity"], "")), age()]);
        }
        "CustomResourceDefinition" => {
            columns.push(column("Created At", 0, |object| object["metadata"]["creationTimestamp"].clone()));
        }
        _ => columns.push(age()),
    }
    columns
}

fn column<'a>(name: &str, priority: u64, cell: impl Fn(&Value) -> Value + 'a) -> Column<'a> {
    Column { name: name.into(), kind: "string".into(), priority, cell: Box::new(cell) }
}

fn age<'a>() -> Column<'a> {
    column("Age", 0, |object| human_age(&object["metadata"]["creationTimestamp"]))
}

fn custom_column(definition: &Value) -> Column<'_> {
    let kind = text(&definition["type"]);
    let path = definition["jsonPath"].as_str().unwrap_or_default();
    let is_date = kind == "date";
    let cell = move |object: &Value| {
        let found = json_path::find(object, path);
        match found.as_slice() {
            [] => Value::Null,
            [one] if is_date => human_age(one),
            [one @ (Value::Bool(_) | Value::Number(_))] => Value::clone(one),
            // A date column shows the age. If a path selects several values, the first is shown, as in kubectl.
            [one, ..] => match one {
                Value::String(text) => text.clone().into(),
                other => other.to_string().into(),
            },
        }
    };
    Column {
        name: text(&definition["name"]),
        kind,
        priority: definition["priority"].as_u64().unwrap_or(0),
        cell: Box::new(cell),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().into()
}

fn or(value: &Value, other: &str) -> Value {
    if value.is_null() { other.into() } else { value.clone() }
}

fn joined(list: &Value, word: impl Fn(&Value) -> String) -> Value {
    let words: Vec<String> = list.as_array().into_iter().flatten().map(word).collect();
    match words.len() {
        0 => "<unset>".into(),
        1..=3 => words.join(",").into(),
        more => format!("{} + {} more...", words[..3].join(","), more - 3).into(),
    }
}

fn pairs(map: &Value) -> Value {
    let words: Vec<String> =
        map.as_object().into_iter().flatten().map(|(key, value)| format!("{key}={}", text(value))).collect();
    if words.is_empty() { "<none>".into() } else { words.join(",").into() }
}

fn external_ip(service: &Value) -> Value {
    let of = |list: &Value, name: Option<&str>| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .map(|one| name.map_or_else(|| text(one), |name| text(&one[name])))
            .collect()
    };
    let mut addresses = of(&service["spec"]["externalIPs"], None);
    let is_balancer = service["spec"]["type"] == "LoadBalancer";
    if is_balancer {
        addresses.splice(0..0, of(&service["status"]["loadBalancer"]["ingress"], Some("ip")));
    }
    match (addresses.is_empty(), is_balancer) {
        (false, _) => addresses.join(",").into(),
        (true, true) => "<pending>".into(),
        (true, false) => "<none>".into(),
    }
}

fn ports(service: &Value) -> Value {
    let words: Vec<String> = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| match port["nodePort"].as_u64() {
            Some(node_port) => format!("{}:{node_port}/{}", port["port"], text(&port["protocol"])),
            None => format!("{}/{}", port["port"], text(&port["protocol"])),
        })
        .collect();
    if words.is_empty() { "<none>".into() } else { words.join(",").into() }
}

fn node_status(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|one| one["type"] == "Ready");
    let mut word = match ready.map(|one| one["status"] == "True") {
        Some(true) => "Ready".to_string(),
        Some(false) => "NotReady".into(),
        None => "Unknown".into(),
    };
    if node["spec"]["unschedulable"] == true {
        word.push_str(",SchedulingDisabled");
    }
    word.into()
}

fn node_address(node: &Value, kind: &str) -> Value {
    let addresses = node["status"]["addresses"].as_array();
    let found = addresses.into_iter().flatten().find(|one| one["type"] == kind);
    found.map_or("<none>".into(), |one| one["address"].clone())
}

/// The age of a time, in the format of kubectl: `5d3h`, `12m`.
fn human_age(time: &Value) -> Value {
    let Some(then) = time.as_str().and_then(|time| time.parse::<Timestamp>().ok()) else {
        return "<unknown>".into();
    };
    let seconds = Timestamp::now().as_second().saturating_sub(then.as_second()).max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |big: i64, letter: &str, small: i64, small_letter: &str| {
        if small == 0 { format!("{big}{letter}") } else { format!("{big}{letter}{small}{small_letter}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () => format!("{days}d"),
    }
    .into()
}
