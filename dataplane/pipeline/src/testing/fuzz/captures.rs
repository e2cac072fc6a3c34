//! Feeds arbitrary bytes, and captures with wrong lengths, to the reader of captures.
//!
//! `replay` reads files of users with it. The reader must not panic, return a packet longer than the limit, or return
//! more packets than there are bytes. `tests/pipeline_fuzz.rs` checks with its own allocator that memory is bounded.

use tidegate_capture::{PACKET_LEN_MAX, Reader};

use super::choices::Choices;

/// Reads `input` as a capture, and as the choices for generating another capture. Returns the number of packets read.
///
/// # Panics
/// If the reader panics or returns an invalid packet.
pub fn captures(input: &[u8]) -> usize {
    let mut choices = Choices::new(input);
    let made = match choices.byte() % 3 {
        0 => choices.bytes(usize::MAX).to_vec(),
        1 => pcap(&mut choices),
        _ => pcapng(&mut choices),
    };
    read(&made)
}

fn read(file: &[u8]) -> usize {
    let Ok(mut reader) = Reader::new(file) else { return 0 };
    let mut packets = 0;
    while let Ok(Some(packet)) = reader.next_packet() {
        assert!(packet.data.len() <= PACKET_LEN_MAX as usize, "a packet of {} bytes", packet.data.len());
        assert!(packet.data.len() <= file.len(), "a packet longer than its file");
        assert!((packet.interface as usize) < reader.interfaces().len(), "a packet of no interface");
        packets += 1;
        assert!(packets <= file.len(), "more packets than bytes");
    }
    packets
}

/// A length: usually correct, sometimes any value.
fn length(choices: &mut Choices<'_>, right: usize) -> u32 {
    match choices.below(8) {
        0 => choices.u32(),
        1 => u32::try_from(right).unwrap_or(u32::MAX).wrapping_add(u32::from(choices.byte())),
        _ => u32::try_from(right).unwrap_or(u32::MAX),
    }
}

fn pcap(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    let magic = choices.pick(&[0xa1b2_c3d4u32, 0xa1b2_3c4d, 0xd4c3_b2a1, 0x4d3c_b2a1]);
    let big = choices.one_in(2);
    let word = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    file.extend(word(magic));
    file.extend(if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] });
    for n in [0, 0, choices.pick(&[65_535, 262_144, 0, u32::MAX]), choices.pick(&[1, 1, 1, 101])] {
        file.extend(word(n));
    }
    while !choices.is_over() && file.len() < 4096 {
        let (seconds, fraction) = (choices.u32(), choices.u32());
        let len = choices.below(80);
        let data = choices.bytes(len).to_vec();
        let (captured, original) = (length(choices, data.len()), length(choices, data.len()));
        for n in [seconds, fraction, captured, original] {
            file.extend(word(n));
        }
        file.extend(data);
    }
    file
}

fn pcapng(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    while (file.is_empty() || !choices.is_over()) && file.len() < 4096 {
        let section: Vec<u8> =
            [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0].iter().copied().chain([0xff; 8]).collect();
        let kind = if file.is_empty() { 0 } else { choices.below(8) };
        let (kind, body) = match kind {
            0 => (0x0a0d_0d0a, section),
            1 | 2 => (
                1,
                [
                    &[1, 0, 0, 0],
                    choices.pick(&[[0; 4], [255; 4], [64, 0, 0, 0]]).as_slice(),
                    &options(choices),
                ]
                .concat(),
            ),
            3 => (3, [&length(choices, 12).to_le_bytes(), choices.bytes(12)].concat()),
            4 => (choices.u32(), choices.bytes(16).to_vec()),
            _ => {
                let len = choices.below(64);
                let data = choices.bytes(len).to_vec();
                let mut body = Vec::new();
                for n in [u32::from(choices.byte() % 3), choices.u32(), choices.u32()] {
                    body.extend(n.to_le_bytes());
                }
                body.extend(length(choices, data.len()).to_le_bytes());
                body.extend(length(choices, data.len()).to_le_bytes());
                body.extend(&data);
                body.resize(body.len().next_multiple_of(4), 0);
                (6, [body, options(choices)].concat())
            }
        };
        let mut body = body;
        body.resize(body.len().next_multiple_of(4), 0);
        let len = length(choices, body.len() + 12);
        file.extend(u32::to_le_bytes(kind));
        file.extend(len.to_le_bytes());
        file.extend(&body);
        file.extend(if choices.one_in(16) { length(choices, 0) } else { len }.to_le_bytes());
    }
    file
}

/// Options of a pcapng block: name, resolution, offset, end, others, with lengths that may be wrong.
fn options(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut options = Vec::new();
    for _ in 0..choices.below(4) {
        let code = choices.pick(&[2u16, 9, 14, 0, 1, 7]);
        let len = choices.pick(&[1usize, 8, 4, 0, 3]);
        let value = choices.bytes(len).to_vec();
        options.extend(code.to_le_bytes());
        options.extend((length(choices, value.len()) as u16).to_le_bytes());
        options.extend(&value);
        options.resize(options.len().next_multiple_of(4), 0);
    }
    options
}
