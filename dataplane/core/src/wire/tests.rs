//! Claims about the header checks.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn parse_never_panics_on_arbitrary_bytes(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..4,
    ) {
        let types = [ether_type::IPV4, ether_type::IPV6, ether_type::ARP, ether_type::VLAN];
        if bytes.len() >= 14 {
            bytes[12..14].copy_from_slice(&types[kind as usize].to_be_bytes());
        }
        let _ = parse(&bytes);
    }
}

#[test]
fn malformed_names_are_unique_and_in_order() {
    for (i, m) in Malformed::ALL.iter().enumerate() {
        assert_eq!(*m as usize, i);
        assert!(Malformed::ALL[..i].iter().all(|other| other.as_str() != m.as_str()));
    }
}
