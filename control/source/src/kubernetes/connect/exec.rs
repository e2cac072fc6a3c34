//! Runs a credential plugin: the program in `exec` of a kubeconfig user (client.authentication.k8s.io).
//!
//! [`run`] starts it, waits with a time limit, and parses the ExecCredential that it prints. It has no terminal.
//! `connect` calls it on a thread that may block, and keeps the result until it expires.
//!
//! The client library runs plugins, too (kube-client 5.0.0, `client/auth/mod.rs`), but waits for them without a limit,
//! leaves their child processes running, and shows their whole output, with the token, if they fail.
//!
//! Invariant: the plugin's standard output and its environment are secrets, so no message contains them. Neither the
//! plugin nor a program that it started in its process group outlives [`run`].

use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Accepted versions of the ExecCredential. v1alpha1 was removed in Kubernetes 1.24.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The maximum wait for a plugin.
pub(super) const PLUGIN_MAX: Duration = Duration::from_secs(20);
/// The maximum size of an ExecCredential.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;
/// The maximum length of a plugin's error message in reports, in characters.
const ERROR_CHARS_MAX: usize = 300;

/// The credentials from a plugin.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Bearer token.
    pub(super) token: Option<String>,
    /// Client certificate and its key, PEM.
    pub(super) certificate: Option<(String, String)>,
    /// When they expire; `None` if never.
    pub(super) expires: Option<Timestamp>,
}

/// Runs the plugin of a user.
///
/// # Errors
/// An unsupported part of the configuration, or a fault of the plugin.
pub(super) fn run(exec: &ExecConfig, limit: Duration) -> Result<Credentials, String> {
    let command = exec.command.as_deref().filter(|command| !command.is_empty());
    let command = command.ok_or("exec plugin: command is missing; accepted: a program")?;
    let fault = |what: String| format!("exec plugin {command}: {what}");
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(fault(
            "it needs a terminal (interactiveMode: Always), which a gateway does not have; accepted: Never, IfAvailable"
                .into(),
        ));
    }
    let version = exec.api_version.as_deref().unwrap_or_default();
    if !VERSIONS.contains(&version) {
        let accepted = VERSIONS.join(", ");
        return Err(fault(format!("apiVersion {version:?} is not supported; accepted: {accepted}")));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| fault(error.to_string()))?;
    let Ended { status, output, stderr } = runtime.block_on(async {
        let mut child = Command::from(prepared(exec, command, version)).spawn().map_err(|error| {
            let hint = exec.install_hint.as_deref().map(|hint| format!("; {}", hint.trim()));
            fault(format!("it cannot be started: {error}{}", hint.unwrap_or_default()))
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let ended = wait(&mut child, limit).await;
        // End all programs that it started, and the plugin itself if it timed out.
        if let Some(group) = group {
            // Usually there is no process to kill.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait().await;
        ended.map_err(&fault)
    })?;
    if !status.success() {
        return Err(fault(format!("it failed ({status}): {}", last_line(&stderr))));
    }
    read(&output, version).map_err(fault)
}

fn prepared(exec: &ExecConfig, command: &str, version: &str) -> std::process::Command {
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = serde_json::to_value(cluster).expect("texts and flags");
    }
    let info = json!({"apiVersion": version, "kind": "ExecCredential", "spec": spec});
    let mut prepared = std::process::Command::new(command);
    prepared.args(exec.args.iter().flatten());
    let pairs = exec.env.iter().flatten();
    prepared.envs(pairs.filter_map(|pair| Some((pair.get("name")?, pair.get("value")?))));
    prepared.env("KUBERNETES_EXEC_INFO", info.to_string());
    prepared.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Use a separate process group, so that the plugin can be ended with all programs that it started, and doesn't
    // receive a Ctrl-C that is meant for the gateway.
    prepared.process_group(0);
    prepared
}

/// A plugin that exited on its own.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    stderr: Vec<u8>,
}

/// Waits until the plugin has exited and its streams are closed, which a program that it started may keep open.
async fn wait(child: &mut Child, limit: Duration) -> Result<Ended, String> {
    let (output, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::join!(child.wait(), bytes_of(output), bytes_of(stderr)) };
    match timeout(limit, ended).await {
        Ok((status, output, stderr)) => {
            Ok(Ended { status: status.map_err(|error| error.to_string())?, output, stderr })
        }
        Err(_) => Err(format!("it did not exit within {} s", limit.as_secs())),
    }
}

/// Reads a stream to its end, or up to the maximum size. If it breaks, the result is what was read so far.
async fn bytes_of(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let _ = stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
    }
    bytes
}

/// The last line that is not empty, truncated.
fn last_line(stderr: &[u8]) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    let last = stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map_or_else(
        || "it printed no error message".to_owned(),
        |line| line.chars().take(ERROR_CHARS_MAX).collect(),
    )
}

fn read(output: &[u8], version: &str) -> Result<Credentials, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ExecCredential {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
        status: Option<Status>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        token: Option<String>,
        client_certificate_data: Option<String>,
        client_key_data: Option<String>,
        expiration_timestamp: Option<Timestamp>,
    }
    // Only the position of the error, without any of the text.
    let read: ExecCredential = serde_json::from_slice(output).map_err(|error| {
        format!("it printed no ExecCredential (line {}, column {})", error.line(), error.column())
    })?;
    if (read.kind.as_str(), read.api_version.as_str()) != ("ExecCredential", version) {
        return Err(format!(
            "it printed kind {:?} of apiVersion {:?}; accepted: kind ExecCredential of apiVersion {version}",
            read.kind, read.api_version
        ));
    }
    let status = read.status.ok_or("the ExecCredential that it printed has no status")?;
    let certificate = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(
                "it printed only one of clientCertificateData and clientKeyData; accepted: both".into()
            );
        }
    };
    let token = status.token.filter(|token| !token.is_empty());
    if token.is_none() && certificate.is_none() {
        return Err("it printed neither a token nor a client certificate".into());
    }
    let expires = status.expiration_timestamp;
    if let Some(at) = expires.filter(|at| *at <= Timestamp::now()) {
        return Err(format!("its credentials expired at {at}"));
    }
    Ok(Credentials { token, certificate, expires })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A plugin that is one line of shell.
    fn plugin(script: &str) -> ExecConfig {
        let text = json!({
            "apiVersion": VERSIONS[0], "command": "sh", "args": ["-c", script],
            "env": [{"name": "SECRET", "value": "hush"}], "interactiveMode": "IfAvailable",
        });
        serde_json::from_value(text).expect("a valid ExecConfig")
    }

    fn printed(status: &str) -> ExecConfig {
        let version = VERSIONS[0];
        plugin(&format!(
            r#"echo '{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {status}}}'"#
        ))
    }

    fn fault(exec: &ExecConfig) -> String {
        run(exec, PLUGIN_MAX).err().expect("it is refused")
    }

    #[test]
    fn tokens_with_expiry_and_certificates_with_keys_are_accepted() {
        let token =
            run(&printed(r#"{"token": "t", "expirationTimestamp": "2999-01-01T00:00:00Z"}"#), PLUGIN_MAX);
        let token = token.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(token.token.as_deref(), Some("t"));
        assert_eq!(token.expires.map(|at| at.to_string()).as_deref(), Some("2999-01-01T00:00:00Z"));
        let both = run(&printed(r#"{"clientCertificateData": "c", "clientKeyData": "k"}"#), PLUGIN_MAX);
        assert_eq!(both.map(|both| both.certificate), Ok(Some(("c".to_owned(), "k".to_owned()))));
    }

    #[test]
    fn it_gets_its_exec_info_and_its_environment() {
        let script = r#"
            case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 3;; esac
            [ "$SECRET" = hush ] || exit 4
            if read line; then exit 5; fi
            echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'"#;
        assert_eq!(run(&plugin(script), PLUGIN_MAX).map(|it| it.token), Ok(Some("t".to_owned())));
    }

    #[test]
    fn every_plugin_error_is_reported_without_secrets() {
        for (exec, expected) in [
            (
                plugin("echo hush; echo a first line >&2; echo no such role >&2; exit 7"),
                "exec plugin sh: it failed (exit status: 7): no such role",
            ),
            (plugin("exit 1"), "exec plugin sh: it failed (exit status: 1): it printed no error message"),
            (plugin("echo hush"), "exec plugin sh: it printed no ExecCredential (line 1, column 1)"),
            (printed("null"), "exec plugin sh: the ExecCredential that it printed has no status"),
            (printed("{}"), "exec plugin sh: it printed neither a token nor a client certificate"),
            (
                printed(r#"{"clientCertificateData": "hush"}"#),
                "exec plugin sh: it printed only one of clientCertificateData and clientKeyData; accepted: both",
            ),
            (
                printed(r#"{"token": "hush", "expirationTimestamp": "1999-01-01T00:00:00Z"}"#),
                "exec plugin sh: its credentials expired at 1999-01-01T00:00:00Z",
            ),
            (
                plugin(
                    r#"echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}'"#,
                ),
                "exec plugin sh: it printed kind \"ExecCredential\" of apiVersion \
                 \"client.authentication.k8s.io/v1beta1\"; accepted: kind ExecCredential of apiVersion \
                 client.authentication.k8s.io/v1",
            ),
        ] {
            let text = fault(&exec);
            assert_eq!(text, expected);
            assert!(!text.contains("hush"), "{text}");
        }
    }

    #[test]
    fn a_missing_program_is_reported_with_the_hint_of_the_kubeconfig() {
        let mut exec = plugin("");
        exec.command = Some("/nowhere/login".to_owned());
        exec.install_hint = Some("contact the admins\n".to_owned());
        let text = fault(&exec);
        assert!(text.starts_with("exec plugin /nowhere/login: it cannot be started: No such file"), "{text}");
        assert!(text.ends_with("; contact the admins"), "{text}");
    }

    #[test]
    fn unsupported_settings_are_refused_by_name() {
        let mut exec = plugin("");
        exec.interactive_mode = Some(ExecInteractiveMode::Always);
        assert!(fault(&exec).contains("needs a terminal (interactiveMode: Always)"));
        let mut exec = plugin("");
        exec.api_version = Some("client.authentication.k8s.io/v1alpha1".to_owned());
        assert!(
            fault(&exec).contains("v1alpha1\" is not supported; accepted: client.authentication.k8s.io/v1,")
        );
    }

    #[test]
    fn a_hanging_plugin_is_killed_with_its_child_processes() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let limit = Duration::from_millis(300);
        let text = run(&plugin(&script), limit).err().expect("it hangs");
        assert_eq!(text, "exec plugin sh: it did not exit within 0 s");
        let pid = std::fs::read_to_string(&file).expect("the plugin wrote its pid");
        let stat = format!("/proc/{}/stat", pid.trim());
        // The process is gone, or a zombie until its new parent collects it.
        let alive = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let bound = Instant::now() + Duration::from_secs(5);
        while alive() {
            assert!(Instant::now() < bound, "the process still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
