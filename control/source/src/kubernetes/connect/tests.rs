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

    /// Writes a kubeconfig with this user, and with these changes to the cluster (null removes a key).
    fn write(&self, user: Value, cluster: &Value) {
        let text = self.server.kubeconfig_text("");
        let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
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
        std::fs::write(&new, text).expect("it can be written");
        std::fs::rename(&new, &path).expect("it can be written");
        path.display().to_string()
    }

    /// Sends a request that needs an account. Returns the HTTP status, or the error of the connection.
    async fn ask(&self) -> Result<(u16, u64), String> {
        let connection = self.connector.connection().await.map_err(|error| error.to_string())?;
        let request = hyper::Request::get("/api/v1/nodes").body(Body::empty()).expect("a request");
        let sent = connection.client.send(request).await;
        sent.map(|answer| (answer.status().as_u16(), connection.serial)).map_err(|error| causes(&error))
    }

    /// The same for a request without a connection error.
    async fn status(&self) -> (u16, u64) {
        self.ask().await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn fault(&self) -> String {
        self.ask().await.expect_err("it goes wrong")
    }

    /// The user of the last request.
    fn user(&self) -> String {
        self.server.requests().pop().expect("somebody asked").user
    }

    /// A plugin that counts its calls. It returns `token-1`, `token-2`, ... valid until `expires`.
    fn plugin(&self, expires: &str) -> Value {
        let status = format!(r#"{{\"token\": \"token-$n\", \"expirationTimestamp\": \"{expires}\"}}"#);
        let version = "client.authentication.k8s.io/v1";
        let script = format!(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\n[ ! -e broken ] || {{ echo no such role >&2; exit 1; }}\n\
             echo x >> asked\nn=$(wc -l < asked)\n\
             echo \"{{\\\"apiVersion\\\": \\\"{version}\\\", \\\"kind\\\": \\\"ExecCredential\\\", \\\"status\\\": {status}}}\"\n"
        );
        let path = self.file("login", &script);
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, permissions).expect("it can be made executable");
        for n in 1..=9 {
            self.server.add_token(&format!("token-{n}"), User::admin());
        }
        // A command with a slash is relative to the directory of the kubeconfig.
        json!({"exec": {"apiVersion": version, "command": "./login", "interactiveMode": "IfAvailable"}})
    }
}

const FAR: &str = "2999-01-01T00:00:00Z";

#[tokio::test]
async fn a_client_certificate_in_the_kubeconfig_or_in_files_authenticates_us() {
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
    let said = world.fault().await;
    assert!(said.contains("client key"), "{said}");
}

#[tokio::test]
async fn a_token_file_may_end_in_a_line_feed_and_is_read_again_when_it_changes() {
    let world = World::new();
    world.server.add_token("rotated", User::named("later"));
    world.file("token", &format!("{ADMIN_TOKEN}\n"));
    world.write(json!({"tokenFile": "token"}), &json!({}));
    assert_eq!(world.status().await.0, 200);
    world.file("token", "rotated\n");
    world.status().await;
    assert_eq!(world.user(), "later");
    // The file is deleted: the last good token is used until the server refuses it.
    std::fs::remove_file(world.directory.path().join("token")).expect("it is there");
    let (_, serial) = world.status().await;
    world.connector.refused(serial).await;
    let said = world.fault().await;
    assert!(said.starts_with("token file ") && said.contains("No such file"), "{said}");
}

/// A FIFO has no writer, so a reading that waits for one ends with the error of the time limit.
#[tokio::test]
async fn a_fifo_in_place_of_a_file_is_refused_at_once_and_the_last_client_stays_in_use() {
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
    assert_eq!((code, world.status().await), (200, (200, serial)), "the last one");
    let of_file = Connector::new(Some(world.directory.path().join("kubeconfig")));
    let Err(error) = of_file.connection().await else { panic!("it cannot be read") };
    let said = error.to_string();
    assert!(said.ends_with("kubeconfig: it is a FIFO; accepted: a regular file"), "{said}");

    fifo("token");
    world.write(json!({"tokenFile": "token"}), &json!({}));
    assert_eq!(world.status().await, (200, serial), "still the last one");
    let of_token = Connector::new(Some(world.directory.path().join("kubeconfig")));
    let Err(error) = of_token.connection().await else { panic!("it cannot be read") };
    let said = error.to_string();
    assert!(said.ends_with("token: it is a FIFO; accepted: a regular file"), "{said}");

    world.file("token", ADMIN_TOKEN);
    let (code, later) = world.status().await;
    assert!(code == 200 && later > serial, "{code}, client {later} after {serial}");
}

#[tokio::test]
async fn a_plugin_is_called_once_until_its_credential_expires() {
    let world = World::new();
    world.write(world.plugin(FAR), &json!({}));
    let (code, serial) = world.status().await;
    assert_eq!((code, world.status().await.1), (200, serial), "the same client");
    // Broken connections do not make the plugin return another token.
    world.connector.renew(serial).await;
    assert!(world.status().await.1 > serial);
    let asked =
        || std::fs::read_to_string(world.directory.path().join("asked")).expect("it counts").lines().count();
    assert_eq!(asked(), 1);
    // The expiry is sooner than the time before it at which a token is renewed.
    let mut other = world.plugin("$(date -u -d '+9 seconds' +%FT%TZ)");
    other["exec"]["args"] = json!(["--other"]);
    world.write(other, &json!({}));
    for n in 1..=3 {
        assert_eq!(world.status().await.0, 200);
        assert_eq!(asked(), 1 + n, "a token that ends soon is not used again");
    }
}

#[tokio::test]
async fn a_token_that_is_refused_makes_a_plugin_give_another_but_not_at_every_request() {
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
    assert_eq!(world.status().await.0, 401, "it was asked a moment ago");
}

#[tokio::test]
async fn a_failing_plugin_is_reported_with_its_last_output_and_not_called_for_every_request() {
    let world = World::new();
    let user = world.plugin(FAR);
    world.file("broken", "");
    world.write(user, &json!({}));
    let said = world.fault().await;
    assert!(said.ends_with("login: it failed (exit status: 1): no such role"), "{said}");
    std::fs::remove_file(world.directory.path().join("broken")).expect("it is there");
    assert_eq!(world.fault().await, said, "a moment ago it failed");
}

#[tokio::test]
async fn the_name_in_the_servers_certificate_may_be_another_than_its_address() {
    // The certificate is for 127.0.0.1 and localhost.
    let world = World::with(Options { listen: SocketAddr::from(([127, 0, 0, 2], 0)), ..Options::default() });
    let said = world.fault().await;
    assert!(said.contains("not valid for name"), "{said}");
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"tls-server-name": "localhost"}));
    assert_eq!(world.status().await.0, 200);
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"tls-server-name": "elsewhere.example"}));
    let said = world.fault().await;
    assert!(said.contains("not valid for name") && said.contains("elsewhere.example"), "{said}");
}

#[tokio::test]
async fn verification_is_left_out_only_where_the_kubeconfig_says_so_and_names_no_authority() {
    let world = World::new();
    let user = || json!({"token": ADMIN_TOKEN});
    world.write(user(), &json!({"certificate-authority-data": null}));
    let said = world.fault().await;
    assert!(said.contains("certificate"), "{said}");
    world.write(user(), &json!({"certificate-authority-data": null, "insecure-skip-tls-verify": true}));
    let (code, serial) = world.status().await;
    assert_eq!(code, 200);
    world.write(user(), &json!({"insecure-skip-tls-verify": true}));
    world.connector.renew(serial).await;
    let said = world.fault().await;
    assert!(
        said.contains("insecure-skip-tls-verify beside a certificate authority; accepted: one"),
        "{said}"
    );
}

#[tokio::test]
async fn what_the_gateway_cannot_do_is_refused_by_name() {
    let world = World::new();
    world.write(json!({"auth-provider": {"name": "azure", "config": {}}}), &json!({}));
    let said = world.fault().await;
    assert!(
        said.contains("auth-provider azure is not supported") && said.contains("accepted: exec, "),
        "{said}"
    );
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"proxy-url": "socks5://127.0.0.1:1080"}));
    let said = world.fault().await;
    assert!(said.contains("proxy-url has the scheme socks5, which is not supported"), "{said}");
}

#[tokio::test]
async fn a_kubeconfig_that_breaks_leaves_the_last_good_client() {
    let world = World::new();
    let (_, serial) = world.status().await;
    world.file("kubeconfig", "{half of");
    assert_eq!(world.status().await, (200, serial));
    world.write(json!({"token": ADMIN_TOKEN}), &json!({}));
    assert!(world.status().await.1 > serial, "it is whole again");
}

#[tokio::test]
async fn an_error_of_a_kubeconfig_is_one_line_without_the_credentials_beside_the_fault() {
    let world = World::new();
    for user in [
        "token: 'of-the-user",
        "client-key-data: of-the-user\n    token: []",
        "token: of-the-user\n     x: 1",
    ] {
        let text = format!("apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n    {user}\n");
        world.file("kubeconfig", &text);
        let said = world.fault().await;
        assert!(said.contains("failed to parse kubeconfig YAML: error: line "), "{said}");
        assert!(!said.contains("of-the-user") && !said.contains('\n'), "{said}");
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
    let said = world.fault().await;
    assert!(
        said.contains(&format!("proxy http://{}: it refuses to connect to 127.0.0.1:", proxy.address)),
        "{said}"
    );
    assert!(said.contains("407 Proxy Authentication Required") && !said.contains("hush"), "{said}");
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_named() {
    let (world, proxy) = (World::new(), HttpProxy::start(None).await);
    let address = proxy.address;
    drop(proxy);
    tokio::task::yield_now().await;
    world.write(json!({"token": ADMIN_TOKEN}), &json!({"proxy-url": format!("http://{address}")}));
    let said = world.fault().await;
    assert!(said.contains(&format!("proxy http://{address}: ")) && said.contains("refused"), "{said}");
}

#[tokio::test]
async fn a_context_by_name_is_used_and_one_that_is_not_there_is_refused_with_those_that_are() {
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
async fn while_the_last_client_is_valid_requests_do_not_wait_for_a_plugin_that_hangs() {
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
        assert_eq!(world.status().await, (200, serial), "the last one");
    }
    // Opened for both, a FIFO does not wait for a reader.
    let mut gate = std::fs::File::options().read(true).write(true).open(&gate).expect("a FIFO");
    std::io::Write::write_all(&mut gate, b"go on\n").expect("it has room");
    let until = Instant::now() + Duration::from_secs(60);
    while world.status().await.1 == serial {
        assert!(Instant::now() < until, "it is not used when it has ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_file_system_that_does_not_answer_is_waited_for_once_and_its_files_count_as_unchanged() {
    let (release, hangs) = std::sync::mpsc::channel::<()>();
    let mut look = FileCheck::default();
    assert!(look.differs(|| true).await && !look.differs(|| false).await);
    assert!(!look.differs(move || hangs.recv().is_err()).await);
    assert!(!look.differs(|| true).await, "no other look begins");
    drop(release);
    while !look.differs(|| true).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
