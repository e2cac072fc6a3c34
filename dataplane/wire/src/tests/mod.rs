//! Tests of header checks, rewrites and answers. The test builder creates the expected frames from scratch.

mod answers;
mod checks;
mod rewrites;

use super::*;

/// The headers of a frame that is expected to be IP.
#[track_caller]
fn ip(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("not an IP packet: {other:?}\n{}", crate::testing::hexdump(frame)),
    }
}

/// The bytes of an answer, which is a small frame.
fn bytes(frame: &SmallFrame) -> &[u8] {
    frame
}
