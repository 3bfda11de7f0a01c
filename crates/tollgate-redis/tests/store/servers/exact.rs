//! Exactness under concurrency: 8 real processes, each with 100 calls in flight, on the same keys.
//!
//! Each process runs this program again, with the test [`child`]. All are ready before the first
//! begins. Windows are a year long, so no permit refills.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::task::JoinSet;
use tollgate::{
    Algorithm, Quota,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{Link, Placement, RedisStore, Settings};
use tollgate_rig::{Cluster, Flavor, Redis};

const PROCESSES: usize = 8;
const IN_FLIGHT: usize = 100;
/// The environment variable with a process's part.
const PART: &str = "TOLLGATE_EXACT_PART";

/// The keys of each call, and how much of each it takes. All sets overlap.
const ONE: &[(&[u8], u64)] = &[(b"a", 1)];
const SETS: &[(&[u8], u64)] =
    &[(b"ab", 1), (b"bc", 1), (b"cd", 1), (b"da", 1), (b"ac", 1), (b"bcd", 2), (b"a", 1)];

/// The work of all processes together: so many calls for each algorithm.
#[derive(Clone, Debug)]
struct Part {
    url: String,
    is_one_slot: bool,
    join_above: u32,
    is_sets: bool,
    limit: u64,
    calls: usize,
}

impl Part {
    fn store(&self) -> RedisStore {
        let long = Duration::from_secs(60);
        let settings: Settings = self.url.parse().unwrap();
        let link = Link::open(settings.deadline(long).connect_timeout(long)).unwrap();
        let placement = if self.is_one_slot { Placement::OneSlot } else { Placement::ByKey };
        let prefix = format!("{}{}", self.join_above, self.is_sets);
        let store = RedisStore::builder(link).prefix(prefix).placement(placement);
        store.join_above(self.join_above).build().unwrap()
    }

    fn policy(&self, algorithm: Algorithm) -> Policy {
        let quota = Quota::per_year(self.limit);
        Policy::with_algorithm(algorithm.name(), quota, algorithm).unwrap()
    }

    fn sets(&self) -> &'static [(&'static [u8], u64)] {
        if self.is_sets { SETS } else { ONE }
    }

    fn encode(&self) -> String {
        let Self { url, is_one_slot, join_above, is_sets, limit, calls } = self;
        format!("{url} {is_one_slot} {join_above} {is_sets} {limit} {calls}")
    }

    fn decode(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        Self {
            url: words[0].to_owned(),
            is_one_slot: words[1].parse().unwrap(),
            join_above: words[2].parse().unwrap(),
            is_sets: words[3].parse().unwrap(),
            limit: words[4].parse().unwrap(),
            calls: words[5].parse().unwrap(),
        }
    }
}

/// The admitted and refused calls of each set.
type Counts = Vec<(u64, u64)>;

#[test]
#[ignore = "the other tests start it, as a process of its own"]
fn child() {
    let Ok(part) = env::var(PART) else { return };
    let part = Part::decode(&part);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = part.store();
        store.link().ready(Duration::from_secs(60)).await.unwrap();
        println!("\nready");
        std::io::stdin().read_exact(&mut [0]).unwrap();
        for algorithm in Algorithm::ALL {
            let mut line = format!("counts {algorithm:?}");
            for (admitted, refused) in calls(&store, &part, algorithm).await {
                write!(line, " {admitted} {refused}").unwrap();
            }
            println!("{line}");
        }
    });
}

/// Makes a process's calls.
async fn calls(store: &RedisStore, part: &Part, algorithm: Algorithm) -> Counts {
    let sets = part.sets();
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        let (store, policy) = (store.clone(), part.policy(algorithm));
        let each = part.calls / PROCESSES / IN_FLIGHT;
        tasks.spawn(async move {
            let mut counts = vec![(0, 0); sets.len()];
            for call in 0..each {
                let number = (task + call) % sets.len();
                let (keys, cost) = sets[number];
                let demand = |key| Demand::new(&policy, std::slice::from_ref(key), cost);
                let mut demands: Vec<_> = keys.iter().map(demand).collect();
                let decision = store.acquire(&mut demands).await.unwrap();
                counts[number].0 += u64::from(decision.is_allowed());
                counts[number].1 += u64::from(decision.is_denied());
            }
            counts
        });
    }
    sum(tasks.join_all().await)
}

fn sum(all: Vec<Counts>) -> Counts {
    let add = |sum: Counts, one: Counts| {
        sum.iter().zip(&one).map(|(sum, one)| (sum.0 + one.0, sum.1 + one.1)).collect()
    };
    all.into_iter().reduce(add).unwrap()
}

/// Runs all processes. Returns the counts by algorithm.
fn all_processes(part: &Part) -> BTreeMap<String, Counts> {
    let start = |_| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "servers::exact::child", "--ignored", "--nocapture"])
            .env(PART, part.encode())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
    let outputs = children.iter_mut().map(|it| BufReader::new(it.stdout.take().unwrap()).lines());
    let mut outputs: Vec<_> = outputs.collect();
    for output in &mut outputs {
        assert!(output.any(|line| line.unwrap() == "ready"), "a process is not ready");
    }
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"!").unwrap();
    }
    let mut counts: BTreeMap<String, Vec<Counts>> = BTreeMap::new();
    for line in outputs.into_iter().flatten() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        if words.next() == Some("counts") {
            let algorithm = words.next().unwrap().to_owned();
            let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
            let pairs = numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            counts.entry(algorithm).or_default().push(pairs);
        }
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    counts.into_iter().map(|(name, all)| (name, sum(all))).collect()
}

/// Whether a refusal proves that there were too few permits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusals {
    /// It does: taken permits are never given back.
    Certain,
    /// It may also mean that another call had taken permits for a moment, and gave them back.
    Passing,
}

/// Runs all processes, and compares their counts with the state of the store.
async fn check(part: Part, refusals: Refusals) {
    let (store, told) = (part.store(), all_processes(&part));
    assert_eq!(told.len(), Algorithm::ALL.len());
    for algorithm in Algorithm::ALL {
        let counts = &told[&format!("{algorithm:?}")];
        let policy = part.policy(algorithm);
        let say = format!("{algorithm:?}, {part:?}: {counts:?}");
        let calls: u64 = counts.iter().map(|(admitted, refused)| admitted + refused).sum();
        assert_eq!(calls, part.calls as u64, "{say}");
        let mut left = BTreeMap::new();
        for key in b"abcd" {
            let admitted: u64 = (part.sets().iter().zip(counts))
                .filter(|((keys, _), _)| keys.contains(key))
                .map(|((_, cost), (admitted, _))| cost * admitted)
                .sum();
            let mut look = [Demand::new(&policy, std::slice::from_ref(key), 0)];
            let remaining = store.peek(&mut look).await.unwrap().remaining();
            assert!(admitted <= part.limit, "over: {admitted} of {}, {say}", key.escape_ascii());
            assert_eq!(part.limit - remaining, admitted, "left in {}: {say}", key.escape_ascii());
            left.insert(*key, remaining);
        }
        if !part.is_sets {
            assert_eq!(counts[0].0, part.limit, "{say}");
        }
        for ((keys, cost), (_, refused)) in part.sets().iter().zip(counts) {
            assert!(*refused > 0, "the limit is reached: {say}");
            let lacks = keys.iter().any(|key| left[key] < *cost);
            assert!(lacks || refusals == Refusals::Passing, "refused for nothing: {say}");
        }
    }
}

fn part(url: String, is_sets: bool) -> Part {
    let (limit, calls) = if is_sets { (250, 5_600) } else { (1_000, 20_000) };
    Part { url, is_one_slot: false, join_above: 4, is_sets, limit, calls }
}

#[tokio::test]
async fn one_key_on_one_server() {
    let redis = Redis::start(Flavor::Redis);
    check(part(redis.url(), false), Refusals::Certain).await;
    let alone = Part { join_above: u32::MAX, calls: 8_000, ..part(redis.url(), false) };
    check(alone, Refusals::Certain).await;
}

#[tokio::test]
async fn overlapping_sets_on_one_server() {
    let redis = Redis::start(Flavor::Redis);
    check(part(redis.url(), true), Refusals::Certain).await;
    let alone = Part { join_above: u32::MAX, ..part(redis.url(), true) };
    check(alone, Refusals::Certain).await;
}

#[tokio::test]
async fn one_slot_of_a_cluster() {
    let cluster = Cluster::start(Flavor::Redis);
    for is_sets in [false, true] {
        let part = Part { is_one_slot: true, ..part(cluster.url(), is_sets) };
        check(part, Refusals::Certain).await;
    }
}

#[tokio::test]
async fn many_slots_of_a_cluster() {
    let cluster = Cluster::start(Flavor::Redis);
    check(part(cluster.url(), false), Refusals::Certain).await;
    check(part(cluster.url(), true), Refusals::Passing).await;
}
