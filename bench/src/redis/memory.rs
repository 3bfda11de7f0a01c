//! The server's memory for a key.

use super::{
    ask::{Ask, Target, key_of},
    load,
    server::Bench,
};
use crate::{
    harness::progress,
    table::{Table, figure},
};
use std::{sync::Arc, time::Duration};
use tollgate::{Algorithm, Quota, store::Policy};

/// The same with `--quick`: with fewer keys, a table that doubles is at another point of its
/// growth.
const KEYS: u64 = 100_000;

/// Prints the bytes for each key.
pub(super) fn run(bench: &Bench) {
    println!("### Memory of the server for each of {KEYS} keys\n");
    println!(
        "Keys of 16 bytes, each asked for once unless the row says otherwise; the names of our states have \
         about 16 bytes more (`tollgate:g:{{KEY}}:POLICY`). *used_memory*: growth divided by the keys, \
         tables of the server included. *MEMORY USAGE*: of one of the keys.\n"
    );
    let mut table = Table::new(["", "used_memory", "ratio", "MEMORY USAGE"]);
    let mut base = None;
    let rows = match rows() {
        Ok(rows) => rows,
        Err(error) => return println!("Not measured: {error}.\n"),
    };
    for (name, ask, takes) in rows {
        if takes > 1 && bench.extent.quick {
            continue;
        }
        progress(&format!("memory: {name}"));
        let (each, one) = match fill(bench, &Arc::new(ask), takes) {
            Ok(found) => found,
            Err(error) => {
                println!("Failed: {name}: {error}.\n");
                continue;
            }
        };
        let base = *base.get_or_insert(each);
        table.line([name, figure(Some(each)), figure(Some(each / base)), figure(one)]);
    }
    progress("");
    println!("{table}");
}

/// The rows, INCR first: the call, and how often it is made for each key.
fn rows() -> Result<Vec<(String, Ask, u64)>, String> {
    let day = Duration::from_secs(86_400);
    let mut rows = vec![("INCR".to_owned(), Ask::Incr, 1)];
    for (name, algorithm, quota, takes) in [
        ("gcra", Algorithm::Gcra, Quota::per_day(100), 1),
        ("gcra, 7/min", Algorithm::Gcra, Quota::per_minute(7).burst(1_000_000), 1),
        ("fixed window", Algorithm::FixedWindow, Quota::per_day(100), 1),
        ("anchored window", Algorithm::AnchoredWindow, Quota::per_day(100), 1),
        ("sliding counter", Algorithm::SlidingCounter, Quota::per_day(100), 1),
        ("sliding log, 1 entry", Algorithm::SlidingLog, Quota::per_day(100), 1),
        ("sliding log, 10 entries", Algorithm::SlidingLog, Quota::per(100, day), 10),
    ] {
        let policy = Policy::with_algorithm("api", quota, algorithm);
        let policy = policy.map_err(|error| format!("{name}: {error}"))?;
        rows.push((name.to_owned(), Ask::Take(vec![policy]), takes));
    }
    let quota = Quota::per_day(100);
    rows.insert(3, ("gcra, quota in the call".into(), Ask::AdHoc(Policy::ad_hoc("api"), quota), 1));
    rows.push(("textbook GCRA".into(), Ask::Naive, 1));
    Ok(rows)
}

/// Returns the growth for each key, and the size of one key that the server reports.
fn fill(bench: &Bench, ask: &Arc<Ask>, takes: u64) -> Result<(f64, Option<f64>), String> {
    bench.redis.try_cli(&["FLUSHALL", "SYNC"])?;
    let call = |target: Target| {
        let ask = ask.clone();
        move |number: u64| {
            let (ask, target) = (ask.clone(), target.clone());
            async move {
                for _ in 0..takes {
                    ask.ask(&target, &key_of(number)).await?;
                }
                Ok(true)
            }
        }
    };
    // The scripts are loaded and the buffers allocated before the first reading.
    bench.block_on(load::each(64, call(bench.target.clone())))?;
    bench.redis.try_cli(&["FLUSHALL", "SYNC"])?;
    let before = used_memory(bench)?;
    bench.block_on(load::each(KEYS, call(bench.target.clone())))?;
    let grown = used_memory(bench)? - before;
    let name = bench.redis.try_cli(&["RANDOMKEY"])?;
    let one = bench.redis.try_cli(&["MEMORY", "USAGE", &name, "SAMPLES", "0"])?;
    Ok((grown / KEYS as f64, one.parse().ok()))
}

fn used_memory(bench: &Bench) -> Result<f64, String> {
    let info = bench.redis.info("memory");
    let bytes = info.get("used_memory").and_then(|text| text.parse().ok());
    bytes.ok_or_else(|| "the server does not say how much memory it uses".into())
}
