//! A kubelet for the tests: runs the Pods of a real API server as hosts of the lab, without a container runtime.
//!
//! A Pod is a host on the servers' link, with the addresses of a server and the gateway as its default route. A
//! container is a process whose root directory contains only its program and the files of its volumes, so the program
//! must be linked statically. An image `REGISTRY/NAME:TAG` runs the program `NAME` of one directory, whatever its tag.
//!
//! What is different from a real kubelet: it schedules every Pod to its only Node itself. There are no probes: a Pod is
//! ready when its processes run. Pods end without a grace period. It mounts Secrets and ConfigMaps and ignores other
//! volumes, such as the token of the account. There are no init containers, logs, limits, or other features.
//!
//! Invariant: each round compares all Pods with the processes, so a lost request or an ended process is repeated in the
//! next round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, KeyToPath, Pod, Secret, Volume};
use serde_json::{Value, json};
use tidegate_netlab::addresses::{self, Family};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, Namespace};

use crate::api::Admin;

/// The name of the Node.
pub(crate) const NODE: &str = "lab";
/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(200);
const MERGE_PATCH: &str = "application/merge-patch+json";

/// Runs `work` while a kubelet runs the Pods of the cluster.
pub(crate) fn while_running<T>(lab: &Lab, admin: &Admin, programs: &Path, work: impl FnOnce() -> T) -> T {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    admin.apply(&node.to_string()).expect("a Node");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when `work` panics: the scope waits for the thread.
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let (pods, printed) = (BTreeMap::new(), BTreeSet::new());
            let mut kubelet = Kubelet { lab, admin, programs, pods, started: 0, printed };
            while !stop.load(Ordering::Relaxed) {
                kubelet.round();
                std::thread::sleep(ROUND);
            }
        });
        work()
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Kubelet<'a> {
    lab: &'a Lab,
    admin: &'a Admin,
    programs: &'a Path,
    /// By UID.
    pods: BTreeMap<String, RunningPod>,
    /// The number of Pods that were started so far.
    started: u32,
    /// The errors that were printed. A Pod that waits for a Secret has the same one in every round.
    printed: BTreeSet<String>,
}

/// The host of a Pod and its processes.
struct RunningPod {
    /// The number of the server whose addresses it has.
    number: u8,
    host: Namespace,
    directory: PathBuf,
    containers: Vec<(Command, LabProcess)>,
    /// Whether the API server accepted its status.
    is_reported: bool,
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// The command of a container.
struct Command {
    name: String,
    arguments: Vec<String>,
}

impl Kubelet<'_> {
    fn round(&mut self) {
        // The server may be stopped or stopping.
        let Ok(list) = self.admin.request("GET", "/api/v1/pods", None) else { return };
        let pods: Vec<Pod> = serde_json::from_value(list["items"].clone()).expect("Pods of the API");
        let (ending, living): (Vec<&Pod>, Vec<&Pod>) =
            pods.iter().partition(|pod| pod.metadata.deletion_timestamp.is_some());
        let ended: Vec<String> =
            self.pods.keys().filter(|uid| !living.iter().any(|pod| uid_of(pod) == **uid)).cloned().collect();
        for uid in ended {
            self.stop(&uid);
        }
        for pod in ending {
            let now = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(pod)}});
            self.send("DELETE", &path_of(pod), ("application/json", &now));
        }
        for pod in living {
            if let Err(error) = self.run(pod)
                && self.printed.insert(format!("{} {error}", uid_of(pod)))
            {
                eprintln!("kubelet: {}: {error}", path_of(pod));
            }
        }
    }

    /// Does the next step for a Pod that should run.
    ///
    /// # Errors
    /// Describes what the Pod waits for.
    fn run(&mut self, pod: &Pod) -> Result<(), String> {
        if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.metadata.name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
            });
            self.send("POST", &format!("{}/binding", path_of(pod)), ("application/json", &binding));
            return Ok(());
        }
        if let Some(running) = self.pods.get_mut(uid_of(pod)) {
            running.restart_ended();
        } else {
            let started = self.start(pod)?;
            self.pods.insert(uid_of(pod).to_owned(), started);
        }
        self.report(pod);
        Ok(())
    }

    fn start(&mut self, pod: &Pod) -> Result<RunningPod, String> {
        let spec = pod.spec.as_ref().ok_or("no spec")?;
        let number = self.free_number()?;
        let directory = self.lab.directory().join(format!("pod{}", self.started));
        let commands: Result<Vec<Command>, String> = spec
            .containers
            .iter()
            .map(|container| {
                let root = directory.join(&container.name);
                self.fill(pod, container, &root)?;
                let address = addresses::server(Family::V4, number).to_string();
                command(pod, container, &root, &address)
            })
            .collect();
        let commands = commands?;
        let host = self.lab.add_host(&format!("pod{}", self.started), &addresses::server_mac(number));
        let host = host.map_err(|error| format!("{error:#}"))?;
        self.started += 1;
        configure(&host, number).map_err(|error| format!("{error:#}"))?;
        let containers = commands.into_iter().map(|command| {
            let process = command.start(&host, &directory);
            (command, process)
        });
        let containers = containers.collect();
        Ok(RunningPod { number, host, directory, containers, is_reported: false })
    }

    /// The number of a server that no Pod has. The least recently used is the best, because flows of its previous Pod
    /// may still exist.
    fn free_number(&self) -> Result<u8, String> {
        let numbers = (0..u32::from(addresses::SERVERS_MAX))
            .map(|offset| (self.started + offset) % u32::from(addresses::SERVERS_MAX) + 1)
            .map(|number| u8::try_from(number).expect("at most SERVERS_MAX"));
        let is_free = |number: &u8| self.pods.values().all(|pod| pod.number != *number);
        numbers.into_iter().find(is_free).ok_or_else(|| "there are too many Pods".into())
    }

    /// Fills the root directory of a container: its program and its volumes.
    fn fill(&self, pod: &Pod, container: &Container, root: &Path) -> Result<(), String> {
        let text = |error: std::io::Error| format!("{}: {error}", root.display());
        std::fs::create_dir_all(root).map_err(text)?;
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        for mount in container.volume_mounts.as_deref().unwrap_or_default() {
            let volume = volumes.iter().find(|volume| volume.name == mount.name);
            let Some(files) = self.files(pod, volume.ok_or("a mount without a volume")?)? else { continue };
            let directory = root.join(mount.mount_path.trim_start_matches('/'));
            std::fs::create_dir_all(&directory).map_err(text)?;
            for (name, bytes) in files {
                std::fs::write(directory.join(name), bytes).map_err(text)?;
            }
        }
        let image = container.image.as_deref().unwrap_or_default();
        let program = self.programs.join(program_of(image));
        let link = root.join(PROGRAM);
        if !link.exists() {
            // The lab may be on another file system.
            std::fs::hard_link(&program, &link)
                .or_else(|_| std::fs::copy(&program, &link).map(drop))
                .map_err(|error| format!("image {image}: {}: {error}", program.display()))?;
        }
        Ok(())
    }

    /// The files of a volume; `None` for a kind that is ignored.
    fn files(&self, pod: &Pod, volume: &Volume) -> Result<Option<Files>, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let get = |kind: &str, name: &str| {
            let path = format!("/api/v1/namespaces/{namespace}/{kind}/{name}");
            self.admin.request("GET", &path, None).map_err(|refusal| format!("{path}: {refusal}"))
        };
        let (data, items): (BTreeMap<String, ByteString>, _) = if let Some(secret) = &volume.secret {
            let found = get("secrets", secret.secret_name.as_deref().unwrap_or_default())?;
            let found: Secret = serde_json::from_value(found).expect("a Secret of the API");
            (found.data.unwrap_or_default(), secret.items.as_ref())
        } else if let Some(map) = &volume.config_map {
            let found: ConfigMap =
                serde_json::from_value(get("configmaps", &map.name)?).expect("a ConfigMap of the API");
            let data = found.data.unwrap_or_default();
            (
                data.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes()))).collect(),
                map.items.as_ref(),
            )
        } else {
            return Ok(None);
        };
        Ok(Some(selected(data, items.map(Vec::as_slice))?))
    }

    /// Reports that a Pod is ready.
    fn report(&mut self, pod: &Pod) {
        let Some(running) = self.pods.get(uid_of(pod)).filter(|running| !running.is_reported) else { return };
        let ips = Family::BOTH.map(|family| addresses::server(family, running.number).to_string());
        let conditions: Vec<Value> = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
            .map(|kind| json!({"type": kind, "status": "True"}))
            .into();
        let status = json!({
            "metadata": {"uid": uid_of(pod)},
            "status": {
                "phase": "Running", "conditions": conditions, "podIP": ips[0],
                "podIPs": ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
            },
        });
        let is_reported = self.send("PATCH", &format!("{}/status", path_of(pod)), (MERGE_PATCH, &status));
        if let Some(running) = self.pods.get_mut(uid_of(pod)) {
            running.is_reported = is_reported;
        }
    }

    fn stop(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            drop(pod.containers);
            self.lab.remove_host(&pod.host);
            // It is removed with the lab at the latest.
            let _ = std::fs::remove_dir_all(&pod.directory);
        }
    }

    /// Sends a request. After a conflict with another change, the next round sends it again.
    fn send(&self, method: &str, path: &str, body: (&str, &Value)) -> bool {
        match self.admin.request(method, path, Some(body)) {
            Ok(_) => true,
            Err(refusal) => {
                if !matches!(refusal.code, 404 | 409) {
                    eprintln!("kubelet: {method} {path}: {refusal}");
                }
                false
            }
        }
    }
}

impl RunningPod {
    /// Starts containers again whose process has ended.
    fn restart_ended(&mut self) {
        for (command, process) in &mut self.containers {
            if !process.runs() {
                eprintln!("kubelet: container {} ended:\n{}", command.name, process.log_tail(5));
                *process = command.start(&self.host, &self.directory);
            }
        }
    }
}

impl Command {
    fn start(&self, host: &Namespace, directory: &Path) -> LabProcess {
        LabProcess::start(host, directory, &self.name, "/usr/bin/env", &self.arguments).expect("`ip` runs")
    }
}

/// The name of a container's program in its root directory. No mount of the suite's manifests hides it.
const PROGRAM: &str = "program";

/// The program in the root directory of a container, with only the variables of its specification.
fn command(pod: &Pod, container: &Container, root: &Path, address: &str) -> Result<Command, String> {
    if container.command.is_some() {
        return Err(format!("container {}: `command` is not supported", container.name));
    }
    let mut arguments = vec!["-i".to_owned()];
    for variable in container.env.as_deref().unwrap_or_default() {
        arguments.push(format!("{}={}", variable.name, value_of(pod, variable, address)?));
    }
    arguments.extend(["/usr/sbin/chroot".to_owned(), root.display().to_string(), format!("/{PROGRAM}")]);
    arguments.extend(container.args.iter().flatten().cloned());
    Ok(Command { name: container.name.clone(), arguments })
}

/// The value of a variable: literal, or a field of the Pod.
fn value_of(pod: &Pod, variable: &EnvVar, address: &str) -> Result<String, String> {
    let Some(source) = &variable.value_from else { return Ok(variable.value.clone().unwrap_or_default()) };
    let field = source.field_ref.as_ref().map(|field| field.field_path.as_str());
    let value = match field {
        Some("metadata.name") => pod.metadata.name.as_deref(),
        Some("metadata.namespace") => pod.metadata.namespace.as_deref(),
        Some("metadata.uid") => pod.metadata.uid.as_deref(),
        Some("spec.nodeName") => Some(NODE),
        Some("status.podIP") => Some(address),
        _ => return Err(format!("variable {}: accepted: a value or a fieldRef", variable.name)),
    };
    Ok(value.unwrap_or_default().to_owned())
}

/// The files of `items`, or all.
fn selected(mut data: BTreeMap<String, ByteString>, items: Option<&[KeyToPath]>) -> Result<Files, String> {
    let Some(items) = items else { return Ok(data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect()) };
    let file = |item: &KeyToPath| {
        let bytes = data.remove(&item.key).ok_or_else(|| format!("no key {}", item.key))?;
        Ok((item.path.clone(), bytes.0))
    };
    items.iter().map(file).collect()
}

fn configure(host: &Namespace, number: u8) -> anyhow::Result<()> {
    for (family, length) in [(Family::V4, 24), (Family::V6, 64)] {
        let (address, gateway) =
            (addresses::server(family, number), addresses::GATEWAY_FOR_SERVERS[family as usize]);
        let lines = format!("addr add {address}/{length} dev eth0\nroute add default via {gateway}\n");
        host.ip_batch_of(family, &lines)?;
    }
    Ok(())
}

/// The name of an image without registry, tag and digest.
fn program_of(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split([':', '@']).next().unwrap_or_default()
}

fn uid_of(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn path_of(pod: &Pod) -> String {
    let [namespace, name] =
        [&pod.metadata.namespace, &pod.metadata.name].map(|text| text.as_deref().unwrap_or_default());
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

#[test]
fn an_image_names_its_program() {
    assert_eq!(program_of("registry.k8s.io/gateway-api/echo-basic:v1.5.1"), "echo-basic");
    assert_eq!(program_of("localhost:5000/coredns@sha256:00"), "coredns");
    assert_eq!(program_of("echo-basic"), "echo-basic");
}
