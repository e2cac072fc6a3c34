//! The one module of this crate that may say `unsafe`: cache prefetch.
//!
//! Hiding the misses of flow, service and backend tables behind the work of a burst is where the speed of
//! this dataplane comes from; Rust has no safe prefetch on stable yet.
#![allow(unsafe_code, reason = "prefetch intrinsics take raw pointers; they never fault and read nothing")]

/// Asks the cache for the line that holds `place`, to be read soon.
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
