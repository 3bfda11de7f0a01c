//! How fast calls are, beside another client and redis-benchmark. Not a test of anything: run it with
//!
//! ```text
//! cargo test --release -p tollgate-redis --features test-servers --test client -- --ignored --nocapture
//! ```

use crate::servers::link_support::{call, open};
use std::{future::Future, time::Duration};
use tollgate::Clock;
use tollgate_rig::{Flavor, Redis};

/// Returns the processor time that a process has used, in nanoseconds.
fn cpu_ns(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) * 1e7
}

/// Measures the calls per second of this many callers, and the cost of one on both sides.
async fn speed<F: Future<Output = ()> + Send>(
    callers: usize,
    server: &Redis,
    call: impl Fn() -> F + Clone + Send + 'static,
) -> String {
    let clock = Clock::monotonic();
    let processes = [std::process::id(), server.pid()];
    let before = processes.map(cpu_ns);
    let began = clock.now();
    let span = Duration::from_millis(1500);
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (call, clock) = (call.clone(), clock.clone());
            tokio::spawn(async move {
                let mut calls = 0_u64;
                while clock.now().since(began) < span {
                    call().await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await.unwrap();
    }
    let calls = calls as f64;
    let after = processes.map(cpu_ns);
    let cost = |at: usize| (after[at] - before[at]) / calls;
    let rate = calls / clock.now().since(began).as_secs_f64();
    format!("{rate:.0}/s, processor {:.0} ns here, {:.0} ns in the server", cost(0), cost(1))
}

fn benchmark(port: u16, args: &[&str]) -> f64 {
    let output = std::process::Command::new("redis-benchmark")
        .args(["-p", &port.to_string(), "-t", "incr", "--csv", "-n", "300000"])
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().last().unwrap().split('"').nth(3).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn calls_per_second() {
    let server = Redis::start(Flavor::Redis);
    let url = server.url();
    let client = redis::Client::open(url.as_str()).unwrap();
    for round in 0..3 {
        for callers in [1, 50, 800] {
            for connections in [1, 2] {
                let url = format!("{url}?deadline=5s&connections={connections}");
                let link = open(&url).await;
                let speed = speed(callers, &server, move || {
                    let link = link.clone();
                    async move {
                        call(&link, &["INCR", "counter"]).await.unwrap();
                    }
                });
                let speed = speed.await;
                println!("{round}: {callers} callers, link of {connections}: {speed}");
            }
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            let speed = speed(callers, &server, move || {
                let mut connection = connection.clone();
                async move {
                    let mut command = redis::cmd("INCR");
                    let _: i64 = command.arg("counter").query_async(&mut connection).await.unwrap();
                }
            });
            let speed = speed.await;
            println!("{round}: {callers} callers, redis-rs multiplexed: {speed}");
        }
        let port = server.address().port();
        println!("{round}: redis-benchmark -c 50: {:.0}/s", benchmark(port, &["-c", "50"]));
        let pipelined = benchmark(port, &["-c", "50", "-P", "16"]);
        println!("{round}: redis-benchmark -c 50 -P 16: {pipelined:.0}/s");
    }
}
