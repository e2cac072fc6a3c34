//! Finds the items that HAProxy refuses, by validating parts of them.

use crate::haproxy::program::Invalid;

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Split<T> {
    /// The items that are accepted together.
    pub accepted: Vec<T>,
    /// The others, with the reason.
    pub refused: Vec<(T, String)>,
}

/// Splits items into those that `validate` accepts together and those that it refuses. One refused item of n costs
/// about 2 log n calls, and no refused item costs one.
///
/// # Errors
/// If a call could not be made, or if nothing is accepted even without items.
pub fn split<T: Clone>(
    items: &[T],
    validate: &mut dyn FnMut(&[T]) -> Result<(), Invalid>,
) -> Result<Split<T>, String> {
    let mut split = Split { accepted: Vec::new(), refused: Vec::new() };
    let Err(why) = validate(items) else {
        return Ok(Split { accepted: items.to_vec(), ..split });
    };
    let (Invalid::Refused(text) | Invalid::NotRun(text)) = &why;
    if matches!(why, Invalid::NotRun(_)) || validate(&[]).is_err() {
        return Err(text.clone());
    }
    refine(items, text.clone(), validate, &mut split)?;
    Ok(split)
}

/// Handles items that are refused together with the accepted ones.
fn refine<T: Clone>(
    items: &[T],
    why: String,
    validate: &mut dyn FnMut(&[T]) -> Result<(), Invalid>,
    split: &mut Split<T>,
) -> Result<(), String> {
    if let [item] = items {
        split.refused.push((item.clone(), why));
        return Ok(());
    }
    let (left, right) = items.split_at(items.len() / 2);
    for half in [left, right] {
        let together: Vec<T> = split.accepted.iter().chain(half).cloned().collect();
        match validate(&together) {
            Ok(()) => split.accepted = together,
            Err(Invalid::Refused(why)) => refine(half, why, validate, split)?,
            Err(Invalid::NotRun(why)) => return Err(why),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits 0..count with a validation that refuses some numbers, and 1 together with 2. Returns the number of calls.
    fn numbers(count: u32, refused: &[u32]) -> (Split<u32>, usize) {
        let mut calls = 0;
        let all: Vec<u32> = (0..count).collect();
        let mut validate = |some: &[u32]| {
            calls += 1;
            let is_refused =
                some.iter().any(|n| refused.contains(n)) || some.contains(&1) && some.contains(&2);
            if is_refused { Err(Invalid::Refused("no".to_owned())) } else { Ok(()) }
        };
        (split(&all, &mut validate).expect("it can be validated"), calls)
    }

    #[test]
    fn refused_items_are_found_and_the_others_stay() {
        let (split, calls) = numbers(2, &[]);
        assert_eq!((split.accepted, split.refused.len(), calls), (vec![0, 1], 0, 1));
        let (split, calls) = numbers(1000, &[2, 700]);
        assert_eq!(split.refused, [(2, "no".to_owned()), (700, "no".to_owned())]);
        assert_eq!(split.accepted.len(), 998);
        assert!(calls < 50, "{calls}");
    }

    #[test]
    fn of_two_items_that_exclude_each_other_the_first_stays() {
        let (split, _) = numbers(5, &[4]);
        assert_eq!(split.accepted, [0, 1, 3]);
    }

    #[test]
    fn nothing_is_left_out_if_the_reason_is_not_an_item() {
        let mut refuses = |_: &[u32]| Err(Invalid::Refused("broken".to_owned()));
        assert_eq!(split(&[1, 2], &mut refuses), Err("broken".to_owned()));
        let mut fails = |_: &[u32]| Err(Invalid::NotRun("missing".to_owned()));
        assert_eq!(split(&[1, 2], &mut fails), Err("missing".to_owned()));
    }
}
