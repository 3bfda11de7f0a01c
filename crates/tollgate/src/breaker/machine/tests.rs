use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

fn at(secs: u64) -> Tick {
    Tick::from_secs(secs)
}

fn rules() -> Rules {
    Rules {
        open_for: Duration::from_secs(5),
        growth: 2,
        most: Duration::from_secs(60),
        jitter_percent: 0,
        trials: 3,
        close_after: 3,
        patience: PATIENCE,
    }
}

fn machine() -> Machine {
    Machine::new(rules(), 1)
}

/// A machine in a named state, the time then, and the ticket of the call that matters there: the
/// running trial in half-open, else one from before.
fn in_state(name: &str) -> (Machine, Tick, Ticket) {
    let mut machine = machine();
    let mut ticket = machine.admit(at(0)).unwrap();
    let (base, shadow) = match name.strip_prefix("shadow ") {
        Some(base) => (base, true),
        None => (name, false),
    };
    if shadow {
        machine.hold(Hold::Shadow);
        ticket = machine.admit(at(0)).unwrap();
    }
    let trip = |machine: &mut Machine| {
        assert!(machine.trip(machine.generation, OpenReason::FailureShare, at(0)));
    };
    let mut now = at(0);
    match base {
        "closed" => {}
        "open" => {
            trip(&mut machine);
            now = at(5).saturating_sub(Duration::from_nanos(1));
        }
        "due" => {
            trip(&mut machine);
            now = at(5);
        }
        "trying" | "last" | "full" => {
            trip(&mut machine);
            now = at(5);
            ticket = machine.admit(now).unwrap();
            for _ in 0..2 {
                let other = machine.admit(now).unwrap();
                match base {
                    "trying" => assert!(machine.end_trial(other, CallOutcome::Ignore, now)),
                    "last" => assert!(machine.end_trial(other, CallOutcome::Success, now)),
                    _ => {}
                }
            }
        }
        "held open" => machine.hold(Hold::Open),
        "held closed" => machine.hold(Hold::Closed),
        _ => panic!("no state {name}"),
    }
    (machine, now, ticket)
}

fn name_of(machine: &Machine) -> String {
    let phase = match &machine.phase {
        Phase::Closed => "closed".to_owned(),
        Phase::Open { until } => format!("open until {}", until.as_nanos() / 1_000_000_000),
        Phase::HalfOpen { succeeded, running } => format!("trying {}+{succeeded}", running.len()),
    };
    match machine.hold {
        Hold::Automatic => phase,
        Hold::Shadow => format!("shadow {phase}"),
        Hold::Open => "held open".to_owned(),
        Hold::Closed => "held closed".to_owned(),
    }
}

/// Applies an event by name; admissions show as "pass", "trial" or "refuse" before the state.
fn apply(state: &str, event: &str) -> String {
    let (mut machine, now, ticket) = in_state(state);
    let old = Ticket { generation: ticket.generation.wrapping_sub(1), ..ticket };
    let mut prefix = "";
    let trial = |machine: &mut Machine, ticket, outcome| {
        machine.end_trial(ticket, outcome, now);
    };
    match event {
        "admit" => {
            prefix = match machine.admit(now).map(|ticket| ticket.role) {
                Some(Role::Counted) => "pass, ",
                Some(Role::Trial(_)) => "trial, ",
                Some(Role::Uncounted) => "uncounted, ",
                None => "refuse, ",
            };
        }
        "trip" => {
            machine.trip(ticket.generation, OpenReason::FailureShare, now);
        }
        "old trip" => {
            machine.trip(old.generation, OpenReason::FailureShare, now);
        }
        "success" => trial(&mut machine, ticket, CallOutcome::Success),
        "failure" => trial(&mut machine, ticket, CallOutcome::Failure),
        "overload" => trial(&mut machine, ticket, CallOutcome::Overload),
        "ignore" => trial(&mut machine, ticket, CallOutcome::Ignore),
        "old success" => trial(&mut machine, old, CallOutcome::Success),
        "old failure" => trial(&mut machine, old, CallOutcome::Failure),
        "server time 30" => {
            machine.open_until(ticket, at(30));
        }
        "old server time" => {
            machine.open_until(old, at(30));
        }
        "uncounted time" => {
            machine.open_until(machine.ticket(Role::Uncounted), at(30));
        }
        "trip until 30" => {
            machine.trip_until(at(30));
        }
        "try now" => {
            machine.try_now();
        }
        "hold open" => machine.hold(Hold::Open),
        "hold closed" => machine.hold(Hold::Closed),
        "shadow" => machine.hold(Hold::Shadow),
        "automatic" => machine.hold(Hold::Automatic),
        _ => panic!("no event {event}"),
    }
    format!("{prefix}{}", name_of(&machine))
}

const EVENTS: [&str; 18] = [
    "admit",
    "trip",
    "old trip",
    "success",
    "failure",
    "overload",
    "ignore",
    "old success",
    "old failure",
    "old server time",
    "uncounted time",
    "server time 30",
    "trip until 30",
    "try now",
    "hold open",
    "hold closed",
    "shadow",
    "automatic",
];

/// What each event makes of each state. A dash is "as it was". The last four columns, by hand, are the
/// same everywhere and not repeated.
#[test]
fn every_state_and_event() {
    // state: as it is, then one result for each of the first fourteen events
    #[rustfmt::skip]
    let table: [(&str, &str, [&str; 14]); 14] = [
        ("closed", "closed", ["pass, closed", "open until 5", "-", "-", "-", "-", "-", "-", "-", "-", "-", "open until 30", "open until 30", "-"]),
        ("open", "open until 5", ["refuse, open until 5", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "open until 30", "trying 0+0"]),
        ("due", "open until 5", ["trial, trying 1+0", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "open until 30", "trying 0+0"]),
        ("trying", "trying 1+0", ["trial, trying 2+0", "-", "-", "trying 0+1", "open until 15", "open until 15", "trying 0+0", "-", "-", "-", "-", "open until 30", "open until 30", "-"]),
        ("last", "trying 1+2", ["refuse, trying 1+2", "-", "-", "closed", "open until 15", "open until 15", "trying 0+2", "-", "-", "-", "-", "open until 30", "open until 30", "-"]),
        ("full", "trying 3+0", ["refuse, trying 3+0", "-", "-", "trying 2+1", "open until 15", "open until 15", "trying 2+0", "-", "-", "-", "-", "open until 30", "open until 30", "-"]),
        ("held open", "held open", ["refuse, held open", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"]),
        ("held closed", "held closed", ["uncounted, held closed", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"]),
        ("shadow closed", "shadow closed", ["pass, shadow closed", "shadow open until 5", "-", "-", "-", "-", "-", "-", "-", "-", "-", "shadow open until 30", "shadow open until 30", "-"]),
        ("shadow open", "shadow open until 5", ["refuse, shadow open until 5", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "shadow open until 30", "shadow trying 0+0"]),
        ("shadow due", "shadow open until 5", ["trial, shadow trying 1+0", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "shadow open until 30", "shadow trying 0+0"]),
        ("shadow trying", "shadow trying 1+0", ["trial, shadow trying 2+0", "-", "-", "shadow trying 0+1", "shadow open until 15", "shadow open until 15", "shadow trying 0+0", "-", "-", "-", "-", "shadow open until 30", "shadow open until 30", "-"]),
        ("shadow last", "shadow trying 1+2", ["refuse, shadow trying 1+2", "-", "-", "shadow closed", "shadow open until 15", "shadow open until 15", "shadow trying 0+2", "-", "-", "-", "-", "shadow open until 30", "shadow open until 30", "-"]),
        ("shadow full", "shadow trying 3+0", ["refuse, shadow trying 3+0", "-", "-", "shadow trying 2+1", "shadow open until 15", "shadow open until 15", "shadow trying 2+0", "-", "-", "-", "-", "shadow open until 30", "shadow open until 30", "-"]),
    ];
    for (state, as_it_was, results) in table {
        assert_eq!(name_of(&in_state(state).0), as_it_was);
        let by_hand = ["held open", "held closed", "shadow closed", "closed"];
        let results = results.into_iter().chain(by_hand);
        for (event, result) in EVENTS.into_iter().zip(results) {
            let expected = if result == "-" { as_it_was } else { result };
            assert_eq!(apply(state, event), expected, "{state}: {event}");
        }
    }
}

#[test]
fn breaks_grow_to_the_most_and_start_over_after_a_close() {
    let mut machine = machine();
    let mut now = at(0);
    assert!(machine.trip(machine.generation, OpenReason::FailureShare, now));
    let mut lengths = Vec::new();
    for _ in 0..6 {
        let until = machine.retry_at();
        lengths.push(until.since(now).as_secs());
        now = until;
        let trial = machine.admit(now).unwrap();
        assert!(machine.end_trial(trial, CallOutcome::Failure, now));
    }
    assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
    now = machine.retry_at();
    for _ in 0..3 {
        let trial = machine.admit(now).unwrap();
        machine.end_trial(trial, CallOutcome::Success, now);
    }
    assert!(machine.trip(machine.generation, OpenReason::FailureShare, now));
    assert_eq!(machine.retry_at().since(now), Duration::from_secs(5));
}

#[test]
fn jitter_only_shortens_and_repeats_with_its_seed() {
    let lengths = |seed| {
        let rules = Rules { growth: 1, jitter_percent: 10, ..rules() };
        let mut machine = Machine::new(rules, seed);
        let mut length = || {
            machine.hold(Hold::Automatic);
            machine.trip(machine.generation, OpenReason::FailureShare, at(0));
            machine.retry_at().since(at(0))
        };
        (0..200).map(|_| length()).collect::<Vec<_>>()
    };
    let drawn = lengths(7);
    let (least, most) = (Duration::from_millis(4500), Duration::from_secs(5));
    assert!(drawn.iter().all(|it| (least..=most).contains(it)), "{drawn:?}");
    let middle = Duration::from_millis(4750);
    assert!(drawn.iter().any(|it| *it < middle) && drawn.iter().any(|it| *it > middle));
    assert_eq!(drawn, lengths(7));
    assert_ne!(drawn, lengths(8));
}

#[test]
fn a_trial_that_hangs_loses_its_slot_at_its_patience_and_decides_nothing() {
    let (mut machine, now, hanging) = in_state("full");
    assert_eq!(machine.retry_at(), now.saturating_add(PATIENCE));
    let early = machine.retry_at().saturating_sub(Duration::from_nanos(1));
    assert_eq!(machine.admit(early), None);
    let later = machine.retry_at();
    let replacement = machine.admit(later).unwrap();
    assert!(matches!(replacement.role, Role::Trial(_)));
    assert!(!machine.end_trial(hanging, CallOutcome::Failure, later), "it has lost its slot");
    assert_eq!(name_of(&machine), "trying 3+0");
}

#[test]
fn a_break_beyond_all_time_ends_only_by_hand() {
    let rules = Rules { open_for: Duration::MAX, most: Duration::MAX, ..rules() };
    let mut machine = Machine::new(rules, 1);
    assert!(machine.trip(0, OpenReason::FailureShare, at(1)));
    assert_eq!(machine.retry_at(), Tick::MAX);
    assert!(machine.try_now());
    assert!(machine.admit(at(1)).is_some());
}
