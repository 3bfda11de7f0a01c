//! "Did you mean": the nearest of the known names.

/// Returns the known name that is nearest to a wrong one, if one is near.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let wrong: Vec<char> = wrong.chars().take(65).map(|c| c.to_ascii_lowercase()).collect();
    if wrong.len() > 64 {
        return None;
    }
    let near = |name: &'a str| {
        let distance = distance(&wrong, &name.chars().collect::<Vec<_>>());
        // Short names are all near each other.
        let most = (wrong.len().min(name.len()) / 3).min(3);
        (distance <= most).then_some((distance, name))
    };
    // Of equals, the first of the table.
    known.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Counts the characters to insert, delete, replace, or swap with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let mut cost = (last[j] + usize::from(from != to)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_nearest_name_or_none() {
        let known = ["rate_limit", "rate_limits", "unit", "key", "descriptors"];
        for (wrong, right) in [
            ("ratelimit", Some("rate_limit")),
            ("rate-limits", Some("rate_limits")),
            ("unti", Some("unit")),
            ("kye", Some("key")),
            ("KEY", Some("key")),
            ("Descriptor", Some("descriptors")),
            ("colour", None),
            ("ke", None),
            ("", None),
        ] {
            assert_eq!(nearest(wrong, known), right, "{wrong}");
        }
    }
}
