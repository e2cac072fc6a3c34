//! Tests of captures. The files are built by hand, byte by byte, in both byte orders.

use proptest::prelude::*;

use super::packet::Resolution;
use super::source::Endian;
use super::*;

const FRAME: &[u8] = &[0xde, 0xad, 0xbe, 0xef, 0x01];

fn u16b(e: Endian, v: u16) -> Vec<u8> {
    if e == Endian::Little { v.to_le_bytes().into() } else { v.to_be_bytes().into() }
}

fn u32b(e: Endian, v: u32) -> Vec<u8> {
    if e == Endian::Little { v.to_le_bytes().into() } else { v.to_be_bytes().into() }
}

fn pcap_file(e: Endian, magic: u32, link: u32, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut f = u32b(e, magic);
    f.extend(u16b(e, 2));
    f.extend(u16b(e, 4));
    f.extend([0; 8]);
    f.extend(u32b(e, 65_535));
    f.extend(u32b(e, link));
    for (s, fraction, data) in packets {
        for word in [*s, *fraction, data.len() as u32, 60] {
            f.extend(u32b(e, word));
        }
        f.extend(*data);
    }
    f
}

fn block(e: Endian, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut padded = body.to_vec();
    padded.resize(body.len().next_multiple_of(4), 0);
    let len = u32b(e, padded.len() as u32 + 12);
    [u32b(e, kind), len.clone(), padded, len].concat()
}

fn section(e: Endian) -> Vec<u8> {
    let body = [u32b(e, 0x1a2b_3c4d), u16b(e, 1), u16b(e, 0), vec![0xff; 8]].concat();
    block(e, 0x0a0d_0d0a, &body)
}

fn interface(e: Endian, link: u16, snap: u32, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = [u16b(e, link), u16b(e, 0), u32b(e, snap)].concat();
    for (code, value) in options {
        body.extend(u16b(e, *code));
        body.extend(u16b(e, value.len() as u16));
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    body.extend([0; 4]);
    block(e, 1, &body)
}

fn enhanced(e: Endian, interface: u32, units: u64, data: &[u8]) -> Vec<u8> {
    let words = [interface, (units >> 32) as u32, units as u32, data.len() as u32, 60];
    let mut body: Vec<u8> = words.into_iter().flat_map(|w| u32b(e, w)).collect();
    body.extend(data);
    block(e, 6, &body)
}

fn read(file: &[u8]) -> Result<Vec<Packet>, PcapError> {
    Reader::new(file)?.collect()
}

fn fault(file: &[u8]) -> (u64, Fault) {
    let error = read(file).unwrap_err();
    (error.offset, error.fault)
}

#[test]
fn pcap_reads_both_byte_orders_and_both_resolutions() {
    for e in [Endian::Little, Endian::Big] {
        for (magic, ns) in [(0xa1b2_c3d4, 7_000_005_000), (0xa1b2_3c4d, 7_000_000_005)] {
            let packets = read(&pcap_file(e, magic, 1, &[(7, 5, FRAME), (8, 0, &[])])).unwrap();
            assert_eq!(packets.len(), 2);
            assert_eq!(
                packets[0],
                Packet { timestamp_ns: ns, interface: 0, original_len: 60, data: FRAME.into() }
            );
        }
    }
}

#[test]
fn pcapng_reads_both_byte_orders_with_resolution_and_offset() {
    for e in [Endian::Little, Endian::Big] {
        let offset = if e == Endian::Little { 100i64.to_le_bytes() } else { 100i64.to_be_bytes() };
        let file = [
            section(e),
            interface(e, 1, 0, &[(2, b"uplink")]),
            interface(e, 1, 0, &[(9, &[9]), (14, &offset)]),
            interface(e, 1, 0, &[(9, &[0x80 | 10])]),
            block(e, 0x0bad, &[1, 2, 3]),
            enhanced(e, 0, 3_000_001, FRAME),
            enhanced(e, 1, 3_000_000_001, FRAME),
            enhanced(e, 2, 3 << 10 | 512, FRAME),
        ]
        .concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let packets: Vec<Packet> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        let times: Vec<u64> = packets.iter().map(|p| p.timestamp_ns).collect();
        assert_eq!(times, [3_000_001_000, 103_000_000_001, 3_500_000_000]);
        assert!(packets.iter().all(|p| p.data == FRAME && p.original_len == 60));
        assert_eq!(reader.interfaces()[0].name.as_deref(), Some("uplink"));
    }
}

#[test]
fn pcapng_simple_packet_takes_the_time_before_it_and_honours_snap_len() {
    let e = Endian::Little;
    let simple = |len: u32, data: &[u8]| block(e, 3, &[u32b(e, len), data.to_vec()].concat());
    let file = [section(e), interface(e, 1, 5, &[]), enhanced(e, 0, 9, FRAME), simple(1500, FRAME)].concat();
    let packets = read(&file).unwrap();
    assert_eq!(
        packets[1],
        Packet { timestamp_ns: 9_000, interface: 0, original_len: 1500, data: FRAME.into() }
    );
}

#[test]
fn pcapng_new_section_forgets_interfaces_and_may_swap_the_byte_order() {
    let (l, b) = (Endian::Little, Endian::Big);
    let start = [section(l), interface(l, 1, 0, &[]), section(b)].concat();
    let good = [start.clone(), interface(b, 1, 0, &[]), enhanced(b, 0, 1, FRAME)].concat();
    assert_eq!(read(&good).unwrap().len(), 1);
    let bad = [start.clone(), enhanced(b, 0, 1, FRAME)].concat();
    let (offset, fault) = fault(&bad);
    assert_eq!(offset, start.len() as u64);
    assert!(matches!(fault, Fault::UnknownInterface(0)));
}

#[test]
fn faults_name_their_offset() {
    let l = Endian::Little;
    assert!(matches!(fault(b""), (0, Fault::NotACapture)));
    assert!(matches!(fault(b"GIF89a"), (0, Fault::NotACapture)));
    assert!(matches!(fault(&pcap_file(l, 0xa1b2_c3d4, 113, &[])), (0, Fault::LinkType(113))));
    let whole = pcap_file(l, 0xa1b2_c3d4, 1, &[(1, 0, FRAME), (2, 0, FRAME)]);
    assert!(matches!(fault(&whole[..whole.len() - 1]), (45, Fault::Truncated("packet"))));
    assert!(matches!(fault(&whole[..50]), (45, Fault::Truncated("packet header"))));
    let mut long = whole.clone();
    long[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(fault(&long), (24, Fault::Length { what: "packet", len: u32::MAX, .. })));
    let mut version = whole;
    version[4] = 3;
    assert!(matches!(fault(&version), (0, Fault::Version(3, 4))));

    let start = section(l);
    let cut = start.len() as u64;
    let mut odd = [start.clone(), interface(l, 1, 0, &[])].concat();
    odd[start.len() + 4] = 21;
    assert!(matches!(fault(&odd), (at, Fault::Length { what: "block", len: 21, .. }) if at == cut));
    let mut ends = [start.clone(), interface(l, 1, 0, &[])].concat();
    *ends.last_mut().unwrap() = 1;
    assert!(matches!(fault(&ends), (at, Fault::BlockLengths(24, _)) if at == cut));
    assert!(matches!(fault(&[start, interface(l, 105, 0, &[])].concat()), (_, Fault::LinkType(105))));
}

#[test]
fn cut_off_capture_gives_its_whole_packets_first() {
    let file = pcap_file(Endian::Big, 0xa1b2_3c4d, 1, &[(1, 0, FRAME), (2, 0, FRAME)]);
    let mut reader = Reader::new(&file[..file.len() - 2]).unwrap();
    assert_eq!(reader.next_packet().unwrap().unwrap().data, FRAME);
    assert!(reader.next_packet().is_err());
}

#[test]
fn writer_refuses_what_pcap_cannot_represent() {
    let mut w = Writer::new(Vec::new()).unwrap();
    assert!(w.write(u64::MAX, FRAME).is_err());
    assert!(w.write(0, &vec![0; PACKET_LEN_MAX as usize + 1]).is_err());
    assert_eq!(w.finish().unwrap().len(), 24);
}

#[test]
fn any_timestamp_resolution_stays_within_64_bits() {
    for n in 0..=255u8 {
        let resolution = if n < 128 { Resolution::Decimal(n) } else { Resolution::Binary(n & 0x7f) };
        let at =
            |offset_s| Interface { name: None, resolution, offset_s, snap_len: 0 }.timestamp_ns(u64::MAX);
        assert!(at(i64::MIN) <= at(0));
        assert_eq!(at(i64::MAX), u64::MAX);
        assert!(at(0) <= at(1));
    }
}

proptest! {
    #[test]
    fn written_captures_read_back(
        packets in proptest::collection::vec(
            (0u64..4_000_000_000_000_000_000, proptest::collection::vec(any::<u8>(), 0..80)), 0..10),
    ) {
        let mut w = Writer::new(Vec::new()).unwrap();
        for (t, data) in &packets {
            w.write(*t, data).unwrap();
        }
        let back = read(&w.finish().unwrap()).unwrap();
        let back: Vec<_> = back.into_iter().map(|p| (p.timestamp_ns, p.data)).collect();
        prop_assert_eq!(back, packets);
    }

    #[test]
    fn damaged_captures_never_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(), ng in any::<bool>(),
    ) {
        let e = Endian::Little;
        let mut file = if ng {
            [section(e), interface(e, 1, 0, &[(2, b"a"), (9, &[6])]), enhanced(e, 0, 1, FRAME),
             block(e, 3, &[5, 0, 0, 0, 1, 2, 3, 4, 5])].concat()
        } else {
            pcap_file(e, 0xa1b2_c3d4, 1, &[(1, 0, FRAME), (2, 0, FRAME)])
        };
        for (at, value) in flips {
            let at = at.index(file.len());
            file[at] = value;
        }
        file.truncate(cut.index(file.len() + 1));
        let _ = read(&file);
    }
}
