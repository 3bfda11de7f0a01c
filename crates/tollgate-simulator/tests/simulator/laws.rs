//! The laws keep a server useful under overload: the bounds that docs/adaptive.md states, and its
//! tables.

#[path = "../../examples/laws/scenario.rs"]
mod scenario;
#[path = "../../examples/laws/table.rs"]
#[allow(dead_code, reason = "only the command prints whole tables")]
mod table;

use crate::docs;
use scenario::{DAMPED, LAWS, NONE, NamedLaw, PROBING, Scenario, tuned, untuned};
use tollgate_simulator::Report;

/// How much a figure of the docs may differ: the last digits depend on the machine's logarithm.
const TOLERANCE: f64 = 0.02;

/// Checks a law in the scenarios with a page's figures; each figure is a mean over the seeds.
/// `least` is the goodput that the law must reach.
fn check(law: &NamedLaw, least: impl Fn(&Scenario) -> f64) {
    let rows = docs::rows("adaptive.md", "| law | A |");
    let (_, figures) = rows.iter().find(|(name, _)| name == law.name).unwrap();
    for (scenario, figure) in tuned().iter().zip(figures) {
        let reports = table::SEEDS.map(|seed| scenario.run(seed, law).unwrap());
        let mean = |of: &dyn Fn(&Report) -> f64| reports.iter().map(of).sum::<f64>() / 3.0;
        let context = format!("{} in {}", law.name, scenario.name);
        let good = mean(&|report| report.goodput(0..scenario.seconds));
        assert!(good >= least(scenario), "{context}: {good}");
        assert!((good - figure).abs() <= TOLERANCE, "{context}: {good}, in the docs {figure}");
        let Some(at) = scenario.overload_at else { continue };
        for quiet in [0..60, 240..300] {
            let refused = mean(&|report| report.refused(quiet.clone()));
            assert!(refused < 0.02, "{context}, {quiet:?}: {refused} refused");
        }
        let first = mean(&|report| report.goodput(at..at + 5));
        assert!(first >= 0.8, "{context}: {first} in the first 5 s");
        let p99 = mean(&|report| report.latency(60..240, 99.0).unwrap().as_secs_f64());
        assert!(p99 <= scenario::DEADLINE.as_secs_f64(), "{context}: p99 {p99} s");
    }
}

#[test]
fn the_probing_gradient_keeps_96_percent_of_the_ideal() {
    check(&PROBING, |_| 0.96);
}

#[test]
fn damped_aimd_keeps_99_percent_of_the_ideal_and_88_while_collapsing() {
    check(&DAMPED, |scenario| if scenario.name == "C" { 0.88 } else { 0.99 });
}

#[test]
fn without_a_limit_overload_leaves_less_than_a_fifth() {
    for scenario in tuned() {
        let good = scenario.run(1, &NONE).unwrap().goodput(0..scenario.seconds);
        match scenario.overload_at {
            Some(_) => assert!(good <= 0.2, "{}: {good}", scenario.name),
            None => assert!(good > 0.99, "{}: {good}", scenario.name),
        }
    }
}

/// The tables list every law; `./test long` runs each of them in each scenario.
#[test]
fn the_tables_of_the_docs_are_what_the_laws_give() {
    let is_long = std::env::var_os("TOLLGATE_LONG").is_some();
    for (head, scenarios) in [("| law | A |", tuned()), ("| law | 200 workers |", untuned())] {
        let rows = docs::rows("adaptive.md", head);
        assert_eq!(rows.len(), LAWS.len());
        for ((name, figures), law) in rows.iter().zip(&LAWS) {
            assert_eq!(name, law.name);
            let (worst, figures) = figures.split_last().unwrap();
            assert_eq!(*worst, figures.iter().copied().fold(f64::INFINITY, f64::min));
            for (figure, scenario) in figures.iter().zip(&scenarios).filter(|_| is_long) {
                let good = table::goodput(scenario, law, &table::SEEDS).unwrap();
                let context = format!("{name} in {}", scenario.name);
                assert!((good - figure).abs() <= TOLERANCE, "{context}: {good}, not {figure}");
            }
        }
    }
}
