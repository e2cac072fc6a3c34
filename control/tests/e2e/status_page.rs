//! The status page in headless Chromium, beside a gateway that forwards. `UPDATE_DOCS=1` replaces the screenshots in
//! `docs/images`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{GatewayOptions, wait_for};

use crate::world::{World, beside_others};

/// How long Chromium may take to show a view, on a busy machine.
const SHOWN: Duration = Duration::from_secs(120);

/// The address of a view.
fn address(view: &str) -> String {
    format!("http://127.0.0.1:9470/{view}")
}

/// Chromium in the namespace of the gateway, with an own profile in `directory`. Time is virtual: it runs until this
/// many milliseconds have passed for the page and no request is open.
fn chromium(world: &World, directory: &Path) -> Command {
    let mut chromium = world.lab.gateway().command("chromium");
    chromium.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--timeout=20000",
        "--virtual-time-budget=3000",
    ]);
    chromium.arg(format!("--user-data-dir={}", directory.join("chromium").display()));
    chromium
}

fn output_of(mut command: Command) -> String {
    let output =
        command.output().expect("Chromium runs (Debian's package chromium, which `make setup` installs)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until the document of a view contains all of these, after its scripts have shown it.
fn wait_for_document(world: &World, directory: &Path, view: &str, shown: &[&str]) {
    let mut last = String::new();
    let found = wait_for("the view", SHOWN, || {
        let mut command = chromium(world, directory);
        command.arg("--dump-dom").arg(address(view));
        last = output_of(command);
        shown.iter().all(|text| last.contains(text)).then_some(())
    });
    found.unwrap_or_else(|error| panic!("{view}: {shown:?}: {error:#}\n{last}"));
}

/// Takes a screenshot of this size, and returns its file.
fn screenshot(world: &World, directory: &Path, view: &str, name: &str, size: (u32, u32)) -> PathBuf {
    let file = directory.join(name);
    // A page without data is smaller.
    let image = wait_for("a screenshot that shows something", SHOWN, || {
        let mut command = chromium(world, directory);
        command.arg(format!("--screenshot={}", file.display()));
        command.arg(format!("--window-size={},{}", size.0, size.1));
        if name.contains("dark") {
            command.arg("--force-dark-mode");
        }
        command.arg(address(view));
        output_of(command);
        std::fs::read(&file).ok().filter(|image| image.len() > 20_000)
    });
    let image = image.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    // The width and height in the header of a PNG (section 11.2.2 of its specification).
    let number = |at: usize| u32::from_be_bytes(image[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((&image[1..4], number(16), number(20)), (&b"PNG"[..], size.0, size.1), "{name}");
    file
}

#[test]
fn a_browser_shows_services_backends_and_faults_live() {
    let _machine = beside_others();
    let services = manifests(&[1, 2]);
    let world = World::start(2, GatewayOptions { page: true, ..GatewayOptions::default() }, &services);
    let path = all_paths().into_iter().find(|path| path.forwarding == "fullnat").expect("a path");
    world.wait_until_served(path);
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();

    let of_gateway = ["<title>lab - Tidegate</title>", "serving, ready", "Workers (1)", "Interfaces (1)"];
    wait_for_document(&world, directory, "", &of_gateway);
    let links: Vec<String> =
        services.iter().map(|service| format!("href=\"#service=lab/{}\"", service.name)).collect();
    let links: Vec<&str> = links.iter().map(String::as_str).collect();
    wait_for_document(&world, directory, "#services", &links);
    let view = format!("#service=lab/{}", path.service);
    wait_for_document(&world, directory, &view, &["Backends (", "Passing", "Events ("]);
    wait_for_document(&world, directory, "#events", &["GatewayStarted"]);
    wait_for_document(&world, directory, "#explain", &["What happens to a packet"]);

    let mut files = Vec::new();
    for (view, name, size) in [
        ("", "status-page-overview.png", (1280, 760)),
        (&*view, "status-page-service.png", (1280, 520)),
        ("#services", "status-page-dark.png", (1280, 620)),
        ("#services", "status-page-phone.png", (390, 844)),
    ] {
        files.push(screenshot(&world, directory, view, name, size));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
        std::fs::create_dir_all(&images).expect("a directory");
        for file in files {
            std::fs::copy(&file, images.join(file.file_name().expect("a name"))).expect("copied");
        }
    }
}
