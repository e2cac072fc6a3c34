//! A condition that only a gateway sees reaches the owner of the Service: if another station has the VIP, the Service
//! gets an event.

use crate::world::{Setting, World, service, slice, text};

#[test]
fn another_station_with_the_vip_is_an_event_of_the_service() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let namespace = world.namespace().clone();
    let link = "link add l2 type bridge mcast_snooping 0 forward_delay 0\nlink set l2 up\n\
                link add e1 type veth peer name p1\nlink set p1 master l2 up\nlink set e1 arp off up\n\
                link add x1 type veth peer name q1\nlink set q1 master l2 up\nlink set x1 up\n";
    namespace.ip_batch(link).expect("the link is built");
    let quiet = [("ipv4/conf/e1/rp_filter", "1"), ("ipv6/conf/e1/disable_ipv6", "1")];
    namespace.sysctls(&quiet).expect("sysctls");
    let device = "\"net_af_packet1,iface=e1\", mac: \"02:00:00:00:02:01\"".to_owned();
    world.start_with("edge-1", &Setting { device, ..Setting::default() });
    let vip = world.until("the address", || world.gateway("edge-1").vips("web").first().cloned());
    namespace.sysctls(&[("ipv4/conf/x1/arp_notify", "1")]).expect("sysctls");
    namespace.ip_batch(&format!("addr add {vip}/32 dev x1\n")).expect("a second owner");
    let note = world.until("the event", || {
        // Linux announces the addresses of an interface whenever its link address changes.
        namespace.ip_batch("link set x1 address 02:00:00:00:05:05\n").expect("a link address");
        let events = world.api.list("events.k8s.io/v1", "Event", "");
        let mut ours = events
            .iter()
            .filter(|event| event["reason"] == "VIPClaimed" && event["regarding"]["name"] == "web");
        ours.next().map(|event| text(&event["note"]))
    });
    assert!(note.contains("02:00:00:00:05:05") && note.contains(&vip), "{note}");
}
