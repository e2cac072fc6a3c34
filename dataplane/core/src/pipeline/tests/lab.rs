//! The lab that these tests run in is everyone's: [`crate::testing::lab`].

pub(super) use crate::testing::lab::*;
