//! Decisions that mostly need no server: leases, remembered refusals, joined calls.

use super::{
    ask::key_of,
    grid::Grid,
    server::{Bench, Sample},
};
use crate::{
    harness::progress,
    table::{Table, figure},
};
use std::time::Duration;
use tollgate::{
    Decision, Quota,
    store::{Demand, Policy, Store, StoreError},
};
use tollgate_redis::{FleetSize, LeaseSettings, Link, RedisStore, TwoTier};

/// A store with one tier or two.
#[derive(Clone)]
enum Either {
    Plain(RedisStore),
    Tiers(TwoTier<RedisStore>),
}

impl Either {
    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        match self {
            Self::Plain(store) => store.acquire(demands).await,
            Self::Tiers(store) => store.acquire(demands).await,
        }
    }
}

/// One row: a store, the connection below it, the callers and their policy.
struct Row {
    name: &'static str,
    /// The row that it is compared with.
    base: usize,
    link: Link,
    store: Either,
    policy: Policy,
    callers: usize,
}

/// Prints the savings of two tiers and of joined calls.
pub(super) fn run(bench: &Bench) {
    println!("### Two tiers, and joined calls\n");
    println!(
        "One hot key. *Ratio* is decisions each second to those of the first row of the group; *server* is \
         the time of its main thread for each decision.\n"
    );
    let rows = match rows(bench) {
        Ok(rows) => rows,
        Err(error) => return println!("Not measured: {error}.\n"),
    };
    let names = rows.iter().map(|row| row.name.to_owned()).collect();
    let mut grid = Grid::new(names, vec![String::new()]);
    let mut failed = None;
    for round in 1..=bench.extent.rounds {
        for (at, row) in rows.iter().enumerate() {
            progress(&format!("tiers, round {round}: {}", row.name));
            let sample = measure(bench, row);
            let name = row.name;
            let sample = sample.map_err(|error| failed = Some(format!("{name}: {error}"))).ok();
            grid.push(at, 0, sample);
        }
    }
    progress("");
    println!("{}", table(&rows, &grid));
    failed.into_iter().for_each(|error| println!("Failed: {error}.\n"));
}

fn table(rows: &[Row], grid: &Grid) -> Table {
    let headings =
        ["", "callers", "ratio", "k/s", "allowed", "calls per decision", "server us", "client us"];
    let mut table = Table::new(headings);
    for (at, row) in rows.iter().enumerate() {
        let middle = |pick: fn(&Sample) -> f64| grid.middle(at, 0, pick);
        let share = |value: Option<f64>| value.map_or("-".into(), |it| format!("{it:.6}"));
        table.line([
            row.name.to_owned(),
            row.callers.to_string(),
            figure(grid.ratio((at, row.base), 0, Sample::rate)),
            figure(middle(|it| it.rate() / 1000.0)),
            middle(|it| it.allowed / it.decisions)
                .map_or("-".into(), |it| format!("{:.1} %", it * 100.0)),
            share(middle(Sample::calls_each)),
            share(middle(Sample::server_us_each)),
            figure(middle(Sample::client_us_each)),
        ]);
    }
    table
}

fn measure(bench: &Bench, row: &Row) -> Result<Sample, String> {
    let (store, policy) = (row.store.clone(), row.policy.clone());
    bench.measure(&row.link, row.callers, move |_| {
        let (store, policy) = (store.clone(), policy.clone());
        async move {
            let key = key_of(0);
            let mut demands = [Demand::new(&policy, &key, 1)];
            let decision = store.acquire(&mut demands).await;
            decision.map(|it| it.is_allowed()).map_err(|it| it.to_string())
        }
    })
}

fn rows(bench: &Bench) -> Result<Vec<Row>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    // Each row has a connection of its own, so that its calls are counted separately.
    let plain = |join_above: u32| {
        let link = bench.open()?;
        let store = RedisStore::builder(link.clone()).join_above(join_above).build();
        Ok::<_, String>((link, store.map_err(|it| text(&it))?))
    };
    let policy = |name: &str, quota| Policy::new(name, quota).map_err(|it| text(&it));
    let mut rows = Vec::new();
    let mut add = |name, base, made: (Link, Either), policy, callers| {
        rows.push(Row { name, base, link: made.0, store: made.1, policy, callers });
    };

    let boxed = |(link, store): (Link, RedisStore)| (link, Either::Plain(store));
    let tiered = |leases: Option<LeaseSettings>, deny_cap: Option<Duration>| {
        let (link, store) = plain(u32::MAX)?;
        let mut builder = TwoTier::builder(store, FleetSize::fixed(1));
        if let Some(leases) = leases {
            builder = builder.leases(leases);
        }
        if let Some(cap) = deny_cap {
            builder = builder.deny_cap(cap);
        }
        let tier = builder.build().map_err(|it| text(&it))?;
        Ok::<_, String>((link, Either::Tiers(tier)))
    };
    let hot = Quota::per_second(1_000_000);
    let leases = Some(LeaseSettings::new());
    add("1M/s, plain", 0, boxed(plain(u32::MAX)?), policy("h1", hot)?, 50);
    add("1M/s, joined above 4 (default)", 0, boxed(plain(4)?), policy("h2", hot)?, 50);
    add("1M/s, leases of 100 ms", 0, tiered(leases, None)?, policy("h3", hot)?, 50);
    let slow = Quota::per_second(10);
    let none = Some(Duration::ZERO);
    add("10/s flooded, plain", 3, boxed(plain(u32::MAX)?), policy("s1", slow)?, 50);
    add("10/s flooded, joined above 4", 3, boxed(plain(4)?), policy("s2", slow)?, 50);
    add("10/s flooded, refusals not kept", 3, tiered(None, none)?, policy("s3", slow)?, 50);
    add("10/s flooded, refusals kept (default)", 3, tiered(None, None)?, policy("s4", slow)?, 50);
    add("800 callers, joined never", 7, boxed(plain(u32::MAX)?), policy("j1", hot)?, 800);
    add("800 callers, joined above 4 (default)", 7, boxed(plain(4)?), policy("j2", hot)?, 800);
    Ok(rows)
}
