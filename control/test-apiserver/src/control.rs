//! The switches over HTTP, for the binary: `POST /test-control/NAME?...`. The user must be in `system:masters`.
//!
//! `slow?milliseconds=`, `too-many-requests?seconds=`, `server-error?code=`, `unauthorized`, `cut`, `hang`, each with
//! `method=`, `path=`, `times=`; `silence-watches`, `duplicate-events`, `reorder-events`, `withhold-bookmarks` with
//! `on=true|false`; `end-watches`, `cut-watches`, `compact`, `clear`; `expire-token?token=`; `restart-empty`.

use std::time::Duration;

use serde_json::json;

use crate::api::{Api, ok};
use crate::error::{ApiError, ApiResult};
use crate::faults::{Fault, Rule};
use crate::request::{Answer, Request};
use crate::shared::Shared;

/// Handles a request to a switch.
pub(crate) fn handle(shared: &Shared, request: &Request) -> ApiResult<Answer> {
    if !request.user.groups.iter().any(|group| group == "system:masters") || request.method != "POST" {
        return Err(ApiError::forbidden_path(&request.user.name, "post", &request.path));
    }
    let number = |name: &str, default: u32| request.param(name).parse().unwrap_or(default);
    let on = request.param("on") != "false";
    let faults = &shared.faults;
    let rule = |fault| {
        faults.add(Rule {
            method: request.param("method").into(),
            path: request.param("path").into(),
            fault,
            times: request.param("times").parse().ok(),
        });
    };
    match request.path.trim_start_matches("/test-control/") {
        "slow" => rule(Fault::Slow(Duration::from_millis(number("milliseconds", 1_000).into()))),
        "too-many-requests" => rule(Fault::TooManyRequests(number("seconds", 1))),
        "server-error" => rule(Fault::ServerError(u16::try_from(number("code", 500)).unwrap_or(500))),
        "unauthorized" => rule(Fault::Unauthorized),
        "cut" => rule(Fault::CutInMidObject),
        "hang" => rule(Fault::Hang),
        "silence-watches" => faults.silence_watches(on),
        "duplicate-events" => faults.duplicate_events(on),
        "reorder-events" => faults.reorder_events(on),
        "withhold-bookmarks" => faults.withhold_bookmarks(on),
        "end-watches" => faults.end_watches(),
        "cut-watches" => faults.cut_watches(),
        "clear" => faults.clear(),
        "compact" => shared.api().store.compact(),
        "expire-token" => {
            let mut tokens = shared.tokens.lock().expect("nothing panics while the tokens are locked");
            tokens.insert(request.param("token").into(), None);
        }
        "restart-empty" => {
            let features = shared.api().features;
            *shared.api() = Api::new(features, 1);
            faults.end_watches();
        }
        _ => return Err(ApiError::no_such_path()),
    }
    Ok(ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})))
}
