//! [`Difference`]: where two values that must be equal differ, in a short form for a log.
//!
//! Compares incremental results with results computed from scratch. Values are compared by their [`Debug`] text, which
//! includes parts that equality ignores. The text is never stored as a whole: each block of it is reduced to a number,
//! and only the part that differs is written again.

use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hasher};

/// Bytes of text that become one number.
const BLOCK: usize = 256;
/// Bytes of text around the first difference that are shown, in whole blocks.
const SHOWN: usize = 3 * BLOCK;
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
    let [one, other] = [incremental, from_scratch].map(Blocks::of);
    let at = one.iter().zip(&other).position(|(a, b)| a != b);
    // If one text is the beginning of the other, they differ after its last block.
    let at = at.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))?;
    let from = at.saturating_sub(1) * BLOCK;
    let [incremental, from_scratch] = [incremental, from_scratch].map(|value| Excerpt::of(value, from));
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

/// Reduces text to numbers, one for each [`BLOCK`] bytes.
struct Blocks {
    block: Vec<u8>,
    done: Vec<u64>,
}

impl Blocks {
    fn of(value: &dyn Debug) -> Vec<u64> {
        let mut blocks = Self { block: Vec::with_capacity(BLOCK), done: Vec::new() };
        // This fails only if a `Debug` implementation fails. Then the text before the failure is compared.
        let _ = write!(blocks, "{value:?}");
        if !blocks.block.is_empty() {
            blocks.end();
        }
        blocks.done
    }

    fn end(&mut self) {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.block);
        self.done.push(hasher.finish());
        self.block.clear();
    }
}

impl Write for Blocks {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            if self.block.len() == BLOCK {
                self.end();
            }
            rest = later;
        }
        Ok(())
    }
}

/// Keeps the beginning of a text and [`SHOWN`] bytes from a given offset on.
struct Excerpt {
    from: usize,
    at: usize,
    head: Vec<u8>,
    shown: Vec<u8>,
    is_cut: bool,
}

impl Excerpt {
    fn of(value: &dyn Debug, from: usize) -> String {
        let mut excerpt = Self { from, at: 0, head: Vec::new(), shown: Vec::new(), is_cut: false };
        // The write fails on purpose once all bytes to be shown are written.
        let _ = write!(excerpt, "{value:?}");
        let Self { head, shown, is_cut, .. } = excerpt;
        let head =
            if from > 0 { String::from_utf8_lossy(&head).into_owned() + " ... " } else { String::new() };
        let tail = if is_cut { " ..." } else { "" };
        format!("{head}{}{tail}", String::from_utf8_lossy(&shown))
    }
}

impl Write for Excerpt {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.head.len() < HEAD.min(self.from) {
                self.head.push(byte);
            }
            if self.at >= self.from {
                if self.shown.len() == SHOWN {
                    self.is_cut = true;
                    return Err(fmt::Error);
                }
                self.shown.push(byte);
            }
            self.at += 1;
        }
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
