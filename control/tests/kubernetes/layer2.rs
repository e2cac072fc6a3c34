//! Leases decide which gateway owns the VIPs: two gateways on one link, and a station that sends ARP requests all the
//! time and records who answers.
//!
//! The short form kills the owner twice. `TIDEGATE_FAILOVERS=20 cargo test --workspace --test kubernetes layer2`
//! produced the figures in `benches/results`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidegate_netlab::arp_watch::ArpWatch;
use tidegate_wire::MacAddr;

use crate::world::{SEEN, Setting, World, service, slice, text};

/// `announce.l2.lease.takeover`.
const TAKEOVER: Duration = Duration::from_secs(8);
/// The maximum time for which an owner that no longer renews still answers: the Lease of 6 s minus the margin.
const ANSWERS_MAX: Duration = Duration::from_secs(5);
/// Slack for a busy machine. These tests prove bounds on overlap, not speed.
const SLACK: Duration = Duration::from_secs(30);

fn mac(gateway: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 2, u8::try_from(gateway).expect("a small number")])
}

fn name(gateway: usize) -> String {
    format!("edge-{gateway}")
}

/// Two gateways on a link in front of a Service, and the station that watches them.
struct Link {
    watch: ArpWatch,
    vip: Ipv4Addr,
    world: World,
}

/// The setting of a gateway on the link.
fn setting(gateway: usize, hand_back: &str) -> Setting {
    let takeover = TAKEOVER.as_secs();
    Setting {
        device: format!("\"net_af_packet{gateway},iface=e{gateway}\", mac: \"{}\"", mac(gateway)),
        document: format!(
            "announce: {{l2: {{mode: lease, lease: {{takeover: {takeover}s, handBackDelay: {hand_back}}}}}}}"
        ),
        ..Setting::default()
    }
}

impl Link {
    /// The link with gateway 1, which gets this kubeconfig (`None` for the usual one), and then gateway 2.
    fn new(hand_back: &str, kubeconfig: impl FnOnce(&World) -> Option<String>) -> Self {
        let first = |world: &World| Setting { kubeconfig: kubeconfig(world), ..setting(1, hand_back) };
        let objects = service("web") + &slice("web", &["10.244.0.1"]);
        let mut link = Self::with_one(&objects, first);
        link.wait_for_owner(1, Instant::now());
        link.world.start_with("edge-2", &setting(2, hand_back));
        link.wait_until_served(2);
        link
    }

    /// The link with gateway 1 only.
    fn with_one(objects: &str, first: impl FnOnce(&World) -> Setting) -> Self {
        let mut world = World::alone();
        world.apply(objects);
        let namespace = world.namespace();
        let mut lines =
            "link add l2 type bridge mcast_snooping 0 forward_delay 0\nlink set l2 up\n".to_owned();
        for n in [1, 2] {
            lines += &format!(
                "link add e{n} type veth peer name p{n}\nlink set p{n} master l2 up\nlink set e{n} arp off up\n"
            );
        }
        namespace.ip_batch(&lines).expect("the link is built");
        for n in [1, 2] {
            // The kernel must not answer ARP.
            let rp_filter = format!("ipv4/conf/e{n}/rp_filter");
            let ipv6 = format!("ipv6/conf/e{n}/disable_ipv6");
            namespace.sysctls(&[(&rp_filter, "1"), (&ipv6, "1")]).expect("sysctls");
            namespace.turn_off_offloads(&format!("e{n}")).expect("ethtool");
        }
        let first = first(&world);
        world.start_with("edge-1", &first);
        let vip = world.until("the address", || {
            let vips = world.gateway("edge-1").vips("web");
            vips.first().and_then(|vip| vip.parse().ok())
        });
        let sender = Ipv4Addr::new(192, 0, 2, 200);
        let watch = ArpWatch::start(world.namespace(), "l2", sender, &[vip]).expect("it watches");
        Self { watch, vip, world }
    }

    /// Waits until the condition `Programmed` of the Service contains this text.
    fn wait_for_message(&self, part: &str) {
        self.world.within(SLACK, &format!("{part:?} in the condition Programmed"), || {
            let service = self.world.api.get("v1", "Service", "shop", "web")?;
            let conditions = service["status"]["conditions"].as_array()?;
            let programmed = conditions.iter().find(|one| one["type"] == "tidegate.dev/Programmed")?;
            text(&programmed["message"]).contains(part).then_some(())
        });
    }

    fn wait_until_served(&self, gateway: usize) {
        let gateway = self.world.gateway(&name(gateway));
        self.world.until("the Service on the gateway", || {
            (gateway.query("status")?["ready"] == true && !gateway.vips("web").is_empty()).then_some(())
        });
    }

    /// Waits until this gateway answers, after this time.
    fn wait_for_owner(&self, gateway: usize, after: Instant) {
        let what = format!("an answer of gateway {gateway}");
        self.world.within(TAKEOVER + SLACK, &what, || {
            (self.watch.owner(self.vip, after)? == mac(gateway)).then_some(())
        });
    }

    /// The gateway that answers at the moment.
    fn owner(&self) -> usize {
        let since = Instant::now();
        let owner = self.world.within(SLACK, "an answer", || self.watch.owner(self.vip, since));
        if owner == mac(1) { 1 } else { 2 }
    }

    /// Waits until the other gateway answers. Returns the time from `since` to its first answer, and how long the
    /// former owner still answered after that, observed for `quiet`.
    fn taken_over(&self, former: usize, since: Instant, quiet: Duration) -> (Duration, Duration) {
        let first = self.world.within(TAKEOVER + SLACK, "the other gateway to answer", || {
            self.watch.first_other(self.vip, mac(former), since)
        });
        assert_eq!(first.mac, mac(3 - former));
        let end = first.at + quiet;
        self.world.within(quiet + SLACK, "some more time", || (Instant::now() >= end).then_some(()));
        (first.at - since, self.watch.overlap(self.vip, mac(former), first.at))
    }
}

#[test]
fn only_the_lease_holder_answers_and_the_other_takes_over_when_it_dies() {
    let failovers: usize = std::env::var("TIDEGATE_FAILOVERS").map_or(2, |n| n.parse().expect("a number"));
    let mut link = Link::new("1h", |_| None);
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..failovers {
        let owner = link.owner();
        let shown = link.world.gateway(&name(3 - owner)).service("web");
        let edge = &shown["vips"][0]["edge"];
        link.world.until("the other gateway to name the owner", || {
            let shown = link.world.gateway(&name(3 - owner)).service("web");
            (text(&shown["vips"][0]["edge"]["ownedBy"]) == name(owner)).then_some(())
        });
        assert!(text(&edge["owner"]).starts_with("tidegate-l2-all-"), "{edge}");
        let killed = Instant::now();
        link.world.end(&name(owner), Signal::KILL, SEEN).expect("it ends");
        let (after, overlap) = link.taken_over(owner, killed, Duration::from_secs(1));
        assert_eq!(overlap, Duration::ZERO);
        assert!(after < TAKEOVER + SLACK, "{after:?}");
        took.push(after);
        link.world.start_again(&name(owner));
        link.wait_until_served(owner);
    }
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    eprintln!(
        "Leases, takeover: {TAKEOVER:?}; {failovers} owners killed: median {median:.2?}, worst {worst:.2?}; overlap of owners: none"
    );
    // A normal exit releases the Lease, so the other gateway doesn't wait for its expiry.
    let owner = link.owner();
    let ended = Instant::now();
    link.world.end(&name(owner), Signal::TERM, SEEN).expect("it ends");
    let (after, overlap) = link.taken_over(owner, ended, Duration::from_secs(1));
    eprintln!("an owner that was stopped normally: {after:.2?}");
    assert_eq!(overlap, Duration::ZERO);
}

#[test]
fn an_owner_that_was_paused_beyond_its_lease_is_silent_when_it_resumes() {
    let mut link = Link::new("1h", |_| None);
    let owner = link.owner();
    let stopped = Instant::now();
    link.world.signal(&name(owner), Signal::STOP);
    // Meanwhile, requests wait in its receive ring.
    let (after, overlap) = link.taken_over(owner, stopped, Duration::from_secs(2));
    assert_eq!(overlap, Duration::ZERO);
    let woken = Instant::now();
    link.world.signal(&name(owner), Signal::CONT);
    link.wait_until_served(owner);
    let end = woken + Duration::from_secs(3);
    link.world.within(SLACK, "some time", || (Instant::now() >= end).then_some(()));
    assert_eq!(
        link.watch.overlap(link.vip, mac(owner), woken),
        Duration::ZERO,
        "it answered after it woke up"
    );
    assert_eq!(link.owner(), 3 - owner);
    eprintln!("stopped (SIGSTOP): the other gateway answers after {after:.2?}; no answer after SIGCONT");
}

#[test]
fn an_owner_without_the_api_server_is_silent_before_a_takeover() {
    let cut = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cut);
    let link = Link::new("1h", move |world| Some(relayed(world, flag)));
    // Gateway 1 started first, and has the connection that can be cut.
    assert_eq!(link.owner(), 1);
    let since = Instant::now();
    cut.store(true, Ordering::Relaxed);
    let (after, overlap) = link.taken_over(1, since, Duration::from_secs(2));
    assert_eq!(overlap, Duration::ZERO);
    let replies = link.watch.replies();
    let last = replies.iter().rfind(|one| one.is_answer && one.mac == mac(1)).expect("it answered");
    let answered = last.at.saturating_duration_since(since);
    // A request that was sent before the cut may still have arrived.
    assert!(answered <= ANSWERS_MAX + Duration::from_secs(1), "it answered for {answered:?}");
    eprintln!(
        "cut off from the API server: silent after {answered:.2?}, the other gateway answers after {after:.2?}"
    );
    assert_eq!(link.owner(), 2);
    let status = link.world.gateway("edge-1").query("status").expect("it answers its operator");
    assert_eq!(status["ready"], true, "it still forwards what arrives");
    cut.store(false, Ordering::Relaxed);
}

/// `web` with policy Local and an endpoint on this node.
fn local_on(node: &str) -> String {
    let local = "externalTrafficPolicy: Local, healthCheckNodePort: 30500, ports:";
    let here = slice("web", &["10.244.0.1"])
        .replace("conditions: {ready: true}", &format!("nodeName: {node}, conditions: {{ready: true}}"));
    service("web").replace("ports:", local) + &here
}

#[test]
fn the_vip_of_a_local_service_is_owned_by_the_gateway_with_an_endpoint() {
    let node = |name: &str, last: u8| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{}}, status: {{addresses: [{{type: InternalIP, \
             address: 10.0.0.{last}}}]}}}}\n---\n"
        )
    };
    let on_node = |gateway: usize, name: &str| {
        let setting = setting(gateway, "1s");
        Setting { document: setting.document + &format!("\nnode: {{name: {name}}}"), ..setting }
    };
    let objects = node("a", 11) + &node("b", 12) + &local_on("b");
    let mut link = Link::with_one(&objects, |_| on_node(1, "a"));
    link.wait_for_message("no gateway answers for");
    let shown = link.world.gateway("edge-1").service("web");
    let unable = text(&shown["vips"][0]["edge"]["unable"]);
    assert!(unable.starts_with("externalTrafficPolicy Local: node a has no endpoint"), "{unable}");
    link.world.start_with("edge-2", &on_node(2, "b"));
    link.wait_for_owner(2, Instant::now());
    link.wait_for_message("edge-2 answers for 203.0.113.");
    link.wait_for_message("no other gateway can serve it");
    assert!(link.watch.replies().iter().all(|one| one.mac != mac(1)), "it answered without an endpoint");
    let moved = Instant::now();
    link.world.apply(&local_on("a"));
    let (after, overlap) = link.taken_over(2, moved, Duration::from_secs(1));
    assert_eq!(overlap, Duration::ZERO);
    link.wait_for_message("edge-1 answers for 203.0.113.");
    eprintln!("the only endpoint moved to the node of another gateway: it answers after {after:.2?}");
}

#[test]
fn a_gateway_that_refuses_a_service_does_not_take_the_lease_of_its_vip() {
    let objects = service("web") + &slice("web", &["10.244.0.1"]);
    let mut link = Link::with_one(&objects, |_| {
        // This mode cannot change the port from 80 to 8080.
        Setting { drain: "1h, forwarding: dsr-l2".into(), ..setting(1, "1h") }
    });
    link.world.start_with("edge-2", &setting(2, "1h"));
    link.wait_for_owner(2, Instant::now());
    link.wait_for_message("edge-2 answers for 203.0.113.");
    assert!(link.watch.replies().iter().all(|one| one.mac != mac(1)), "it answered for what it refuses");
}

/// The kubeconfig of a gateway whose connection to the API server can be cut.
pub(crate) fn relayed(world: &World, cut: Arc<AtomicBool>) -> String {
    let server = world.api.address();
    let relay = world.enter_gateway(|| relay(server, cut)).expect("a relay");
    let text = world.api.kubeconfig_text(&world.api.token());
    let (host, port) = (server.ip(), server.port());
    text.replace(&format!("{host}:{port}"), &format!("{host}:{}", relay.port()))
}

/// A relay to the API server that can be cut: its connections then end, and new ones are refused.
fn relay(server: SocketAddr, cut: Arc<AtomicBool>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((server.ip(), 0))?;
    let address = listener.local_addr()?;
    let at = std::path::PathBuf::from("/proc/thread-self/ns/net");
    let namespace = std::fs::File::open(at)?;
    std::thread::spawn(move || {
        use std::os::fd::AsFd;
        // Sockets of this thread are in the namespace of the gateways.
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).expect("the namespace exists");
        for client in listener.incoming().flatten() {
            if cut.load(Ordering::Relaxed) {
                continue;
            }
            let Ok(upstream) = TcpStream::connect(server) else { continue };
            for (from, to) in [(&client, &upstream), (&upstream, &client)] {
                let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                let cut = Arc::clone(&cut);
                std::thread::spawn(move || carry(from, to, &cut));
            }
        }
    });
    Ok(address)
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    use std::io::{Read, Write};
    let _ = from.set_read_timeout(Some(Duration::from_millis(100)));
    let mut buffer = [0; 16 * 1024];
    while !cut.load(Ordering::Relaxed) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) if to.write_all(&buffer[..read]).is_ok() => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
