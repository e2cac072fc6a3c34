//! [`named!`](crate::named!): enums whose variants have names that users see, and [`documented!`](crate::documented!):
//! also a meaning.
//!
//! The names are contracts: manifests, output, metrics and scripts use them. Nothing else here is about packets; the
//! macro is in this crate because all others that need it use this one.

/// A type whose values have names.
pub trait Named: Copy + 'static {
    /// Every value, in the order of declaration.
    const VALUES: &'static [Self];

    /// Its name, which is unique.
    fn name(self) -> &'static str;

    /// The value with this name.
    #[must_use]
    fn named(name: &str) -> Option<Self> {
        Self::VALUES.iter().copied().find(|value| value.name() == name)
    }
}

/// Declares an enum whose variants have names, each written behind its variant.
///
/// ```
/// tidegate_wire::named! {
///     /// A direction.
///     #[derive(PartialOrd, Ord)]
///     pub enum Direction {
///         /// Up.
///         Up => "up",
///         /// Down.
///         Down => "down",
///     }
/// }
/// assert_eq!(Direction::ALL.map(Direction::as_str), ["up", "down"]);
/// assert_eq!((Direction::COUNT, Direction::Down.to_string().as_str()), (2, "down"));
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident $(= $number:literal)? => $text:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$of_variant])* $variant $(= $number)?,)+ }

        impl $name {
            /// Every value, in the order of declaration.
            $vis const ALL: [Self; Self::COUNT] = [$(Self::$variant,)+];

            /// The number of values.
            $vis const COUNT: usize = [$($text,)+].len();

            /// The name that users see.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl $crate::Named for $name {
            const VALUES: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.as_str()
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// Declares an enum like [`named!`](crate::named!) whose variants all have documentation, which `meaning` returns.
///
/// ```
/// tidegate_wire::documented! {
///     /// A direction.
///     pub enum Direction {
///         /// Away from the ground.
///         Up => "up",
///     }
/// }
/// assert_eq!(Direction::Up.meaning(), "Away from the ground.");
/// ```
#[macro_export]
macro_rules! documented {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[doc = $doc:literal])+ $variant:ident => $text:literal,)+
    }) => {
        $crate::named! {
            $(#[$meta])*
            $vis enum $name { $($(#[doc = $doc])+ $variant => $text,)+ }
        }

        impl $name {
            /// The meaning of the value: its documentation in one line.
            #[must_use]
            $vis fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_start(),)+ }
            }
        }
    };
}
