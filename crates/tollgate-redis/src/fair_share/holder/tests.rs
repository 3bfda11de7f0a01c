use super::*;

const LEASE: Duration = Duration::from_secs(10);

fn at(secs: u64) -> Tick {
    Tick::from_secs(secs)
}

fn rate(permits: u64) -> Rate {
    Rate::per_second(permits)
}

fn granted(share: u64, clients: u32) -> Answer {
    Answer::Granted { share: rate(share), clients, learning: Duration::ZERO }
}

fn holder(safe: Option<u64>) -> Holder {
    Holder::new(rate(100), safe.map(rate), LEASE)
}

#[test]
fn a_lease_ends_one_lease_after_it_was_asked_for() {
    let mut holder = holder(None);
    assert_eq!(holder.share(at(0)), (Rate::ZERO, Mode::Joining));
    let report = holder.report(at(0), rate(80));
    assert_eq!(report, Report { number: 1, has: Rate::ZERO, wants: rate(80) });
    assert!(!holder.answered(at(0), &report, granted(80, 4)));
    holder.failed(at(6));
    for (row, (secs, share, mode, next)) in [
        (0, 80, Mode::Granted, Some(10)),
        (9, 80, Mode::Granted, Some(10)),
        (10, 25, Mode::Safe, Some(16)),
        (16, 25, Mode::Safe, None),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(holder.share(at(secs)), (rate(share), mode), "row {row}");
        assert_eq!(holder.next_change(at(secs)), next.map(at), "row {row}");
    }
    assert_eq!(holder.lease_left(at(4)), Duration::from_secs(6));
}

#[test]
fn a_small_share_grows_to_the_safe_one_only_when_all_leases_are_over() {
    let mut holder = holder(Some(30));
    let report = holder.report(at(0), rate(5));
    holder.answered(at(0), &report, granted(5, 4));
    holder.failed(at(3));
    holder.failed(at(6));
    for (secs, share) in [(9, 5), (10, 5), (12, 5), (13, 30)] {
        assert_eq!(holder.share(at(secs)).0, rate(share), "at {secs} s");
    }
    let report = holder.report(at(14), rate(5));
    assert_eq!((report.number, report.has), (2, rate(30)), "it says what it uses");
    assert!(holder.answered(at(14), &report, granted(5, 4)), "less than before");
    assert_eq!(holder.share(at(14)), (rate(5), Mode::Granted));
}

#[test]
fn without_any_answer_only_a_configured_safe_share_is_used() {
    let (mut unknown, mut known) = (holder(None), holder(Some(30)));
    unknown.failed(at(0));
    known.failed(at(0));
    for (secs, share) in [(0, 0), (9, 0), (10, 30)] {
        assert_eq!(unknown.share(at(secs)), (Rate::ZERO, Mode::Safe));
        assert_eq!(known.share(at(secs)), (rate(share), Mode::Safe));
    }
}

#[test]
fn a_refusal_leaves_nothing_until_the_next_answer() {
    let mut holder = holder(Some(30));
    for answer in [Answer::Full, Answer::InUse] {
        let report = holder.report(at(0), rate(5));
        holder.answered(at(0), &report, granted(5, 4));
        let report = holder.report(at(3), rate(5));
        assert!(!holder.answered(at(3), &report, answer));
        assert_eq!(holder.share(at(4)), (Rate::ZERO, Mode::Refused));
        assert_eq!(holder.share(at(40)), (Rate::ZERO, Mode::Refused));
        assert!(holder.refusal().is_some());
    }
}

#[test]
fn learning_is_told_apart_from_granted() {
    let mut holder = holder(None);
    let report = holder.report(at(0), rate(5));
    let learning = Duration::from_secs(4);
    let answer = Answer::Granted { share: rate(5), clients: 1, learning };
    holder.answered(at(0), &report, answer);
    assert_eq!(holder.share(at(3)), (rate(5), Mode::Learning));
    assert_eq!(holder.share(at(4)), (rate(5), Mode::Granted));
    assert_eq!(holder.learned(), Some(at(4)));
}
