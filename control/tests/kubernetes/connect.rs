//! The gateway's connection to the API server: with the service account of its Pod, with a credential plugin of its
//! kubeconfig, and through the proxy of its environment.
//!
//! Unit tests of `source/kubernetes/connect` cover single settings of a kubeconfig. Here the whole gateway starts in
//! these environments and continues when they change.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::api::Needs;
use crate::needs;
use crate::world::{Setting, World, service, slice};

/// Waits until a gateway serves a Service.
fn serves(world: &World, gateway: &str, name: &str) {
    let gateway = world.gateway(gateway);
    world.until(name, || (gateway.backends(name).len() == 1).then_some(()));
}

fn write_executable(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Writes the files of an account as a kubelet does: a directory for each state, and a link that is switched
/// atomically.
fn project(account: &Path, state: &str, token: &str, authority: &str) {
    let data = account.join(format!("..{state}"));
    std::fs::create_dir_all(&data).expect("made");
    for (file, text) in [("token", token), ("ca.crt", authority), ("namespace", "tidegate-system")] {
        std::fs::write(data.join(file), text).expect("written");
        let link = account.join(file);
        if !link.exists() {
            symlink(Path::new("..data").join(file), link).expect("linked");
        }
    }
    let turned = account.join("..data_tmp");
    symlink(format!("..{state}"), &turned).expect("linked");
    std::fs::rename(turned, account.join("..data")).expect("turned");
}

#[test]
fn a_pods_service_account_suffices_and_its_rotation_is_followed() {
    needs!(Needs::NewAuthority, Needs::Requests);
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let account = world.directory().join("serviceaccount");
    std::fs::create_dir_all(&account).expect("made");
    let authority = |world: &World| world.api.certificate_authority().expect("with TLS");
    project(&account, "first", &world.api.token(), &authority(&world));
    // The paths of a Pod, in the gateway's own mount namespace.
    let starter = world.directory().join("in-pod");
    write_executable(
        &starter,
        &format!(
            "#!/bin/sh -e\nmount -t tmpfs pod /run\nplace=/run/secrets/kubernetes.io/serviceaccount\nmkdir -p $place\n\
             mount --bind {} $place\nunset KUBECONFIG\nexport HOME=/nowhere\n\
             export KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT={}\nexec \"$@\"\n",
            account.display(),
            world.api.address().port(),
        ),
    );
    let starter = words(&["unshare", "--mount", &starter.display().to_string()]);
    world.start_with("edge-1", &Setting { kubeconfig: Some(String::new()), starter, ..Setting::default() });
    serves(&world, "edge-1", "web");
    let account_user = "system:serviceaccount:tidegate-system:tidegate";
    assert!(world.api.requests().iter().any(|request| request.user == account_user));

    // A new token replaces the old one.
    project(&account, "second", &world.api.other_token("second"), &authority(&world));
    world.api.expire_token();
    world.api.restart();
    world.apply(&(service("later") + &slice("later", &["10.244.0.2"])));
    serves(&world, "edge-1", "later");

    // The server gets a new certificate authority.
    world.api.renew_certificate();
    project(&account, "third", &world.api.other_token("second"), &authority(&world));
    world.apply(&(service("last") + &slice("last", &["10.244.0.3"])));
    serves(&world, "edge-1", "last");
}

#[test]
fn a_credential_plugin_provides_the_token_and_status_shows_its_failure() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let directory = world.directory().to_owned();
    let login = directory.join("login");
    let version = "client.authentication.k8s.io/v1";
    let credential = |token: &str| {
        format!(
            r#"{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {{"token": "{token}", "expirationTimestamp": "2999-01-01T00:00:00Z"}}}}"#
        )
    };
    write_executable(
        &login,
        &format!(
            "#!/bin/sh\ncd {}\n[ -e credential ] || {{ echo the token service is down >&2; exit 1; }}\ncat credential\n",
            directory.display()
        ),
    );
    let mut kubeconfig: serde_json::Value =
        serde_json::from_str(&world.api.kubeconfig_text("")).expect("it is JSON");
    kubeconfig["users"][0]["user"] = serde_json::json!({"exec": {
        "apiVersion": version, "command": login.display().to_string(), "interactiveMode": "Never",
    }});
    let setting = Setting { kubeconfig: Some(kubeconfig.to_string()), ..Setting::default() };
    world.start_with("edge-1", &setting);
    let gateway = world.gateway("edge-1");
    let why = world.until("the reason", || gateway.source()["lastError"].as_str().map(str::to_owned));
    assert!(why.contains("login: it failed (exit status: 1): the token service is down"), "{why}");

    std::fs::write(directory.join("credential"), credential(&world.api.token())).expect("written");
    serves(&world, "edge-1", "web");

    // The token is refused before it expires, so the plugin is called again.
    std::fs::write(directory.join("credential"), credential(&world.api.other_token("second")))
        .expect("written");
    world.api.expire_token();
    world.api.restart();
    world.apply(&(service("later") + &slice("later", &["10.244.0.2"])));
    serves(&world, "edge-1", "later");
}

#[test]
fn the_proxy_of_the_environment_is_used_except_for_no_proxy() {
    // The address is not on loopback, because a proxy is never used for loopback. The certificate is for localhost.
    let mut world = World::reached_at("192.0.2.77".parse().expect("an address"));
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let mut kubeconfig: serde_json::Value =
        serde_json::from_str(&world.api.kubeconfig_text(&world.api.token())).expect("it is JSON");
    let name = &mut kubeconfig["clusters"][0]["cluster"]["tls-server-name"];
    if name.is_null() {
        *name = "localhost".into();
    }
    let proxied = |no_proxy: &str| Setting {
        kubeconfig: Some(kubeconfig.to_string()),
        // Nothing listens on that port.
        starter: words(&["env", "HTTPS_PROXY=http://127.0.0.1:9", &format!("NO_PROXY={no_proxy}")]),
        ..Setting::default()
    };
    world.start_with("edge-1", &proxied("10.0.0.0/8"));
    let gateway = world.gateway("edge-1");
    let why = world.until("the reason", || gateway.source()["lastError"].as_str().map(str::to_owned));
    assert!(why.contains("proxy http://127.0.0.1:9: ") && why.contains("refused"), "{why}");

    world.start_with("edge-2", &proxied("10.0.0.0/8,192.0.2.0/24"));
    serves(&world, "edge-2", "web");
}
