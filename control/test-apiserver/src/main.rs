//! `test-apiserver --listen 127.0.0.1:PORT --kubeconfig FILE [--rbac FILE]... [--apply FILE]...`: the test API server
//! as a program, for scripts. It loads the objects of the files at the start. For each
//! ServiceAccount in them, it writes a kubeconfig `FILE.NAMESPACE.NAME` beside the administrator's. It stops on SIGINT
//! or SIGTERM. `control` describes its switches.

use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use test_apiserver::{ADMIN_TOKEN, Options, TestApiServer};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str =
    "usage: test-apiserver --listen 127.0.0.1:PORT --kubeconfig FILE [--rbac FILE]... [--apply FILE]...";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The write fails if standard error is closed; there is no other place to report it.
            let _ = writeln!(std::io::stderr(), "test-apiserver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut options = Options::default();
    let mut kubeconfig: Option<PathBuf> = None;
    let mut files: Vec<PathBuf> = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| Error::other(format!("{argument} needs a value\n{USAGE}")));
        match argument.as_str() {
            "--listen" => options.listen = value()?.parse().map_err(Error::other)?,
            "--kubeconfig" => kubeconfig = Some(value()?.into()),
            "--rbac" | "--apply" => files.push(value()?.into()),
            "--help" | "-h" => return writeln!(std::io::stdout(), "{USAGE}"),
            other => return Err(Error::other(format!("unknown argument {other}\n{USAGE}"))),
        }
    }
    let server = TestApiServer::start(options)?;
    for file in &files {
        let text = std::fs::read_to_string(file)?;
        server.apply(&text).map_err(|error| Error::other(format!("{}: {error}", file.display())))?;
    }
    if let Some(path) = &kubeconfig {
        std::fs::write(path, server.kubeconfig_text(ADMIN_TOKEN))?;
        write_accounts(&server, path)?;
    }
    writeln!(std::io::stdout(), "listening at {}", server.url())?;
    wait_for_signal()?;
    server.stop();
    Ok(())
}

fn write_accounts(server: &TestApiServer, beside: &Path) -> Result<()> {
    for account in server.list("v1", "ServiceAccount", "") {
        let text = |name: &str| account["metadata"][name].as_str().unwrap_or_default().to_string();
        let (namespace, name) = (text("namespace"), text("name"));
        let token = server.service_account_token(&namespace, &name);
        let mut path = beside.as_os_str().to_owned();
        path.push(format!(".{namespace}.{name}"));
        std::fs::write(path, server.kubeconfig_text(&token))?;
    }
    Ok(())
}

fn wait_for_signal() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}
