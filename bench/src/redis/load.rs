//! Callers that call again as soon as they have an answer.

use std::{
    future::Future,
    time::{Duration, Instant},
};
use tokio::task::{JoinSet, yield_now};

/// A caller makes this many decisions before it yields to the others in any case. Decisions that
/// need no server never wait, and the connection runs on the same thread.
const TURN: u64 = 32;

/// The answers that the callers got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) decisions: u64,
    pub(super) allowed: u64,
}

/// Makes callers call for a time. Each call gets a number that looks random.
pub(super) async fn closed_loop<A, F>(
    callers: usize,
    time: Duration,
    ask: A,
) -> Result<Tally, String>
where
    A: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = Result<bool, String>> + Send + 'static,
{
    let end = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for caller in 0..callers as u64 {
        let ask = ask.clone();
        tasks.spawn(async move {
            let (mut tally, mut number) = (Tally::default(), scatter(caller));
            while Instant::now() < end {
                number = scatter(number);
                tally.allowed += u64::from(ask(number).await?);
                tally.decisions += 1;
                if tally.decisions.is_multiple_of(TURN) {
                    yield_now().await;
                }
            }
            Ok::<_, String>(tally)
        });
    }
    let mut sum = Tally::default();
    while let Some(ended) = tasks.join_next().await {
        let tally = ended.map_err(|error| error.to_string())??;
        sum.decisions += tally.decisions;
        sum.allowed += tally.allowed;
    }
    Ok(sum)
}

/// Calls for each number below `count` once, 64 at a time.
pub(super) async fn each<A, F>(count: u64, ask: A) -> Result<(), String>
where
    A: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = Result<bool, String>> + Send + 'static,
{
    const CALLERS: u64 = 64;
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let ask = ask.clone();
        tasks.spawn(async move {
            for number in (caller..count).step_by(CALLERS as usize) {
                ask(number).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(())
}

/// SplitMix64: the next of a sequence of numbers that look random.
const fn scatter(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn each_number_is_asked_for_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let asked = std::sync::Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let ask = move |number| {
            seen.lock().unwrap().push(number);
            std::future::ready(Ok(true))
        };
        runtime.block_on(each(1000, ask)).unwrap();
        let mut asked = asked.lock().unwrap().clone();
        asked.sort_unstable();
        assert_eq!(asked, (0..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn a_failure_ends_the_loop_with_its_text() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ask = |_| std::future::ready(Err::<bool, _>("gone".to_owned()));
        let result = runtime.block_on(closed_loop(2, Duration::from_secs(5), ask));
        assert_eq!(result, Err("gone".into()));
    }
}
