//! A value that specs of several generations share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value that specs of several generations share. Changing one copies it first.
///
/// ```
/// # use tidegate_spec::testing;
/// use tidegate_spec::Shared;
/// # let spec = testing::service(
/// #     tidegate_spec::ForwardingMode::Nat,
/// #     tidegate_spec::Protocol::Tcp,
/// #     "203.0.113.5:80",
/// #     &["10.0.0.1:80"],
/// # );
/// let first = Shared::from(spec);
/// let mut second = first.clone();
/// assert!(second.is_same(&first));
/// second.backends[0].weight = 2;
/// assert_eq!((first.backends[0].weight, second.backends[0].weight), (1, 2));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Whether both are the same object; contents are not compared.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || self.0 == other.0
    }
}
