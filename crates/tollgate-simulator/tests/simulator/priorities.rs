//! Critical calls are served at any load, and no capacity is lost to that.

#[path = "../../examples/priorities/queue.rs"]
pub(crate) mod queue;

use queue::{CLASSES, Queueing, served};

#[test]
fn critical_calls_are_served_at_twice_and_four_times_the_capacity() {
    let [critical, normal, batch] = CLASSES.map(|class| class.0);
    for (load, least_normal) in [(2.0, 0.75), (4.0, 0.25)] {
        let by_priority = served(Queueing::ByPriority, load, 1).unwrap();
        assert!(by_priority.share(critical) >= 0.995, "{by_priority:?}");
        assert!(by_priority.share(normal) >= least_normal, "{by_priority:?}");
        assert!(by_priority.share(batch) <= 0.05, "{by_priority:?}");
        assert!(by_priority.goodput() >= 0.98, "{by_priority:?}");
        let equal = served(Queueing::Equal, load, 1).unwrap();
        assert!((equal.share(critical) - 1.0 / load).abs() < 0.05, "{equal:?}");
        assert!(equal.goodput() >= 0.98, "{equal:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let run = |seed| format!("{:?}", served(Queueing::ByPriority, 2.0, seed).unwrap());
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
