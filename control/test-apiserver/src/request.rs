//! A parsed request (path, resource and object, query, headers) and its answer.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::access::User;
use crate::error::{ApiError, ApiResult};
use crate::form::Form;
use crate::resource::Resource;
use crate::selector::Selector;

/// A request with its authenticated user.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) body: Vec<u8>,
    pub(crate) user: User,
}

/// The resource or object that a path names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// A successful answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Object {
        code: u16,
        body: Value,
        warnings: Vec<String>,
    },
    /// The bytes of a list or of a non-JSON body, with their type.
    Bytes(&'static str, Vec<u8>),
    Watch(Box<WatchOrder>),
}

/// A watch to be opened.
#[derive(Debug)]
pub(crate) struct WatchOrder {
    pub(crate) resource: Resource,
    pub(crate) namespace: String,
    pub(crate) selector: Selector,
    pub(crate) form: Form,
    /// Changes after this version are sent.
    pub(crate) since: u64,
    /// Objects that are sent first, as added.
    pub(crate) initial: Vec<Arc<Value>>,
    /// A bookmark marks the end of `initial`.
    pub(crate) mark_initial_end: bool,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Duration,
}

impl Request {
    /// The first value of a query parameter; "" if it is absent.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.query.iter().find(|(one, _)| one == name).map_or("", |(_, value)| value)
    }

    /// The value of a boolean query parameter.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.query.iter().any(|(one, value)| one == name && matches!(value.as_str(), "true" | "1" | ""))
    }

    /// `fieldManager`, or the client's name up to the slash.
    pub(crate) fn manager(&self) -> &str {
        match self.param("fieldManager") {
            "" => self.user_agent.split('/').next().filter(|name| !name.is_empty()).unwrap_or("unknown"),
            manager => manager,
        }
    }

    /// Decodes the body as JSON or YAML.
    pub(crate) fn object(&self) -> ApiResult<Value> {
        if self.content_type.contains("protobuf") || self.content_type.contains("cbor") {
            return Err(ApiError::unsupported_media_type("application/json, application/yaml"));
        }
        let refuse =
            |error: String| ApiError::bad_request(format!("the object provided is unrecognized: {error}"));
        if self.content_type.contains("yaml") && !self.body.starts_with(b"{") {
            let text = std::str::from_utf8(&self.body).map_err(|error| refuse(error.to_string()))?;
            return serde_saphyr::from_str(text).map_err(|error| refuse(error.to_string()));
        }
        serde_json::from_slice(&self.body).map_err(|error| refuse(error.to_string()))
    }
}

/// Parses the path of a resource. `None` if it is another path.
pub(crate) fn target(path: &str) -> Option<Target> {
    let steps: Vec<String> = path.split('/').filter(|step| !step.is_empty()).map(percent_decoded).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let (group, version, rest) = match steps.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        // Subresources of the namespace itself.
        ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return None,
    };
    Some(Target {
        group: group.into(),
        version: version.into(),
        plural: plural.into(),
        namespace: namespace.into(),
        name: name.into(),
        subresource: subresource.into(),
    })
}

/// Parses a query.
pub(crate) fn query(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (percent_decoded(&name.replace('+', " ")), percent_decoded(&value.replace('+', " ")))
        })
        .collect()
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_their_target() {
        let parts = |path: &str| {
            let target = target(path).expect("a resource");
            [target.group, target.version, target.namespace, target.plural, target.name, target.subresource]
                .join("|")
        };
        assert_eq!(parts("/api/v1/services"), "|v1||services||");
        assert_eq!(parts("/api/v1/namespaces/a/services/b/status"), "|v1|a|services|b|status");
        assert_eq!(parts("/api/v1/namespaces"), "|v1||namespaces||");
        assert_eq!(parts("/api/v1/namespaces/a"), "|v1||namespaces|a|");
        assert_eq!(parts("/api/v1/namespaces/a/status"), "|v1||namespaces|a|status");
        assert_eq!(parts("/apis/tidegate.dev/v1/addresspools/x"), "tidegate.dev|v1||addresspools|x|");
        assert!(target("/metrics").is_none());
    }

    #[test]
    fn queries_are_decoded() {
        assert_eq!(
            query("labelSelector=a%20in%20(b%2Cc)&watch"),
            [("labelSelector".into(), "a in (b,c)".into()), ("watch".into(), String::new())]
        );
    }
}
