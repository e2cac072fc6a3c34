//! These tests use the common lab: [`crate::testing::lab`].

pub(super) use crate::testing::lab::*;
