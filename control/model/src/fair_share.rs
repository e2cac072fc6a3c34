//! The fair share of a limited resource (max-min fairness): who needs less than the others gets what it needs.

/// The highest equal limit for each of these sizes with which their sum is at most `max`; `usize::MAX` if all fit.
#[must_use]
pub fn fair_share(mut sizes: Vec<usize>, max: usize) -> usize {
    sizes.sort_unstable();
    let (mut remaining, mut others) = (max, sizes.len());
    for size in sizes {
        if size > remaining / others {
            return remaining / others;
        }
        (remaining, others) = (remaining - size, others - 1);
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_leave_the_rest_to_the_others() {
        assert_eq!(fair_share(vec![6_000, 10, 400], 6_410), usize::MAX);
        assert_eq!(fair_share(vec![6_000, 10, 400], 1_000), 590);
        assert_eq!(fair_share(vec![6_000, 10, 400], 500), 245);
        assert_eq!((fair_share(vec![5; 7], 6), fair_share(Vec::new(), 0)), (0, usize::MAX));
    }
}
