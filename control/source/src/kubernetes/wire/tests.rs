//! Responses with `null` or without a field, which an API server may send for every empty value.

use hyper::StatusCode;
use serde_json::json;

use super::*;
use crate::kubernetes::kinds::KINDS;

#[test]
fn a_list_is_empty_if_its_items_are_null_absent_or_none() {
    let metadata = json!({"resourceVersion": "7", "continue": null, "remainingItemCount": null});
    let lists = [
        json!({"metadata": metadata, "items": null}),
        json!({"metadata": metadata, "items": []}),
        json!({"metadata": metadata}),
    ];
    for list in lists {
        let text = list.to_string();
        for kind in KINDS {
            let page = parse_page(kind, text.as_bytes()).expect("a list");
            assert_eq!((page.items.len(), page.version.as_str(), page.next.as_str()), (0, "7", ""), "{text}");
        }
        let heads: Heads = serde_json::from_str(&text).expect("a list");
        assert_eq!((heads.items.len(), heads.metadata.resource_version.as_str()), (0, "7"), "{text}");
    }
    let status = r#"{"kind": "Status", "metadata": {}, "status": "Failure", "code": 500}"#;
    assert!(parse_page(&KINDS[0], status.as_bytes()).is_err(), "it is not a list");
}

#[test]
fn a_date_header_is_a_time() {
    assert_eq!(time_of("Thu, 26 Nov 2026 14:38:24 GMT"), "2026-11-26T14:38:24Z".parse().ok());
    assert_eq!(time_of("now"), None);
}

#[test]
fn a_refusal_keeps_its_message_whatever_else_is_null() {
    for details in [json!(null), json!({}), json!({"retryAfterSeconds": null, "causes": null})] {
        let status = json!({"message": "slow down", "reason": null, "code": 429, "details": details});
        let status = serde_json::from_value(status).expect("a Status");
        let fault = refusal(StatusCode::TOO_MANY_REQUESTS, None, status);
        let expected = Fault::Refused { code: 429, message: "slow down".to_owned(), retry_after: None };
        assert_eq!(fault, expected, "{details}");
    }
}
