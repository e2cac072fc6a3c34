//! Parses the answer of an HTTP server in a lab, for answers that are compared exactly.

use std::collections::BTreeMap;
use tidegate_netlab::Namespace;
use tidegate_netlab::client::curl;

/// An answer; the names of its headers are in lower case.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// The answer to `GET url` from a namespace within some seconds.
pub(crate) fn get(from: &Namespace, url: &str, seconds: u8) -> Option<Answer> {
    let text = curl(from, &["-i", "--max-time", &seconds.to_string(), url]).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers =
        lines.filter_map(|line| line.split_once(": ")).map(|(k, v)| (k.to_lowercase(), v.to_owned()));
    Some(Answer { status, headers: headers.collect(), body: body.to_owned() })
}
