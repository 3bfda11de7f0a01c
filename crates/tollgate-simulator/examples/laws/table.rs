//! The tables of docs/adaptive.md.

use super::scenario::{DAMPED, LAWS, NamedLaw, PROBING, Scenario};
use std::fmt::Write as _;
use tollgate::adaptive::law::LawError;

/// The seeds of which every figure is the mean.
pub(crate) const SEEDS: [u64; 3] = [1, 2, 3];

/// Returns the goodput of a law in a scenario as a share of the ideal.
pub(crate) fn goodput(scenario: &Scenario, law: &NamedLaw, seeds: &[u64]) -> Result<f64, LawError> {
    let mut sum = 0.0;
    for seed in seeds {
        sum += scenario.run(*seed, law)?.goodput(0..scenario.seconds);
    }
    Ok(sum / seeds.len() as f64)
}

/// Every law in every scenario, with its worst.
pub(crate) fn compare(scenarios: &[Scenario], seeds: &[u64]) -> Result<String, LawError> {
    let names: Vec<_> = scenarios.iter().map(|scenario| scenario.name).collect();
    let mut table = format!("| law | {} | worst |\n", names.join(" | "));
    table += &format!("|---|{}---|\n", "---|".repeat(names.len()));
    for law in &LAWS {
        let mut worst = f64::INFINITY;
        let _ = write!(table, "| {}", law.name);
        for scenario in scenarios {
            let share = goodput(scenario, law, seeds)?;
            worst = worst.min(share);
            let _ = write!(table, " | {share:.3}");
        }
        let _ = writeln!(table, " | {worst:.3} |");
    }
    Ok(table)
}

/// Further figures of the two recommended laws in the scenarios with five phases.
pub(crate) fn details(scenarios: &[Scenario], seeds: &[u64]) -> Result<String, LawError> {
    let mut table = String::from(
        "| law | scenario | first 5 s of overload | refused at 0.7 load | p99 in overload | limit at 120 s | at 180 s |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for law in [DAMPED, PROBING] {
        for scenario in scenarios {
            let Some(overload_at) = scenario.overload_at else { continue };
            let (mut first, mut refused, mut p99, mut limits) = (0.0, 0.0, 0.0, [0, 0]);
            for seed in seeds {
                let report = scenario.run(*seed, &law)?;
                first += report.goodput(overload_at..overload_at + 5);
                refused += (report.refused(0..60) + report.refused(240..300)) / 2.0;
                p99 += report.latency(60..240, 99.0).unwrap_or_default().as_secs_f64() * 1000.0;
                limits[0] += report.trace()[1199].limit;
                limits[1] += report.trace()[1799].limit;
            }
            let runs = seeds.len() as f64;
            let [at_120, at_180] = limits.map(|limit| limit / seeds.len() as u64);
            let (first, refused, p99) = (first / runs, 100.0 * refused / runs, p99 / runs);
            let _ = writeln!(
                table,
                "| {} | {} | {first:.3} | {refused:.1} % | {p99:.0} ms | {at_120} | {at_180} |",
                law.name, scenario.name,
            );
        }
    }
    Ok(table)
}
