//! The server, the connections to it, and a single measurement.

use super::{Extent, ask::Target, load};
use crate::machine::process_cpu_ns;
use redis::AsyncConnectionConfig;
use std::{
    future::Future,
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};
use tollgate_redis::{Link, RedisStore, Settings};
use tollgate_rig::{Flavor, Redis};

/// Longer than any pause of a busy machine: here a late answer should count, not be dropped.
const PATIENCE: Duration = Duration::from_secs(20);

/// The result of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) decisions: f64,
    pub(super) seconds: f64,
    /// Time of the server's main thread on a processor.
    pub(super) server_us: f64,
    /// Time of this process on a processor.
    pub(super) client_us: f64,
    /// Calls that were sent to the server.
    pub(super) calls: f64,
    /// Decisions that admitted the caller.
    pub(super) allowed: f64,
}

impl Sample {
    pub(super) fn rate(&self) -> f64 {
        self.decisions / self.seconds
    }

    pub(super) fn server_us_each(&self) -> f64 {
        self.server_us / self.decisions
    }

    pub(super) fn client_us_each(&self) -> f64 {
        self.client_us / self.decisions
    }

    pub(super) fn calls_each(&self) -> f64 {
        self.calls / self.decisions
    }

    /// Returns the share of the time that the server was on a processor.
    pub(super) fn busy(&self) -> f64 {
        self.server_us / 1e6 / self.seconds
    }
}

/// The running server, the connections and the settings.
pub(super) struct Bench {
    pub(super) extent: Extent,
    pub(super) target: Target,
    pub(super) redis: Redis,
    runtime: Runtime,
}

impl Bench {
    /// Starts a server and connects to it.
    pub(super) fn start(extent: Extent) -> Result<Self, String> {
        let redis = Redis::start(Flavor::Redis);
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|it| it.to_string())?;
        let url = redis.url();
        let target = runtime.block_on(async {
            let link = open(&url).await?;
            let store = RedisStore::builder(link.clone()).join_above(u32::MAX).build();
            let client = redis::Client::open(url.as_str()).map_err(|it| it.to_string())?;
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let peer = client.get_multiplexed_async_connection_with_config(&config).await;
            Ok::<_, String>(Target {
                link,
                store: store.map_err(|it| it.to_string())?,
                peer: peer.map_err(|it| it.to_string())?,
            })
        })?;
        Ok(Self { extent, target, redis, runtime })
    }

    /// Opens one more connection to the server.
    pub(super) fn open(&self) -> Result<Link, String> {
        self.runtime.block_on(open(&self.redis.url()))
    }

    /// Returns the name and version that the server reports.
    pub(super) fn version(&self) -> String {
        let info = self.redis.info("server");
        format!("redis-server {}", info.get("redis_version").map_or("unknown", String::as_str))
    }

    /// Runs a future to its end, unmeasured.
    pub(super) fn block_on<R>(&self, future: impl Future<Output = R>) -> R {
        self.runtime.block_on(future)
    }

    /// Makes `callers` call again and again. The calls of `link` are counted.
    pub(super) fn measure<A, F>(
        &self,
        link: &Link,
        callers: usize,
        ask: A,
    ) -> Result<Sample, String>
    where
        A: Fn(u64) -> F + Clone + Send + 'static,
        F: Future<Output = Result<bool, String>> + Send + 'static,
    {
        let calls = || link.nodes().iter().map(|node| node.calls).sum::<u64>() as f64;
        let (before, called) = (self.server_us(), calls());
        let (start, cpu) = (Instant::now(), process_cpu_ns());
        let tally = self.block_on(load::closed_loop(callers, self.extent.time, ask))?;
        let (seconds, client_ns) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
        Ok(Sample {
            decisions: tally.decisions as f64,
            seconds,
            server_us: self.server_us() - before,
            client_us: client_ns as f64 / 1e3,
            calls: calls() - called,
            allowed: tally.allowed as f64,
        })
    }

    /// Returns the time that the server's main thread spent on a processor so far.
    pub(super) fn server_us(&self) -> f64 {
        let info = self.redis.info("cpu");
        let seconds = |field: &str| info.get(field).and_then(|text| text.parse::<f64>().ok());
        let both = |user: &str, system: &str| Some(seconds(user)? + seconds(system)?);
        let main = both("used_cpu_user_main_thread", "used_cpu_sys_main_thread");
        main.unwrap_or_else(|| self.redis.used_cpu().as_secs_f64()) * 1e6
    }
}

async fn open(url: &str) -> Result<Link, String> {
    let settings: Settings = url.parse().map_err(|it| format!("{it}"))?;
    let link = Link::open(settings.deadline(PATIENCE).stall_timeout(PATIENCE))
        .map_err(|it| it.to_string())?;
    link.ready(PATIENCE).await.map_err(|it| it.to_string())?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_divided_by_its_decisions() {
        let sample = Sample {
            decisions: 1000.0,
            seconds: 0.5,
            server_us: 5_000.0,
            client_us: 20_000.0,
            calls: 10.0,
            allowed: 900.0,
        };
        assert_eq!((sample.rate(), sample.server_us_each()), (2000.0, 5.0));
        assert_eq!((sample.client_us_each(), sample.calls_each()), (20.0, 0.01));
        assert!((sample.busy() - 0.01).abs() < 1e-9);
    }
}
