//! HAProxy's configuration and certificate lists, as text: a pure function of the configuration and the listeners.
//!
//! A listener is a `frontend` and a `backend`, both named `NAMESPACE.SERVICE:PORT`. File names are relative to the
//! directory of the configuration (`default-path config`), so the text doesn't depend on where it is.
//!
//! All values in the text are numbers, addresses, names of Kubernetes objects, or words from fixed lists. No other text
//! of an object is part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_model::objects::ObjectKey;
use tidegate_policy::edge::{BackendProtocol, ForwardedHeaders, Listener, ListenerId, TlsPolicy};

use crate::config::Config;

/// The name of the configuration file.
pub const FILE: &str = "haproxy.cfg";

/// How many replaced processes may still serve connections. The oldest is stopped if there are more.
const OLD_PROCESSES_MAX: u32 = 16;
/// Idle time of connections with HTTP, unless the Service sets one.
const IDLE_HTTP: Duration = Duration::from_secs(60);
/// Idle time of connections without HTTP, of gRPC, and after an upgrade to another protocol.
const IDLE_OTHER: Duration = Duration::from_secs(3600);
/// How many source ranges are in one line. HAProxy reads at most 64 words in a line.
const RANGES_IN_LINE: usize = 32;

/// Mozilla's intermediate recommendation, without the DHE ciphers, which need parameters.
const CIPHERS: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
    ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
const CIPHERSUITES: &str = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

/// The part of the configuration of one listener, without its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The sections of the listener. The lines of servers follow.
    pub sections: String,
    /// What follows the address of each server.
    pub server_options: &'static str,
    /// The servers.
    pub servers: BTreeSet<SocketAddr>,
    /// The Secrets of its certificates, the default first.
    pub secrets: Vec<ObjectKey>,
}

/// The configuration, which only a reload can change except for servers and certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The settings of the process.
    pub head: String,
    /// The listeners.
    pub proxies: BTreeMap<ListenerId, Proxy>,
}

impl Rendered {
    /// Renders listeners.
    #[must_use]
    pub fn new(config: &Config, listeners: &BTreeMap<ListenerId, Listener>) -> Self {
        let proxy = |(id, listener): (&ListenerId, &Listener)| (id.clone(), proxy(config, id, listener));
        Self { head: head(config), proxies: listeners.iter().map(proxy).collect() }
    }

    /// The whole configuration file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.head.clone();
        for proxy in self.proxies.values() {
            text.push_str(&proxy.sections);
            for server in &proxy.servers {
                let options = proxy.server_options;
                line(&mut text, &format!("server {} {server}{options}", server_name(*server)));
            }
        }
        text
    }

    /// The certificate lists: the name of each file and its text.
    pub fn lists(&self) -> impl Iterator<Item = (String, String)> {
        let with_tls = self.proxies.iter().filter(|(_, proxy)| !proxy.secrets.is_empty());
        with_tls.map(|(id, proxy)| {
            let files = proxy.secrets.iter().map(|secret| certificate_file(secret) + "\n");
            (list_file(id), files.collect())
        })
    }

    /// The Secrets whose certificates are used.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<&ObjectKey> {
        self.proxies.values().flat_map(|proxy| &proxy.secrets).collect()
    }

    /// Whether the change from `before` needs no reload: only servers differ.
    #[must_use]
    pub fn differs_only_in_servers(&self, before: &Self) -> bool {
        let is_equal = |(a, b): (&Proxy, &Proxy)| {
            a.sections == b.sections && a.server_options == b.server_options && a.secrets == b.secrets
        };
        self.head == before.head
            && self.proxies.keys().eq(before.proxies.keys())
            && self.proxies.values().zip(before.proxies.values()).all(is_equal)
    }
}

impl Proxy {
    /// The servers as `add server` expects them: names, with address and options.
    #[must_use]
    pub fn named_servers(&self) -> BTreeMap<String, String> {
        let named = |server: &SocketAddr| (server_name(*server), format!("{server}{}", self.server_options));
        self.servers.iter().map(named).collect()
    }
}

/// The name of a server: its address and port. HAProxy's names have no brackets.
fn server_name(server: SocketAddr) -> String {
    format!("{}_{}", server.ip(), server.port())
}

/// The file of a certificate with its key. Namespaces have no dots, so the name is unambiguous.
#[must_use]
pub fn certificate_file(secret: &ObjectKey) -> String {
    format!("{}.{}.pem", secret.namespace, secret.name)
}

fn list_file(id: &ListenerId) -> String {
    format!("{}.{}.{}.list", id.service.namespace, id.service.name, id.port)
}

fn line(text: &mut String, line: &str) {
    let _ = writeln!(text, "    {line}");
}

fn head(config: &Config) -> String {
    let mut text = String::from("# Written by tidegate-edge. Changes are overwritten.\nglobal\n");
    let limits = &config.limits;
    let mut global = vec![
        "default-path config".to_owned(),
        format!("maxconn {}", limits.connections),
        format!("hard-stop-after {}s", config.haproxy.max_drain.as_secs()),
        format!("mworker-max-reloads {OLD_PROCESSES_MAX}"),
        format!("tune.h2.max-concurrent-streams {}", limits.streams),
        format!("ssl-default-bind-ciphers {CIPHERS}"),
        format!("ssl-default-bind-ciphersuites {CIPHERSUITES}"),
        // Ticket keys would last as long as the process.
        "ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets prefer-client-ciphers".to_owned(),
    ];
    global.extend(config.haproxy.threads.map(|threads| format!("nbthread {threads}")));
    global.extend(config.access_log.then(|| "log stdout format raw daemon info".to_owned()));
    global.iter().for_each(|setting| line(&mut text, setting));
    for mode in ["tcp", "http"] {
        let _ = writeln!(text, "defaults {mode}");
        let mut defaults = vec![
            format!("mode {mode}"),
            "timeout connect 5s".to_owned(),
            "timeout queue 30s".to_owned(),
            "timeout client-fin 30s".to_owned(),
            "timeout server-fin 30s".to_owned(),
            format!("timeout tunnel {}s", IDLE_OTHER.as_secs()),
            "retries 2".to_owned(),
            "option redispatch 1".to_owned(),
            "option dontlognull".to_owned(),
        ];
        defaults.extend(config.access_log.then(|| "log global".to_owned()));
        if mode == "http" {
            defaults.push(format!("timeout http-request {}s", limits.header_timeout.as_secs()));
            defaults.push(format!("timeout http-keep-alive {}s", IDLE_HTTP.as_secs()));
            // Names with other characters than letters, digits and dashes: X_Forwarded_For is X-Forwarded-For to many.
            defaults.push("option http-restrict-req-hdr-names delete".to_owned());
            // After a reload, a client's next request on an idle connection is still answered.
            defaults.push("option idle-close-on-response".to_owned());
        }
        defaults.iter().for_each(|setting| line(&mut text, setting));
    }
    // The socket exists in any case: HAProxy doesn't run without a listener.
    text.push_str("frontend prometheus from http\n");
    line(&mut text, &format!("bind unix@{}/metrics.sock mode 600", config.haproxy.directory.display()));
    config.metrics.iter().for_each(|address| line(&mut text, &format!("bind {address}")));
    for setting in [
        "timeout client 10s",
        "no log",
        "http-request use-service prometheus-exporter if { path /metrics }",
        "http-request return status 404",
    ] {
        line(&mut text, setting);
    }
    text
}

fn proxy(config: &Config, id: &ListenerId, listener: &Listener) -> Proxy {
    let mut text = String::new();
    let mode = if listener.is_http() { "http" } else { "tcp" };
    let _ = writeln!(text, "frontend {id} from {mode}");
    for address in &listener.addresses {
        let address = SocketAddr::new(*address, id.port.get());
        line(&mut text, &format!("bind {address}{}", tls_options(id, listener)));
    }
    let default = match listener.protocol {
        _ if listener.redirects => IDLE_HTTP,
        BackendProtocol::Http | BackendProtocol::Https | BackendProtocol::H2c => IDLE_HTTP,
        BackendProtocol::Tcp | BackendProtocol::Tls | BackendProtocol::Grpc => IDLE_OTHER,
    };
    let idle = listener.idle.unwrap_or(default).as_secs().max(1);
    line(&mut text, &format!("timeout client {idle}s"));
    admitted(&mut text, config, &listener.source_ranges);
    if listener.is_http() {
        guard(&mut text, listener);
    }
    if config.access_log {
        log_format(&mut text, id, listener.is_http());
    }
    if listener.redirects {
        line(&mut text, "http-request redirect location https://%[var(txn.hostname)]%[pathq] code 308");
        return Proxy { sections: text, server_options: "", servers: BTreeSet::new(), secrets: Vec::new() };
    }
    if listener.is_http() {
        forwarded(&mut text, id, listener);
    }
    line(&mut text, &format!("default_backend {id}"));
    let _ = writeln!(text, "backend {id} from {mode}");
    line(&mut text, &format!("timeout server {idle}s"));
    // Servers can be added at run time only with some of the algorithms.
    match (listener.affinity, listener.is_http()) {
        (true, _) => {
            line(&mut text, "balance source");
            line(&mut text, "hash-type consistent");
        }
        (false, true) => line(&mut text, "balance roundrobin"),
        (false, false) => line(&mut text, "balance leastconn"),
    }
    let server_options = match listener.protocol {
        BackendProtocol::Tcp | BackendProtocol::Http => "",
        BackendProtocol::Tls => " ssl verify none",
        BackendProtocol::Https => " ssl verify none alpn h2,http/1.1 sni var(txn.hostname)",
        BackendProtocol::H2c | BackendProtocol::Grpc => " proto h2",
    };
    let secrets = listener.tls.as_ref().map(|tls| tls.secrets.clone()).unwrap_or_default();
    Proxy { sections: text, server_options, servers: listener.servers.clone(), secrets }
}

fn tls_options(id: &ListenerId, listener: &Listener) -> String {
    let Some(tls) = &listener.tls else { return String::new() };
    let mut options = format!(" ssl crt-list {}", list_file(id));
    if listener.is_http() {
        options.push_str(" alpn h2,http/1.1");
    }
    if tls.policy == TlsPolicy::Modern {
        options.push_str(" ssl-min-ver TLSv1.3");
    }
    options
}

/// Which connections are accepted.
fn admitted(text: &mut String, config: &Config, ranges: &[IpNet]) {
    for some in ranges.chunks(RANGES_IN_LINE) {
        let some: Vec<String> = some.iter().map(ToString::to_string).collect();
        line(text, &format!("acl admitted src {}", some.join(" ")));
    }
    if !ranges.is_empty() {
        line(text, "tcp-request connection reject unless admitted");
    }
    let max = config.limits.connections_per_source;
    if max > 0 {
        line(text, "stick-table type ipv6 size 100k expire 60s store conn_cur");
        line(text, "tcp-request connection track-sc0 src");
        line(text, &format!("tcp-request connection reject if {{ sc0_conn_cur gt {max} }}"));
    }
}

/// Refuses requests on whose host different programs may disagree, and those for another host than the TLS handshake
/// (RFC 9110, 7.2 and 15.5.20).
fn guard(text: &mut String, listener: &Listener) {
    line(text, "http-request deny deny_status 400 if HTTP_1.1 !{ req.hdr(host) -m found }");
    line(text, "http-request deny deny_status 400 if { req.hdr_cnt(host) gt 1 }");
    // HAProxy 2.6 accepts NUL in values of headers.
    line(text, r#"http-request deny deny_status 400 if { req.hdrs -m reg "\\x00" }"#);
    line(text, "http-request set-var(txn.host) req.hdr(host),lower");
    line(text, r"acl host_is_valid var(txn.host) -m reg ^[a-z0-9._-]+(:[0-9]{1,5})?$");
    line(text, r"acl host_is_valid var(txn.host) -m reg ^\[[0-9a-f:.]+\](:[0-9]{1,5})?$");
    let host = if listener.redirects { "" } else { "{ var(txn.host) -m found } " };
    line(text, &format!("http-request deny deny_status 400 if {host}!host_is_valid"));
    line(text, "http-request set-var(txn.hostname) var(txn.host),regsub(:[0-9]+$,)");
    if listener.tls.is_some() {
        let rule = "http-request return status 421 content-type text/plain string \"the TLS connection is for another host\"";
        line(
            text,
            &format!("{rule} if {{ ssl_fc_has_sni }} !{{ ssl_fc_sni,lower,strcmp(txn.hostname) eq 0 }}"),
        );
    }
}

fn forwarded(text: &mut String, id: &ListenerId, listener: &Listener) {
    let scheme = if listener.tls.is_some() { "https" } else { "http" };
    line(text, "http-request del-header forwarded");
    line(text, "http-request del-header x-real-ip");
    match listener.forwarded {
        ForwardedHeaders::Append => {
            for header in ["proto", "host", "port", "server", "ssl", "prefix"] {
                line(text, &format!("http-request del-header x-forwarded-{header}"));
            }
            line(text, "http-request add-header x-forwarded-for %[src]");
        }
        ForwardedHeaders::Replace | ForwardedHeaders::Remove => {
            line(text, "http-request del-header x-forwarded- -m beg");
        }
    }
    match listener.forwarded {
        ForwardedHeaders::Replace => line(text, "http-request set-header x-forwarded-for %[src]"),
        ForwardedHeaders::Append => {}
        ForwardedHeaders::Remove => return,
    }
    line(text, &format!("http-request set-header x-forwarded-proto {scheme}"));
    line(text, &format!("http-request set-header x-forwarded-port {}", id.port));
    line(text, "http-request set-header x-forwarded-host %[var(txn.host)] if { var(txn.host) -m found }");
}

/// The access log: JSON lines. Texts of clients are escaped by `json(utf8s)`, which removes what is not UTF-8.
fn log_format(text: &mut String, id: &ListenerId, is_http: bool) {
    let service = &id.service;
    let mut format = format!(
        r#"{{"time":"%[date,utime(%Y-%m-%dT%H:%M:%SZ)]","service":"{service}","port":{},"client":"%ci","clientPort":%cp,"#,
        id.port
    );
    if is_http {
        // HAProxy adds its header after the rules.
        line(text, "http-request del-header x-request-id");
        line(text, "unique-id-format %[uuid()]");
        line(text, "unique-id-header x-request-id");
        format.push_str(
            r#""id":"%[unique-id]","tls":"%sslv","version":"%HV","method":"%[capture.req.method,json(utf8s)]","host":"%[var(txn.host),json(utf8s)]","uri":"%[capture.req.uri,json(utf8s)]","status":%ST,"#,
        );
    } else {
        format.push_str(r#""tls":"%sslv","#);
    }
    let duration = if is_http { "%Ta" } else { "%Tt" };
    let _ = write!(format, r#""bytes":%B,"milliseconds":{duration},"server":"%s","termination":"%ts"}}"#);
    line(text, &format!("log-format '{format}'"));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidegate_policy::edge::Tls;

    use super::*;

    fn config(text: &str) -> Config {
        let head = "apiVersion: tidegate.dev/v1alpha1\nkind: EdgeConfig\naddresses: [203.0.113.0/24]\n";
        let loaded = crate::config::parse(&format!("{head}{text}"), "edge.yaml", Path::new("/"));
        loaded.config.unwrap_or_else(|| panic!("{}", loaded.report))
    }

    fn id(name: &str, port: u16) -> ListenerId {
        ListenerId { service: ObjectKey::new("shop", name), port: port.try_into().expect("not 0") }
    }

    fn listener(protocol: BackendProtocol) -> Listener {
        Listener {
            addresses: ["203.0.113.1", "2001:db8::1"].map(|ip| ip.parse().expect("an address")).into(),
            tls: Some(Tls {
                policy: TlsPolicy::Intermediate,
                secrets: vec![ObjectKey::new("shop", "a.example"), ObjectKey::new("shop", "b")],
            }),
            redirects: false,
            protocol,
            forwarded: ForwardedHeaders::Replace,
            source_ranges: Vec::new(),
            affinity: false,
            idle: None,
            servers: ["10.0.0.1:8080", "[fd00::1]:8080"].map(|at| at.parse().expect("an address")).into(),
        }
    }

    /// Listeners that use every option.
    fn every_option() -> BTreeMap<ListenerId, Listener> {
        let mut listeners = BTreeMap::new();
        for (port, protocol) in (1..).zip([
            BackendProtocol::Tcp,
            BackendProtocol::Tls,
            BackendProtocol::Http,
            BackendProtocol::Https,
            BackendProtocol::H2c,
            BackendProtocol::Grpc,
        ]) {
            listeners.insert(id("web", port), listener(protocol));
            let ranges = (0..100).map(|n| format!("10.{n}.0.0/16").parse().expect("a network"));
            let other = Listener {
                tls: None,
                forwarded: ForwardedHeaders::Append,
                source_ranges: ranges.collect(),
                affinity: true,
                idle: Some(Duration::from_secs(7)),
                ..listener(protocol)
            };
            listeners.insert(id("other", port), other);
        }
        let web = listener(BackendProtocol::Http);
        let tls = web.tls.clone().map(|tls| Tls { policy: TlsPolicy::Modern, ..tls });
        listeners
            .insert(id("modern", 443), Listener { tls, forwarded: ForwardedHeaders::Remove, ..web.clone() });
        let redirect = Listener { tls: None, redirects: true, servers: BTreeSet::new(), ..web };
        listeners.insert(id("web", 80), redirect);
        listeners
    }

    #[test]
    fn the_text_is_the_golden_one() {
        let config = config("accessLog: true\nhaproxy: {threads: 2}");
        let text = Rendered::new(&config, &every_option()).text();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.cfg");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &text).expect("written");
        }
        assert_eq!(text, std::fs::read_to_string(&path).expect("the file"), "see tests/golden.cfg");
    }

    #[test]
    fn only_a_change_of_servers_needs_no_reload() {
        let config = config("");
        let rendered = |change: &dyn Fn(&mut Listener)| {
            let mut web = listener(BackendProtocol::Http);
            change(&mut web);
            Rendered::new(&config, &BTreeMap::from([(id("web", 443), web)]))
        };
        let before = rendered(&|_| {});
        assert!(rendered(&|web| web.servers.clear()).differs_only_in_servers(&before));
        let secrets = |web: &mut Listener| web.tls.as_mut().expect("it has TLS").secrets.truncate(1);
        assert!(!rendered(&secrets).differs_only_in_servers(&before));
        assert!(!rendered(&|web| web.affinity = true).differs_only_in_servers(&before));
        assert!(!Rendered::new(&config, &BTreeMap::new()).differs_only_in_servers(&before));
    }
}
