//! Tests of connections to an API server: a real one over HTTPS, realistic kubeconfigs, and plugins and proxies that
//! are real programs and sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use test_apiserver::{ADMIN_TOKEN, Options, TestApiServer, User};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// An API server, and the kubeconfig of a user.
struct World {
    server: TestApiServer,
    directory: tempfile::TempDir,
    connector: Connector,
}

impl World {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let server = TestApiServer::start(options).expect("a free port");
        let directory = tempfile::tempdir().expect("a directory");
        let connector = Connector::new(Some(directory.path().join("kubeconfig")));
        let world = Self { server, directory, connector };
        world.write(json!({"token": ADMIN_TOKEN}), &json!({}));
        world
    }

    /// Writes a kubeconfig with this user and these changes to the cluster (null removes a key).
    fn write(&self, user: Value, cluster: &Value) {
        let text = self.server.kubeconfig_text("");
        let mut config: Value = serde_json::from_str(&text).expect("valid JSON");
        config["users"][0]["user"] = user;
        let usual = config["clusters"][0]["cluster"].as_object_mut().expect("a cluster");
        for (key, value) in cluster.as_object().expect("keys") {
            usual.insert(key.clone(), value.clone());
        }
        usual.retain(|_, value| !value.is_null());
        self.file("kubeconfig", &config.to_string());
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        // Replace the file in one step, as programs that rotate credentials do.
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).expect("the file is writable");
        std::fs::rename(&new, &path).expect("the file is writable");
        path.display().to_string()
    }

    /// Sends a request that needs an account. Returns the HTTP status, or the error of the connection.
    async fn request(&self) -> Result<(u16, u64), String> {
        let connection = self.connector.connection().await.map_err(|error| error.to_string())?;
        let request = hyper::Request::get("/api/v1/nodes").body(Body::empty()).expect("a request");
        let sent = connection.client.send(request).await;
        sent.map(|answer| (answer.status().as_u16(), connection.serial)).map_err(|error| causes(&error))
    }

    /// Like `request`, without a connection error.
    async fn status(&self) -> (u16, u64) {
        self.request().await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn fault(&self) -> String {
        self.request().await.expect_err("the request fails")
    }

    /// The user of the last request.
    fn user(&self) -> String {
        self.server.requests().pop().expect("a request was logged").user
    }

    /// A plugin that counts its calls. It returns `token-1`, `token-2`, ... valid until `expires`.
    fn plugin(&self, expires: &str) -> Value {
        let status = format!(r#"{{\"token\": \"token-$n\", \"expirationTimestamp\": \"{expires}\"}}"#);
        let version = "client.authentication.k8s.io/v1";
        let script = format!(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\n[ ! -e broken ] || {{ echo no such role >&2; exit 1; }}\n\
             echo x >> calls\nn=$(wc -l < calls)\n\
             echo \"{{\\\"apiVersion\\\": \\\"{version}\\\", \\\"kind\\\": \\\"ExecCredential\\\", \\\"status\\\": {status}}}\"\n"
        );
        let path = self.file("login", &script);
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, permissions).expect("permissions can be set");
        for n in 1..=9 {
            self.server.add_token(&format!("token-{n}"), User::admin());
        }
        // A command with a slash is relative to the directory of the kubeconfig.
        json!({"exec": {"apiVersion": version, "command": "./login", "interactiveMode": "IfAvailable"}})
    }
}

const FAR: &str = "2999-01-01T00:00:00Z";

#[tokio::test]
async fn a_client_certificate_in_the_kubeconfig_or_in_files_authenticates() {
    let world = World::new();
    let issued =
        world.server.client_certificate(User::named("system:node:a")).expect("issued").expect("with TLS");
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    world.write(
        json!({"client-certificate-data": encode(&issued.0), "client-key-data": encode(&issued.1)}),
        &json!({}),
    );
    let (_, first) = world.status().await;
    assert_eq!(world.user(), "system:node:a");
    // Files in the directory of the kubeconfig, which are replaced later.
    world.file("tls.crt", &issued.0);
    world.file("tls.key", &issued.1);
    world.write(json!({"client-certificate": "tls.crt", "client-key": "tls.key"}), &json!({}));
    world.status().await;
    assert_eq!(world.user(), "system:node:a");
    let other =
        world.server.client_certificate(User::named("system:node:b")).expect("issued").expect("with TLS");
    world.file("tls.crt", &other.0);
    world.file("tls.key", &other.1);
    let (_, last) = world.status().await;
    assert_eq!(world.user(), "system:node:b");
    assert!(last > first, "another client");
    // A certificate without its key is reported.
    world.write(json!({"client-certificate": "tls.crt"}), &json!({}));
    world.connector.renew(last).await;
    let text = world.fault().await;
    assert!(text.contains("client key"), "{text}");
}

#[tokio::test]
async fn a_token_file_is_read_again_when_it_changes() {
    let world = World::new();
    world.server.add_token("rotated", User::named("later"));
    world.file("token", &format!("{ADMIN_TOKEN}\n"));
    world.write(json!({"tokenFile": "token"}), &json!({}));
    assert_eq!(world.status().await.0, 200);
    world.file("token", "rotated\n");
    world.status().await;
    assert_eq!(world.user(), "later");
    // The file is deleted: the last good token is used until the server refuses it.
    std::fs::remove_file(world.directory.path().join("token")).expect("the file exists");
    let (_, serial) = world.status().await;
    world.connector.refused(serial).await;
    let text = world.fault().await;
    assert!(text.starts_with("token file ") && text.contains("No such file"), "{text}");
}

/// Nothing writes to the FIFO, so reading it would time out.
#[tokio::test]
async fn a_fifo_is_refused_and_the_last_client_stays_in_use() {
    let world = World::new();
    let fifo = |name: &str| {
        let path = world.directory.path().join(name);
        let _ = std::fs::remove_file(&path);
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("coreutils");
        assert!(made.success());
        path
    };
    let (code, serial) = world.status().await;
    fifo("kubeconfig");
    assert_eq!((code, world.status().await), (200, (200, serial)), "the last client");
    let of_file = Connector::new(Some(world.directory.path().join("kubeconfig")));
    let Err(error) = of_file.connection().await else { panic!("the kubeconfig is refused") };
    let text = error.to_string();
    assert!(text.ends_with("kubeconfig: it is a FIFO; accepted: a regular file"), "{text}");

    fifo("token");
    world.write(json!({"tokenFile": "token"}), &json!({}));
    assert_eq!(world.status().await, (200, serial), "still the last client");
    let of_token = Connector::new(Some(world.directory.path().join("kubeconfig")));
    let Err(error) = of_token.connection().await else { panic!("the token is refused") };
    let text = error.to_string();
    assert!(text.ends_with("token: it is a FIFO; accepted: a regular file"), "{text}");

    world.file("token", ADMIN_TOKEN);
    let (code, later) = world.status().await;
    assert!(code == 200 && later > serial, "{code}, client {later} after {serial}");
}

#[tokio::test]
async fn a_plugin_is_called_once_until_its_credential_expires() {
    let world = World::new();
    world.write(world.plugin(FAR), &json!({}));
    let (code, serial) = world.status().await;
    assert_eq!((code, world.status().await.1), (200, serial), "the client is unchanged");
    // Broken connections do not make the plugin return another token.
    world.connector.renew(serial).await;
    assert!(world.status().await.1 > serial);
    let calls =
        || std::fs::read_to_string(world.directory.path().join("calls")).expect("it counts").lines().count();
    assert_eq!(calls(), 1);
    // The token expires within the time in which it is renewed anyway.
    let mut other = world.plugin("$(date -u -d '+9 seconds' +%FT%TZ)");
    other["exec"]["args"] = json!(["--other"]);
    world.write(other, &json!({}));
    for n in 1..=3 {
        assert_eq!(world.status().await.0, 200);
        assert_eq!(calls(), 1 + n, "a token that expires soon is not reused");
    }
}

#[tokio::test]
async fn a_refused_token_makes_the_plugin_run_again_at_a_limited_rate() {
    let world = World::new();
    world.write(world.plugin(FAR), &json!({}));
    let (_, serial) = world.status().await;
    world.server.expire_token("token-1");
    assert_eq!(world.status().await.0, 401);
    world.connector.refused(serial).await;
    let (code, serial) = world.status().await;
    assert_eq!(code, 200, "token-2");
    world.server.expire_token("token-2");
    world.connector.refused(serial).await;
    assert_eq!(world.status().await.0, 401, "the plugin has just run");
}

#[tokio::test]
async fn a_failing_plugin_is_reported_and_called_at_a_limited_rate() {
    let world = World::new();
    let user = world.plugin(FAR);
    world.file("broken", "");
    world.write(user, &json!({}));
    let text = world.fault().await;
    assert!(text.ends_with("login: it failed (exit status: 1): no such role"), "{text}");
    std::fs::remove_file(world.directory.path().join("broken")).expect("the file exists");
    assert_eq!(world.fault().await, text, "it has just failed");
}

#[tokio::test]
async fn the_servers_certificate_may_have_another_name_than_its_address() {
    // The certificate is for 127.0.0.1 and localhost.
    let world = World::with(Options { listen: SocketAddr::from(([127, 0, 0, 2], 0)), ..Options::default() });
    let text = world.fault().await;
    assert!(text.contains("not valid for name"), "{text}");
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"tls-server-name": "localhost"}));
    assert_eq!(world.status().await.0, 200);
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"tls-server-name": "elsewhere.example"}));
    let text = world.fault().await;
    assert!(text.contains("not valid for name") && text.contains("elsewhere.example"), "{text}");
}

#[tokio::test]
async fn verification_is_skipped_only_on_request_and_without_an_authority() {
    let world = World::new();
    let user = || json!({"token": ADMIN_TOKEN});
    world.write(user(), &json!({"certificate-authority-data": null}));
    let text = world.fault().await;
    assert!(text.contains("certificate"), "{text}");
    world.write(user(), &json!({"certificate-authority-data": null, "insecure-skip-tls-verify": true}));
    let (code, serial) = world.status().await;
    assert_eq!(code, 200);
    world.write(user(), &json!({"insecure-skip-tls-verify": true}));
    world.connector.renew(serial).await;
    let text = world.fault().await;
    assert!(
        text.contains("insecure-skip-tls-verify together with a certificate authority; accepted: one"),
        "{text}"
    );
}

#[tokio::test]
async fn unsupported_features_are_refused_by_name() {
    let world = World::new();
    world.write(json!({"auth-provider": {"name": "azure", "config": {}}}), &json!({}));
    let text = world.fault().await;
    assert!(
        text.contains("auth-provider azure is not supported") && text.contains("accepted: exec, "),
        "{text}"
    );
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"proxy-url": "socks5://127.0.0.1:1080"}));
    let text = world.fault().await;
    assert!(text.contains("proxy-url has the scheme socks5, which is not supported"), "{text}");
}

#[tokio::test]
async fn a_broken_kubeconfig_keeps_the_last_good_client() {
    let world = World::new();
    let (_, serial) = world.status().await;
    world.file("kubeconfig", "{half of");
    assert_eq!(world.status().await, (200, serial));
    world.write(json!({"token": ADMIN_TOKEN}), &json!({}));
    assert!(world.status().await.1 > serial, "the kubeconfig is valid again");
}

#[tokio::test]
async fn an_error_of_a_kubeconfig_is_one_line_without_credentials() {
    let world = World::new();
    for user in [
        "token: 'of-the-user",
        "client-key-data: of-the-user\n    token: []",
        "token: of-the-user\n     x: 1",
    ] {
        let text = format!("apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n    {user}\n");
        world.file("kubeconfig", &text);
        let text = world.fault().await;
        assert!(text.contains("failed to parse kubeconfig YAML: error: line "), "{text}");
        assert!(!text.contains("of-the-user") && !text.contains('\n'), "{text}");
    }
}

/// A proxy that opens and counts tunnels. With `password`, clients must authenticate.
struct HttpProxy {
    address: SocketAddr,
    tunnels: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl HttpProxy {
    async fn start(password: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let tunnels = Arc::new(AtomicUsize::new(0));
        let counted = tunnels.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Self::serve(client, password, counted.clone()));
            }
        });
        Self { address, tunnels, task }
    }

    async fn serve(client: TcpStream, password: Option<&'static str>, tunnels: Arc<AtomicUsize>) {
        let mut client = BufReader::new(client);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            client.read_line(&mut head).await.expect("a line");
        }
        let server = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
        let server = server.expect("a CONNECT").to_owned();
        assert!(head.contains(&format!("Host: {server}\r\n")), "{head}");
        if password
            .is_some_and(|password| !head.contains(&format!("Proxy-Authorization: Basic {password}\r\n")))
        {
            let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
            client.get_mut().write_all(refusal).await.expect("it listens");
            return;
        }
        let mut server = TcpStream::connect(server).await.expect("it listens");
        tunnels.fetch_add(1, Ordering::Relaxed);
        client.get_mut().write_all(b"HTTP/1.1 200 OK\r\nVia: test\r\n\r\n").await.expect("it listens");
        // Ends when either side closes.
        let _ = tokio::io::copy_bidirectional(client.get_mut(), &mut server).await;
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn the_api_server_is_reached_through_the_proxy_of_its_kubeconfig() {
    let (world, proxy) = (World::new(), HttpProxy::start(None).await);
    let through = format!("http://{}", proxy.address);
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"proxy-url": through}));
    assert_eq!(world.status().await.0, 200);
    assert_eq!(proxy.tunnels.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_proxy_gets_its_password_and_its_refusal_is_reported() {
    // "me:p@ss" in base64.
    let (world, proxy) = (World::new(), HttpProxy::start(Some("bWU6cEBzcw==")).await);
    let named = |user: &str| json!({"proxy-url": format!("http://{user}{}", proxy.address)});
    world.write(json!({"token": ADMIN_TOKEN}), &named("me:p%40ss@"));
    assert_eq!(world.status().await.0, 200);
    world.write(json!({"token": ADMIN_TOKEN}), &named("me:hush@"));
    let text = world.fault().await;
    assert!(
        text.contains(&format!("proxy http://{}: it refuses to connect to 127.0.0.1:", proxy.address)),
        "{text}"
    );
    assert!(text.contains("407 Proxy Authentication Required") && !text.contains("hush"), "{text}");
}

#[tokio::test]
async fn an_unreachable_proxy_is_named() {
    let (world, proxy) = (World::new(), HttpProxy::start(None).await);
    let address = proxy.address;
    drop(proxy);
    tokio::task::yield_now().await;
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"proxy-url": format!("http://{address}")}));
    let text = world.fault().await;
    assert!(text.contains(&format!("proxy http://{address}: ")) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn an_unknown_context_is_refused_with_the_names_of_the_known_ones() {
    let mut world = World::new();
    let path = world.directory.path().join("kubeconfig");
    world.connector = Connector::with_context(Some(path.clone()), Some("test".to_owned()));
    assert_eq!(world.status().await.0, 200);
    world.connector = Connector::with_context(Some(path), Some("production".to_owned()));
    let fault = world.fault().await;
    assert_eq!(fault, "the kubeconfig has no context \"production\"; accepted: test");
}

/// A shell that reads a FIFO waits for its writer.
#[tokio::test]
async fn requests_with_a_valid_client_do_not_wait_for_a_hanging_plugin() {
    let world = World::new();
    let (_, serial) = world.status().await;
    let user = world.plugin(FAR);
    let gate = world.directory.path().join("gate");
    let made = std::process::Command::new("mkfifo").arg(&gate).status().expect("coreutils");
    assert!(made.success());
    world.file(
        "hanging",
        "#!/bin/sh\nread line < \"$(dirname \"$0\")/gate\"\nexec \"$(dirname \"$0\")/login\"\n",
    );
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(world.directory.path().join("hanging"), permissions).expect("ours");
    let mut hanging = user.clone();
    hanging["exec"]["command"] = json!("./hanging");
    world.write(hanging, &json!({}));
    for _ in 0..3 {
        assert_eq!(world.status().await, (200, serial), "the last client");
    }
    // Opening a FIFO for reading and writing doesn't wait for a reader.
    let mut gate = std::fs::File::options().read(true).write(true).open(&gate).expect("a FIFO");
    std::io::Write::write_all(&mut gate, b"continue\n").expect("the FIFO accepts it");
    let until = Instant::now() + Duration::from_secs(60);
    while world.status().await.1 == serial {
        assert!(Instant::now() < until, "the result of the plugin was never used");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn files_on_a_hanging_file_system_count_as_unchanged_after_one_wait() {
    let (release, hangs) = std::sync::mpsc::channel::<()>();
    let mut check = FileCheck::default();
    assert!(check.differs(|| true).await && !check.differs(|| false).await);
    assert!(!check.differs(move || hangs.recv().is_err()).await);
    assert!(!check.differs(|| true).await, "no other check starts");
    drop(release);
    while !check.differs(|| true).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
