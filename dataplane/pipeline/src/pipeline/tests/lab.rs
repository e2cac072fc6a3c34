//! The lab of these tests: [`crate::testing::lab`].

pub(super) use crate::testing::lab::*;
