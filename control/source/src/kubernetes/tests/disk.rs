//! Tests of the objects on disk: a gateway starts while its API server is down.

use std::fs;
use std::path::PathBuf;

use test_apiserver::Fault;

use super::*;

fn file(world: &World) -> PathBuf {
    world.config.state_directory.clone().expect("it is configured").join("edge.objects.jsonl")
}

/// Runs a source until its objects are on disk.
async fn saved(world: &World) {
    world.apply_web();
    let source = world.start();
    until(&source, "objects", |u| service(u, "web").is_some()).await;
    let path = file(world);
    let whole = || fs::read_to_string(&path).is_ok_and(|text| text.contains("10.0.1.1"));
    eventually("the file", whole).await;
}

#[tokio::test]
async fn objects_from_disk_are_used_if_the_api_server_is_down_at_the_start() {
    let world = World::new();
    saved(&world).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    let source = world.start();
    let update = until(&source, "objects from disk", |_| true).await;
    assert!(service(&update, "web").is_some());
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
    let state = until_state(&source, "that they are from disk", |s| s.from_disk).await;
    assert!(!state.connected, "{state:?}");
    assert!(state.last_sync.is_some_and(|at| at < state.since), "since when is known: {state:?}");
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    world.server.refuse_connections(false).expect("the test server accepts it");
    until(&source, "the API server's", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    until_state(&source, "a connection", |s| s.connected && !s.from_disk).await;
}

#[tokio::test]
async fn an_empty_api_server_after_a_start_from_disk_removes_nothing() {
    let world = World::new();
    saved(&world).await;
    world.server.refuse_connections(true).expect("the test server accepts it");
    let source = world.start();
    until_state(&source, "objects from disk", |s| s.from_disk).await;
    world.server.restart_empty().expect("the test server accepts it");
    until_state(&source, "kept objects", |s| s.connected && s.kept.iter().any(|k| k.kind == "EndpointSlice"))
        .await;
    let update = source.updates().borrow().clone();
    assert!(service(&update, "web").is_some());
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
}

#[tokio::test]
async fn a_list_of_a_healthy_api_server_overrides_an_old_file() {
    let mut world = World::new();
    saved(&world).await;
    world.config.api_loss_grace = Duration::from_secs(60);
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(120);
    let open = fs::File::options().append(true).open(file(&world)).expect("the file exists");
    open.set_modified(long_ago).expect("the file is writable");
    world.server.delete("v1", "Service", "shop", "web");
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert!(service(&update, "web").is_none(), "it was deleted while the gateway was away");
    assert_eq!(endpoints(&update, "web-1"), ["10.0.1.1"]);
}

#[tokio::test]
async fn the_first_list_removes_objects_deleted_during_a_short_absence() {
    let world = World::new();
    world
        .server
        .apply(&(manifest("api", "10.0.2.1") + "---\n" + &manifest("db", "10.0.3.1")))
        .expect("legal");
    saved(&world).await;
    world.server.delete("v1", "Service", "shop", "web");
    let source = world.start();
    let update = until(&source, "objects", |_| true).await;
    assert!(service(&update, "web").is_none() && service(&update, "api").is_some());
    assert!(source.state().borrow().kept.is_empty());
}

#[tokio::test]
async fn the_grace_time_continues_across_a_restart() {
    let is_kept = |s: &SourceState| {
        let kept = |kind| s.kept.iter().any(|k| k.kind == kind);
        s.connected && kept("Service") && kept("EndpointSlice")
    };
    let mut world = World::new();
    saved(&world).await;
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    world.server.restart_empty().expect("the test server accepts it");
    until_state(&source, "kept objects", is_kept).await;
    source.save().await;
    drop(source);
    let text = fs::read_to_string(file(&world)).expect("the file exists");
    let left = |text: &str| text.lines().filter(|line| line.contains("\"left\":")).count();
    assert!(left(&text) >= 2, "{text}");
    // Simulates a remaining time that is shorter than the whole grace time.
    let source = world.start();
    let state = until_state(&source, "kept objects", is_kept).await;
    let until_at = state.kept.iter().map(|kept| kept.until).max().expect("some are");
    assert!(until_at <= Timestamp::now() + world.config.api_loss_grace, "{state:?}");
    assert!(service(&source.updates().borrow(), "web").is_some());
    drop(source);
    // The remaining time is at most the grace time of the current configuration.
    world.config.api_loss_grace = Duration::from_millis(300);
    let source = world.start();
    until(&source, "the end", |u| service(u, "web").is_none() && endpoints(u, "web-1").is_empty()).await;
}

#[tokio::test]
async fn kept_objects_are_saved_although_no_object_has_changed() {
    let world = World::new();
    saved(&world).await;
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    // The Services return last, after everything else is on disk.
    world.server.faults().on("/services", Fault::ServerError(503));
    world.server.restart_empty().expect("the test server accepts it");
    let is_kept = |kind: &str| {
        let text = fs::read_to_string(file(&world)).unwrap_or_default();
        text.lines()
            .any(|line| line.starts_with(&format!(r#"{{"kind":"{kind}","#)) && line.contains("\"left\":"))
    };
    eventually("the namespace to be kept", || is_kept("Namespace")).await;
    eventually("the slice to be kept", || is_kept("EndpointSlice")).await;
    world.server.faults().clear();
    until_state(&source, "the Service to be kept", |s| s.kept.iter().any(|k| k.kind == "Service")).await;
    source.save().await;
    assert!(is_kept("Service"), "{}", fs::read_to_string(file(&world)).unwrap_or_default());
}

#[tokio::test]
async fn the_latest_changes_are_saved_at_shutdown() {
    let world = World::new();
    world.apply_web();
    let late = Duration::from_secs(600);
    let save = SaveTimes { delay: late, interval: late, ..quick().save };
    let source = world.start_tuned(Tuning { save, ..quick() });
    until(&source, "objects", |u| service(u, "web").is_some()).await;
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
    assert!(!file(&world).exists());
    source.save().await;
    let text = fs::read_to_string(file(&world)).expect("it was saved");
    assert!(text.contains("10.0.1.9") && !text.contains("10.0.1.1"), "{text}");
}

#[tokio::test]
async fn a_failed_save_is_reported_and_retried_and_never_confirmed() {
    let world = World::new();
    saved(&world).await;
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    // From here on, nothing new can be written to the disk, but existing files can be touched.
    let beside = file(&world).with_extension("jsonl.new");
    eventually("no save to be in progress", || fs::create_dir(&beside).is_ok()).await;
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    let state = until_state(&source, "the failure", |s| s.unsaved.is_some()).await;
    let text = state.unsaved.unwrap_or_default();
    assert!(text.contains("edge.objects.jsonl") && text.contains("not been saved to disk since"), "{text}");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    let open = fs::File::options().append(true).open(file(&world)).expect("the file exists");
    open.set_modified(long_ago).expect("the file is writable");
    tokio::time::sleep(quick().save.confirm_interval * 10).await;
    let modified = fs::metadata(file(&world)).and_then(|m| m.modified()).expect("the file exists");
    assert_eq!(modified, long_ago, "a restart would mistake the older objects for the newest");
    // Only the disk changes.
    fs::remove_dir(&beside).expect("the directory is removable");
    until_state(&source, "a save", |s| s.unsaved.is_none()).await;
    let text = fs::read_to_string(file(&world)).expect("the file exists");
    assert!(text.contains("10.0.1.9") && !text.contains("10.0.1.1"), "{text}");
}

#[tokio::test]
async fn a_removed_file_is_written_again() {
    let world = World::new();
    saved(&world).await;
    let source = world.start();
    until_state(&source, "a connection", |s| s.connected).await;
    source.save().await;
    fs::remove_dir_all(file(&world).parent().expect("it has one")).expect("the directory is removable");
    eventually("the file", || file(&world).exists()).await;
    assert!(source.state().borrow().unsaved.is_none());
}

#[tokio::test]
async fn a_corrupt_file_is_counted_and_ignored() {
    let world = World::new();
    saved(&world).await;
    let good = fs::read_to_string(file(&world)).expect("the file exists");
    let cut = good[..good.len() - 20].to_owned();
    let altered = good.replace("10.0.1.1", "10.0.1.2");
    let newer = good.replace("\"format\":1", "\"format\":2");
    let twice_cut = good[..good.len() / 2].to_owned();
    world.server.refuse_connections(true).expect("the test server accepts it");
    for bad in [cut, altered, newer, twice_cut, String::new(), "\u{0}\u{1}".to_owned()] {
        fs::write(file(&world), &bad).expect("the file is writable");
        let source = world.start();
        let state = until_state(&source, "a failed attempt", |s| s.failures > 3).await;
        assert_eq!(state.corrupt_files, 1, "{bad:?}");
        assert_eq!(source.updates().borrow().revision, 0);
    }
    fs::write(file(&world), good).expect("the file is writable");
    let source = world.start();
    until(&source, "objects from disk", |u| service(u, "web").is_some()).await;
}

#[tokio::test]
async fn objects_of_another_api_server_are_not_used() {
    let world = World::new();
    saved(&world).await;
    let other = World::new();
    fs::create_dir_all(other.directory.path().join("state")).expect("the directory is removable");
    fs::copy(file(&world), file(&other)).expect("both are ours");
    other.server.refuse_connections(true).expect("the test server accepts it");
    let source = other.start();
    until_state(&source, "failed attempts", |s| s.failures > 3).await;
    assert_eq!(source.updates().borrow().revision, 0);
}

#[tokio::test]
async fn an_unwritable_state_directory_affects_nothing_else() {
    let mut world = World::new();
    let file = world.directory.path().join("file");
    fs::write(&file, "").expect("the directory is removable");
    world.config.state_directory = Some(file.join("state"));
    world.apply_web();
    let source = world.start();
    until(&source, "objects", |u| service(u, "web").is_some()).await;
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    until(&source, "the change", |u| endpoints(u, "web-1") == ["10.0.1.9"]).await;
}

#[test]
fn objects_are_read_once_from_the_api_server_or_from_disk() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(saved(&world));
    drop(runtime);
    let (objects, report) = load(&world.config, "edge");
    assert!(report.is_empty() && objects.services.contains_key(&key("web")), "{report}");
    world.server.refuse_connections(true).expect("the test server accepts it");
    let (objects, report) = load(&world.config, "edge");
    assert!(objects.services.contains_key(&key("web")));
    assert!(
        !report.has_errors() && report.to_string().contains("using the objects that were saved to disk"),
        "{report}"
    );
    let (objects, report) = load(&world.config, "another");
    assert!(objects.services.is_empty() && report.has_errors(), "{report}");
    assert!(report.to_string().contains("accepted: an API server that responds"), "{report}");
}

#[tokio::test]
async fn state_files_become_private_even_if_they_were_not() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let path = file(&world);
    let mode = |path: &std::path::Path| fs::metadata(path).map(|m| m.permissions().mode() & 0o777).ok();
    saved(&world).await;
    assert_eq!(mode(path.parent().expect("in a directory")), Some(0o700));
    assert_eq!(mode(&path), Some(0o600));
    // Files as an earlier version left them.
    let beside = path.with_extension("jsonl.new");
    fs::write(&beside, "cut").expect("the directory is removable");
    for old in [&path, &beside] {
        fs::set_permissions(old, fs::Permissions::from_mode(0o644)).expect("the directory is removable");
    }
    let source = world.start();
    until(&source, "objects", |u| service(u, "web").is_some()).await;
    world.server.apply(&slice("web", "10.0.1.9")).expect("legal");
    eventually("the file", || fs::read_to_string(&path).is_ok_and(|text| text.contains("10.0.1.9"))).await;
    assert_eq!(mode(&path), Some(0o600));
}

/// There are 500 Services. All but one are deleted while the gateway is not running, for longer than it takes to
/// restore an API server from a backup.
#[tokio::test]
async fn a_newer_list_of_the_same_cluster_is_trusted_over_the_disk() {
    let mut world = World::new();
    let many: String = (0..500).map(|n| manifest(&format!("s{n}"), "10.0.2.1") + "---\n").collect();
    world.server.apply(&many).expect("legal");
    saved(&world).await;
    world.config.api_loss_grace = Duration::from_secs(600);
    // Simulates that the gateway has not run for some minutes.
    let before = std::time::SystemTime::now() - Duration::from_secs(200);
    let open = fs::File::options().append(true).open(file(&world)).expect("the file exists");
    open.set_modified(before).expect("the file is writable");
    for n in 0..500 {
        world.server.delete("v1", "Service", "shop", &format!("s{n}"));
    }
    let source = world.start();
    let update = until(&source, "its objects", |u| u.objects.services.len() == 1).await;
    assert!(service(&update, "web").is_some());
    let kept = source.state().borrow().kept.clone();
    assert!(!update.keeps_services && kept.iter().all(|kept| kept.kind != "Service"), "{kept:?}");
}
