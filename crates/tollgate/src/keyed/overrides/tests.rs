use super::*;

fn secs(secs: u64) -> Tick {
    Tick::from_secs(secs)
}

#[test]
fn bans_double_up_to_the_most_and_are_forgiven() {
    let second = Duration::from_secs(1);
    let rules = Escalation::new(2, 10 * second, 30 * second).most(100 * second);
    let mut note = KeyOverride::default();
    // at_s, blocked until
    for (row, (at, until)) in [
        (0, None),
        (11, None), // the first refusal has left the window
        (12, Some(42)),
        (42, None),
        (43, Some(103)),
        (103, None),
        (103, Some(203)), // 120 s would be more than the most
        (303, None),
        (303, Some(333)), // forgiven 100 s after the last ban
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(note.strike(secs(at), &rules), until.map(secs), "row {row}, at {at} s");
    }
}

#[test]
fn notes_are_bounded_and_memories_make_room() {
    let (notes, rules) =
        (Overrides::new(200), Escalation::new(3, Duration::from_secs(9), Duration::from_secs(9)));
    let spread = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for key in 0..5000 {
        notes.strike(spread(key), secs(0), &rules);
    }
    assert!(notes.len() <= 200);
    let list =
        |key: u64, now| notes.change(spread(key), now, |note| note.listed = Access::Denied).is_ok();
    let listed = (10_000..10_400).filter(|key| list(*key, secs(0))).count() as u64;
    assert!((150..=200).contains(&listed), "{listed} took the place of memories");
    assert!(notes.len() <= 200);
}
