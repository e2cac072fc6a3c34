//! Space in mbufs: every limit is enforced, and a refused operation changes nothing.

use dpdk::testing::Level;
use dpdk::{Burst, Checksum, Mbuf, NoSpace};

use super::{bytes, pool};

dpdk::mbuf_newtype! {
    /// A frame type of another crate.
    struct Frame;
}

fn shape(mbuf: &Mbuf) -> (usize, usize, usize) {
    (mbuf.headroom(), mbuf.len(), mbuf.tailroom())
}

#[test]
fn fresh_mbuf_is_empty_between_headroom_and_tailroom() {
    let pool = pool();
    let mbuf = pool.alloc().unwrap();
    assert_eq!(shape(&mbuf), (128, 0, 2048));
    assert!(mbuf.is_contiguous() && mbuf.data().is_empty());
    assert_eq!((mbuf.rss_hash(), mbuf.stripped_vlan(), mbuf.port()), (None, None, u16::MAX));
    assert_eq!((mbuf.ip_checksum(), mbuf.l4_checksum()), (Checksum::Unknown, Checksum::Unknown));
}

#[test]
fn prepending_ends_where_the_headroom_ends() {
    let pool = pool();
    let mut mbuf = pool.alloc().unwrap();
    mbuf.append(60).unwrap().copy_from_slice(&bytes(0, 60));
    mbuf.prepend(28).unwrap().fill(0xee);
    assert_eq!(shape(&mbuf), (100, 88, 1988));
    assert_eq!(mbuf.prepend(101), Err(NoSpace));
    assert_eq!(mbuf.prepend(usize::MAX), Err(NoSpace));
    assert_eq!(mbuf.prepend(1 << 16), Err(NoSpace));
    assert_eq!(shape(&mbuf), (100, 88, 1988));
    assert_eq!(mbuf.prepend(100).unwrap().len(), 100);
    assert_eq!(shape(&mbuf), (0, 188, 1988));
    assert_eq!(mbuf.data()[100..128], [0xee; 28]);
    assert_eq!(mbuf.data()[128..], bytes(0, 60));
    assert_eq!(mbuf.prepend(1), Err(NoSpace));
    assert_eq!(mbuf.prepend(0).unwrap(), []);
}

#[test]
fn trimming_ends_where_the_frame_ends() {
    let pool = pool();
    let mut mbuf = pool.alloc().unwrap();
    mbuf.append(60).unwrap().copy_from_slice(&bytes(0, 60));
    assert_eq!(mbuf.trim_front(61), Err(NoSpace));
    assert_eq!(mbuf.trim_front(usize::MAX), Err(NoSpace));
    assert_eq!(mbuf.truncate(61), Err(NoSpace));
    assert_eq!(shape(&mbuf), (128, 60, 1988));
    mbuf.trim_front(14).unwrap();
    mbuf.truncate(20).unwrap();
    assert_eq!(mbuf.data(), bytes(14, 20));
    assert_eq!(shape(&mbuf), (142, 20, 2014));
    mbuf.trim_front(20).unwrap();
    assert_eq!(shape(&mbuf), (162, 0, 2014));
    assert_eq!(mbuf.trim_front(1), Err(NoSpace));
    mbuf.truncate(0).unwrap();
}

#[test]
fn appending_ends_where_the_tailroom_ends() {
    let pool = pool();
    let mut mbuf = pool.alloc().unwrap();
    assert_eq!(mbuf.append(2049), Err(NoSpace));
    assert_eq!(mbuf.append(usize::MAX), Err(NoSpace));
    assert_eq!(mbuf.append(2048).unwrap().len(), 2048);
    assert_eq!(mbuf.append(1), Err(NoSpace));
    assert_eq!(shape(&mbuf), (128, 2048, 0));
    mbuf.data_mut()[2047] = 7;
    assert_eq!(mbuf.data()[2047], 7);
}

#[test]
fn an_mbuf_comes_back_fresh_after_it_was_shaped() {
    let pool = pool();
    let level = Level::of(&pool);
    for _ in 0..2 * pool.capacity() {
        let mut mbuf = pool.alloc().unwrap();
        assert_eq!(shape(&mbuf), (128, 0, 2048));
        mbuf.append(10).unwrap();
        mbuf.prepend(100).unwrap();
        mbuf.trim_front(3).unwrap();
    }
    level.assert_restored();
}

#[test]
fn raw_pointer_carries_the_ownership() {
    let pool = pool();
    let level = Level::of(&pool);
    let raw = pool.alloc().unwrap().into_raw();
    assert_eq!(level.missing(), 1);
    #[expect(clippy::undocumented_unsafe_blocks, reason = "the line above gave it")]
    drop(unsafe { Mbuf::from_raw(raw) });
    level.assert_restored();
}

#[test]
fn newtype_sees_the_same_frames() {
    let pool = pool();
    let level = Level::of(&pool);
    let mut burst = Burst::<32>::new();
    pool.fill(&mut burst).unwrap();
    for (index, frame) in Frame::slice_mut(&mut burst).iter_mut().enumerate() {
        frame.0.append(index).unwrap();
    }
    assert_eq!(burst.iter().map(Mbuf::len).collect::<Vec<_>>(), (0..32).collect::<Vec<_>>());
    Frame::ref_mut(&mut burst[5]).0.truncate(1).unwrap();
    assert_eq!(burst[5].len(), 1);
    let frame = Frame::from(burst.pop().unwrap());
    let mbuf: Mbuf = frame.into();
    assert_eq!(mbuf.len(), 31);
    drop((mbuf, burst));
    level.assert_restored();
}
