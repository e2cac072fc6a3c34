//! Cache prefetch: the only module of this crate that may use `unsafe`.
//!
//! A burst hides the cache misses of flow, service and backend tables behind other work. Stable Rust has no safe
//! prefetch yet.
#![allow(unsafe_code, reason = "prefetch intrinsics take raw pointers; they never fault and read nothing")]

/// Prefetches the cache line of `value`.
#[inline(always)]
pub fn read<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it does not access memory architecturally and cannot fault; SSE is part
    // of the x86_64 baseline.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
