//! Medians and percentiles.

/// Returns the value below which `share` of the values lie; `None` if there are none.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied()
}

/// Returns the median of the values that exist.
pub(crate) fn median(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().flatten().collect();
    quantile(&mut values, 0.5)
}

/// Returns the median over rounds of the ratio inside a round.
pub(crate) fn median_ratio(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<f64> {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| Some((*ours)? / (*theirs)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_what_is_missing() {
        assert_eq!(median([Some(3.0), None, Some(1.0), Some(2.0)]), Some(2.0));
        assert_eq!(median([None]), None);
    }

    #[test]
    fn ratios_are_taken_inside_a_round() {
        // The machine was ten times slower in the second round; the ratio does not change.
        let (ours, theirs) = ([Some(1.0), Some(10.0)], [Some(2.0), Some(20.0)]);
        assert_eq!(median_ratio(&ours, &theirs), Some(0.5));
    }
}
