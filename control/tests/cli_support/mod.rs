//! Shared code of the command line tests: a directory with configuration and manifests, and the built binary run on it.
//! Each test binary uses a part of it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_capture::{Reader, Writer};

/// A configuration that serves every mode: a router towards clients and backends, and two on-link backends.
pub(crate) const GATEWAY: &str = r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {name: edge-1}
dataplane:
  cores: [1]
  flowTable: {entriesPerCore: 4096}
  interfaces:
    - name: uplink
      device: "net_af_packet,iface=eth1"
      addresses: ["192.0.2.2/24", "2001:db8::2/64"]
      mac: "02:00:00:00:00:02"
  routes: [{to: "0.0.0.0/0", via: "192.0.2.1"}, {to: "::/0", via: "2001:db8::1"}]
  neighbors:
    - {ip: "192.0.2.1", mac: "02:00:00:00:00:01"}
    - {ip: "2001:db8::1", mac: "02:00:00:00:00:01"}
    - {ip: "192.0.2.11", mac: "02:00:00:00:00:11"}
    - {ip: "192.0.2.12", mac: "02:00:00:00:00:12"}
    - {ip: "192.0.2.13", mac: "02:00:00:00:00:13"}
    - {ip: "2001:db8::11", mac: "02:00:00:00:00:11"}
    - {ip: "2001:db8::12", mac: "02:00:00:00:00:12"}
    - {ip: "2001:db8::13", mac: "02:00:00:00:00:13"}
  snatAddresses: ["192.0.2.3", "2001:db8::3"]
  tunnelSource: ["192.0.2.2", "2001:db8::2"]
pools:
  - {name: public, addresses: ["203.0.113.0/28", "2001:db8:1::/124"], autoAssign: true, externalIPs: true}
"#;

/// A temporary directory that is removed at the end of the test.
pub(crate) struct Site {
    directory: TempDir,
}

impl Site {
    /// Creates a site with this configuration and these manifests, given by file name.
    pub(crate) fn new(gateway: &str, manifests: &[(&str, &str)]) -> Self {
        let site = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        fs::create_dir(site.path("manifests")).expect("it is new");
        fs::write(site.path("gateway.yaml"), gateway).expect("it can be written");
        for (name, text) in manifests {
            fs::write(site.path("manifests").join(name), text).expect("it can be written");
        }
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command of the binary. The paths that it prints are relative to the site's directory.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        Ran::of(&command.args(args).current_dir(self.directory.path()).output().expect("the binary runs"))
    }

    /// Runs a command without the environment's kubeconfig, and with these variables, whose paths are in the site.
    pub(crate) fn run_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).current_dir(self.directory.path());
        for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            command.env_remove(name);
        }
        command.env("HOME", self.path("nobody"));
        command.envs(variables.iter().map(|(name, path)| (name, self.path(path))));
        Ran::of(&command.output().expect("the binary runs"))
    }

    pub(crate) fn check(&self) -> Ran {
        self.run(&["check", "-c", "gateway.yaml"])
    }

    /// Replays frames, one per millisecond, all from the first interface.
    pub(crate) fn replay(&self, frames: &[Vec<u8>]) -> Replay {
        write_capture(&self.path("in.pcap"), frames);
        let ran =
            self.run(&["replay", "-c", "gateway.yaml", "--in", "in.pcap", "--out", "out.pcap", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let capture = fs::read(self.path("out.pcap")).expect("replay writes it");
        let lines = ran.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        Replay { lines, text: ran.out, capture }
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        Self {
            code: output.status.code().expect("it ends by itself"),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

/// The output of `replay --json`.
pub(crate) struct Replay {
    pub(crate) lines: Vec<Value>,
    pub(crate) text: String,
    /// The bytes of the written capture.
    pub(crate) capture: Vec<u8>,
}

impl Replay {
    /// The `verdict reason` of a line.
    pub(crate) fn end(&self, n: usize) -> String {
        let word = |key: &str| self.lines[n][key].as_str().expect("every line has it").to_owned();
        format!("{} {}", word("verdict"), word("reason"))
    }

    /// The frame sent for a packet.
    pub(crate) fn frame(&self, n: usize) -> Vec<u8> {
        let frames = self.lines[n]["frames"].as_array().expect("a transmitted packet has frames");
        assert_eq!(frames.len(), 1);
        unhex(frames[0].as_str().expect("hex"))
    }

    /// The frames of the written capture.
    pub(crate) fn written(&self) -> Vec<Vec<u8>> {
        let mut reader = Reader::new(&self.capture[..]).expect("a capture");
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet().expect("a whole capture") {
            frames.push(packet.data);
        }
        frames
    }
}

pub(crate) fn write_capture(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = Writer::new(File::create(path).expect("it can be made")).expect("it can be written");
    for (n, frame) in (0_u64..).zip(frames) {
        writer.write(1_700_000_000_000_000_000 + n * 1_000_000, frame).expect("it can be written");
    }
    writer.finish().expect("it can be written");
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// A LoadBalancer Service `default/NAME` with these VIPs, TCP 80 and UDP 53 with equal target ports.
pub(crate) fn service(name: &str, forwarding: &str, vips: &str) -> String {
    let policy = if vips.contains(',') { "RequireDualStack" } else { "SingleStack" };
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  annotations:\n    \
         tidegate.dev/forwarding: {forwarding}\n    tidegate.dev/load-balancer-ips: \"{vips}\"\nspec:\n  \
         type: LoadBalancer\n  ipFamilyPolicy: {policy}\n  ports:\n    - {{name: http, port: 80}}\n    \
         - {{name: dns, port: 53, protocol: UDP}}\n"
    )
}

/// A slice of that Service.
pub(crate) fn slice(service: &str, suffix: &str, family: &str, addresses: &[&str]) -> String {
    let endpoints: Vec<String> = addresses.iter().map(|a| format!("  - addresses: [\"{a}\"]\n")).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {service}-{suffix}\n  \
         labels: {{kubernetes.io/service-name: {service}}}\naddressType: {family}\nports:\n  \
         - {{name: http, port: 80}}\n  - {{name: dns, port: 53, protocol: UDP}}\nendpoints:\n{}",
        endpoints.concat()
    )
}
