//! Cache prefetch: the only module of this crate that may use `unsafe`.
//!
//! The speed of this dataplane depends on hiding the cache misses of flow, service and backend tables behind the work
//! of a burst, and stable Rust has no safe prefetch yet.
#![allow(unsafe_code, reason = "prefetch intrinsics take raw pointers; they never fault and read nothing")]

/// Prefetches the cache line of `place`.
#[inline(always)]
pub fn read<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it does not access memory architecturally and cannot fault; SSE is part
    // of the x86_64 baseline.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
