//! The calls to the server, by our own client or by redis-rs.

use redis::aio::MultiplexedConnection;
use std::{sync::OnceLock, time::Duration};
use tollgate::{
    Quota,
    store::{Demand, Permits, Policy, Store},
};
use tollgate_redis::{Command, Link, RedisStore, Reply, Route, Script};

/// Longer than a run.
const LIFE: Duration = Duration::from_secs(600);

/// GCRA as it is usually written: numbers as text, a table as the reply, the time to live computed.
/// ARGV: microseconds for one permit, burst, cost.
const NAIVE: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local after = tat + interval * cost
local allow_at = after - interval * burst
if allow_at > now then
  return { 0, 0, allow_at - now, tat - now }
end
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000))
return { 1, math.floor((now - allow_at) / interval), -1, after - now }
";

/// Arguments of the script above: an hour for each permit, and a burst that is never used up.
const NAIVE_ROOMY: [&str; 3] = ["3600000000", "1000000", "1"];

/// The connections to the server. Clones share them.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) link: Link,
    pub(super) store: RedisStore,
    pub(super) peer: MultiplexedConnection,
}

/// The content of one call.
#[derive(Clone)]
pub(super) enum Ask {
    Incr,
    /// A script that does nothing, with one key.
    Empty,
    /// One permit of each policy.
    Take(Vec<Policy>),
    AdHoc(Policy, Quota),
    Peek(Policy),
    /// At most ten permits.
    UpTo(Policy),
    /// Ten permits reserved, then five of them given back.
    Reserve(Policy),
    /// One of a million in flight, then out again.
    Enter,
    /// The textbook's script through our link.
    Naive,
    /// The same through redis-rs.
    NaivePeer,
    /// INCR through redis-rs.
    IncrPeer,
}

impl Ask {
    /// Makes the call, and returns whether the caller may pass.
    pub(super) async fn ask(&self, target: &Target, key: &[u8]) -> Result<bool, String> {
        let (link, store) = (&target.link, &target.store);
        match self {
            Self::Incr => incr(link, key).await,
            Self::Empty => script(link, empty(), key, &[]).await.map(|_| true),
            Self::Take(_) | Self::AdHoc(..) => self.take(store, key, 1).await,
            Self::Peek(policy) => {
                let decision = store.peek(&mut [Demand::new(policy, key, 1)]).await;
                decision.map(|it| it.is_allowed()).map_err(|it| it.to_string())
            }
            Self::UpTo(policy) => {
                let decision = store.up_to(&mut Demand::new(policy, key, 10)).await;
                decision.map(|it| it.is_allowed()).map_err(|it| it.to_string())
            }
            Self::Reserve(policy) => {
                let mut demands = [Demand::new(policy, key, 10)];
                let reserved = store.reserve(&mut demands, LIFE).await;
                let Some(id) = reserved.map_err(|it| it.to_string())?.id else { return Ok(false) };
                store.settle(id, &[5]).await.map_err(|it| it.to_string())
            }
            Self::Enter => {
                let permits = Permits::new("flights", key, 1_000_000);
                let entered = store.enter(&permits, LIFE).await.map_err(|it| it.to_string())?;
                let Some(id) = entered.id else { return Ok(false) };
                store.leave(&permits, id).await.map_err(|it| it.to_string())
            }
            Self::Naive => {
                let key = [b"naive:", key].concat();
                let reply = script(link, naive(), &key, &NAIVE_ROOMY).await?;
                Ok(reply.parts().and_then(|parts| parts.first()?.int()) == Some(1))
            }
            Self::NaivePeer => naive_by_peer(target, key).await,
            Self::IncrPeer => {
                let mut peer = target.peer.clone();
                let count: redis::RedisResult<i64> =
                    redis::cmd("INCR").arg(key).query_async(&mut peer).await;
                count.map(|count| count > 0).map_err(|it| it.to_string())
            }
        }
    }

    /// Takes permits at a cost, if the call takes permits.
    pub(super) async fn take<S: Store>(
        &self,
        store: &S,
        key: &[u8],
        cost: u64,
    ) -> Result<bool, String> {
        let decision = match self {
            Self::Take(policies) => match policies.as_slice() {
                [policy] => store.acquire(&mut [Demand::new(policy, key, cost)]).await,
                policies => {
                    let demands = policies.iter().map(|policy| Demand::new(policy, key, cost));
                    store.acquire(&mut demands.collect::<Vec<_>>()).await
                }
            },
            Self::AdHoc(policy, quota) => {
                let demand = Demand::ad_hoc(policy, key, cost, *quota);
                store.acquire(&mut [demand.map_err(|it| it.to_string())?]).await
            }
            _ => return Ok(true),
        };
        decision.map(|it| it.is_allowed()).map_err(|it| it.to_string())
    }

    /// Returns how many permits exhaust a key, if the call takes permits.
    pub(super) fn limit(&self) -> u64 {
        match self {
            Self::Take(policies) => policies.last().map_or(0, |it| it.quota().capacity()),
            Self::AdHoc(_, quota) => quota.capacity(),
            _ => 0,
        }
    }
}

/// Returns the key of a number: sixteen bytes.
pub(super) fn key_of(number: u64) -> Vec<u8> {
    format!("user:{number:011}").into_bytes()
}

pub(super) async fn incr(link: &Link, key: &[u8]) -> Result<bool, String> {
    let mut command = Command::new("INCR", 1);
    command.push(key);
    let reply = link.call(Route::Any, command).await.map_err(|it| it.to_string())?;
    Ok(reply.int().is_some())
}

async fn script(link: &Link, script: &Script, key: &[u8], more: &[&str]) -> Result<Reply, String> {
    let mut call = script.call(1, more.len());
    call.push(key);
    more.iter().for_each(|argument| call.push(argument.as_bytes()));
    link.run(Route::Any, script, call).await.map_err(|it| it.to_string())
}

async fn naive_by_peer(target: &Target, key: &[u8]) -> Result<bool, String> {
    static SCRIPT: OnceLock<redis::Script> = OnceLock::new();
    let (script, mut peer) =
        (SCRIPT.get_or_init(|| redis::Script::new(NAIVE)), target.peer.clone());
    let mut call = script.key([b"naive:", key].concat());
    NAIVE_ROOMY.iter().for_each(|argument| {
        call.arg(*argument);
    });
    let reply: redis::RedisResult<(i64, i64, i64, i64)> = call.invoke_async(&mut peer).await;
    reply.map(|(allowed, ..)| allowed == 1).map_err(|it| it.to_string())
}

fn empty() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new("return 1"))
}

fn naive() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(NAIVE))
}
