//! A machine of a reader of the guide: a network namespace and a root directory of its own, so that commands may write
//! to `/etc` and `/run` as on a real machine.
//!
//! The root is an overlay over that of this machine, with the binary under test as `/usr/bin/tidegate`. Nothing outside
//! of it changes, and it disappears with the lab.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, Namespace, wait_for};

use crate::world::{APPLIED, tidegate};

/// Builds the root in the directory $1, and stays in it. /run and /tmp are empty, as after the start of a machine.
const BUILD: &str = r#"
set -eu
mount -t tmpfs -o mode=0755 guide "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount --rbind /dev dev
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=0755 run run
mount -t tmpfs -o mode=1777 tmp tmp
rm -f usr/local/bin/tidegate
: > usr/bin/tidegate
mount --bind "$2" usr/bin/tidegate
mkdir -p run/lock var/lib/tidegate
# The package creates this directory and this user.
mkdir -p etc/tidegate/manifests
chroot . bash -c 'id tidegate > /dev/null 2>&1 || useradd --system tidegate'
exec chroot . bash -c 'cd /root; : > /run/ready; exec sleep infinity'
"#;

/// What systemd does with the units of the pages: starts, stops and reloads them. It waits until the gateway
/// forwards.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -eu
pid() { cat /run/tidegate.pid; }
start() {
  mkdir -p /run/tidegate
  touch /var/log/tidegate.log
  before=$(stat -c %s /var/log/tidegate.log)
  tidegate run >> /var/log/tidegate.log 2>&1 &
  echo $! > /run/tidegate.pid
  until tail -c "+$((before + 1))" /var/log/tidegate.log | grep -q GatewayStarted; do
    kill -0 "$(pid)" || { cat /var/log/tidegate.log; exit 1; }
    sleep 0.1
  done
}
stop() {
  kill "$(pid)"
  while kill -0 "$(pid)" 2> /dev/null; do sleep 0.1; done
}
verb=$1
shift
if [[ $1 == --now ]]; then shift; fi
for unit; do
  case $verb-$unit in
    start-tidegate | enable-tidegate) start ;;
    stop-tidegate) stop ;;
    restart-tidegate) stop; start ;;
    reload-tidegate) kill -HUP "$(pid)" ;;
    enable-keepalived) keepalived ;;
    restart-frr) /usr/lib/frr/frrinit.sh start ;;
    *) echo "no $verb of $unit here" >&2; exit 1 ;;
  esac
done
"#;

/// What the installation of nginx does: starts a web server at port 80.
const WEB: &str = r#"#!/bin/bash
set -eu
mkdir -p /var/www/html /var/log/nginx /var/lib/nginx
cat > /etc/nginx/nginx.conf <<'END'
events {}
http { access_log /var/log/nginx/access.log; server { listen 80 default_server; root /var/www/html; } }
END
echo "hello from the server" > /var/www/html/index.html
nginx
"#;

/// The log of the gateway that `SYSTEMCTL` starts.
const LOG: &str = "/var/log/tidegate.log";
/// The limit of the commands of one block, in seconds.
const LIMIT_SECONDS: &str = "120";

/// A machine. It ends with its lab.
pub(super) struct Host {
    /// A process that has the root directory.
    anchor: LabProcess,
    output: PathBuf,
}

impl Host {
    /// Builds the machine in this namespace of the lab.
    pub(super) fn start(lab: &Lab, name: &str, namespace: &Namespace) -> Self {
        let directory = lab.directory().join(format!("{name}.root"));
        fs::create_dir(&directory).expect("it is new");
        let (path, binary) = (directory.display().to_string(), tidegate().display().to_string());
        let args = ["-c", BUILD, "build", &path, &binary];
        let mut anchor =
            LabProcess::start(namespace, lab.directory(), name, "bash", &args).expect("bash runs");
        let ready = root_of(&anchor).join("run/ready");
        let up = wait_for("the root of a host", APPLIED, || {
            (ready.exists() || !anchor.runs()).then(|| anchor.runs())
        });
        assert!(up.expect("it ends or is ready"), "the root of {name} (needs overlayfs): {}", anchor.log());
        let host = Self { anchor, output: lab.directory().join(format!("{name}.output")) };
        host.write("/usr/local/sbin/systemctl", SYSTEMCTL);
        host.write("/usr/local/sbin/web", WEB);
        host
    }

    /// The path of one of its files for the test.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        root_of(&self.anchor).join(path.trim_start_matches('/'))
    }

    /// Writes a file, which everyone may execute, and its directories.
    pub(super) fn write(&self, path: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("an absolute path")).expect("directories");
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if text.starts_with("#!") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
    }

    /// Runs commands in a shell of root. Returns whether all succeeded, and what they and their background processes
    /// have printed so far.
    pub(super) fn run(&self, commands: &str) -> (bool, String) {
        self.write("/tmp/step.sh", commands);
        let output = fs::File::create(&self.output).expect("a file of the lab");
        let mut command = Command::new("timeout");
        command.args([
            "--kill-after=5",
            LIMIT_SECONDS,
            "nsenter",
            "--target",
            &self.anchor.pid().to_string(),
        ]);
        command.args(["--mount", "--net", "--root", "--wd", "env", "-i", "HOME=/root", "LC_ALL=C.UTF-8"]);
        command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(["bash", "-euo", "pipefail", "/tmp/step.sh"]).stdin(std::process::Stdio::null());
        command.stdout(output.try_clone().expect("a descriptor")).stderr(output);
        let status = command.status().expect("timeout and nsenter run (coreutils, util-linux)");
        (status.success(), read(&self.output))
    }

    /// The end of the gateway's log, if one was started here.
    pub(super) fn gateway_log(&self) -> String {
        let log = read(&self.path(LOG));
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

fn root_of(anchor: &LabProcess) -> PathBuf {
    Path::new("/proc").join(anchor.pid().to_string()).join("root")
}

/// The text of a file; empty if there is none.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = fs::File::open(path) {
        // A file that can't be read shows nothing; the test fails anyway.
        let _ = file.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
