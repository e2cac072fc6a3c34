//! [`Difference`]: where two values that must be equal differ, in a short form for a log.
//!
//! Compares incremental results with results computed from scratch. Values are compared by their [`Debug`] text, which
//! includes parts that equality ignores. The text of equal values is never stored, only its hash.

use std::fmt::{self, Debug, Write};

/// Bytes of text around the first difference that are shown.
const SHOWN: usize = 768;
/// Bytes from the beginning of the text, which usually names the object.
const HEAD: usize = 160;

/// The first difference of two values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What differs, such as `spec.services[12]`.
    pub part: String,
    /// The incremental result; at most about a thousand bytes.
    pub incremental: String,
    /// The result computed from scratch, with the same maximum length.
    pub from_scratch: String,
}

/// Compares two values.
///
/// ```
/// use tidegate_structures::difference::of;
/// assert_eq!(of("number", &1, &1), None);
/// let difference = of("number", &1, &2).expect("they differ");
/// assert_eq!((difference.incremental.as_str(), difference.from_scratch.as_str()), ("1", "2"));
/// ```
#[must_use]
pub fn of(part: &str, incremental: &dyn Debug, from_scratch: &dyn Debug) -> Option<Difference> {
    if TextHash::of(incremental) == TextHash::of(from_scratch) {
        return None;
    }
    let texts = [incremental, from_scratch].map(|value| format!("{value:?}"));
    let [one, other] = texts.each_ref().map(String::as_bytes);
    // If one text is the beginning of the other, they differ where it ends.
    let at = one.iter().zip(other).position(|(a, b)| a != b).unwrap_or(one.len().min(other.len()));
    let [incremental, from_scratch] = [one, other].map(|text| excerpt(text, at));
    Some(Difference { part: part.to_owned(), incremental, from_scratch })
}

/// Compares two lists entry by entry: the first entry that differs.
#[must_use]
pub fn of_lists<T: Debug>(
    part: &str,
    incremental: impl IntoIterator<Item = T>,
    from_scratch: impl IntoIterator<Item = T>,
) -> Option<Difference> {
    let (mut one, mut other) = (incremental.into_iter(), from_scratch.into_iter());
    for at in 0_usize.. {
        let (a, b) = (one.next(), other.next());
        if a.is_none() && b.is_none() {
            break;
        }
        // If one list is shorter, its end is compared as `None` against `Some`.
        if let Some(difference) = of(part, &a, &b) {
            return Some(Difference { part: format!("{part}[{at}]"), ..difference });
        }
    }
    None
}

/// The beginning of a text, and what is around a position.
fn excerpt(text: &[u8], at: usize) -> String {
    let from = at.saturating_sub(SHOWN / 3);
    let to = text.len().min(from + SHOWN);
    let [head, shown] = [&text[..from.min(HEAD)], &text[from..to]].map(String::from_utf8_lossy);
    let (gap, end) = (if from > 0 { " ... " } else { "" }, if to < text.len() { " ..." } else { "" });
    format!("{head}{gap}{shown}{end}")
}

/// FNV-1a, which doesn't depend on how many writes a text has.
struct TextHash(u64);

impl TextHash {
    fn of(value: &dyn Debug) -> u64 {
        let mut hash = Self(0xcbf2_9ce4_8422_2325);
        // This fails only if a `Debug` implementation fails. Then the text before the failure is compared.
        let _ = write!(hash, "{value:?}");
        hash.0
    }
}

impl Write for TextHash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = text.bytes().fold(self.0, step);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_deep_in_a_long_text_is_shown_in_bounded_length() {
        let mut one: Vec<u32> = (0..100_000).collect();
        let other = one.clone();
        assert_eq!(of("numbers", &one, &other), None);
        one[70_000] = 7;
        let difference = of("numbers", &one, &other).expect("they differ");
        assert!(difference.incremental.starts_with("[0, 1, 2, "), "{}", difference.incremental);
        assert!(difference.incremental.contains("69999, 7, 70001"), "{}", difference.incremental);
        assert!(difference.from_scratch.contains("69999, 70000, 70001"), "{}", difference.from_scratch);
        assert!(difference.incremental.len() <= HEAD + SHOWN + 16);
    }

    #[test]
    fn lists_differ_at_their_first_different_entry_and_where_one_ends() {
        let difference = of_lists("list", ["a", "b", "c"], ["a", "x", "y"]).expect("they differ");
        assert_eq!(difference.part, "list[1]");
        assert_eq!(difference.from_scratch, "Some(\"x\")");
        let difference = of_lists("list", vec!["a"], vec!["a", "b"]).expect("they differ");
        assert_eq!((difference.part.as_str(), difference.incremental.as_str()), ("list[1]", "None"));
        assert_eq!(of_lists("list", ["a"], ["a"]), None);
    }

    #[test]
    fn the_chunks_in_which_debug_writes_do_not_matter() {
        struct Cut(usize);
        impl Debug for Cut {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = "x".repeat(1000);
                text.as_bytes()
                    .chunks(self.0)
                    .try_for_each(|part| f.write_str(std::str::from_utf8(part).expect("ASCII")))
            }
        }
        assert_eq!(of("text", &Cut(1), &Cut(700)), None);
    }
}
