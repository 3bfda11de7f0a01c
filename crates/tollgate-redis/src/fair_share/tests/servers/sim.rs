//! A fleet in virtual time on a real server.

use crate::{
    Command, Link, Route, Script,
    fair_share::{
        Member, Mode, Rate, Resource,
        holder::Holder,
        report::{Answer, Registration, Report, SOURCE, Verb},
        tests::model::Table,
    },
};
use std::time::Duration;
use tollgate::Tick;
use tollgate_rig::{Flavor, Redis};

/// The server's clock at the fleet's zero, unless a test moves it.
const EPOCH_SECS: u64 = 1_763_000_000;

/// Returns the shipped script, with the time as its last two arguments.
fn script() -> Script {
    let line = "local clock = redis.call('TIME')";
    assert_eq!(SOURCE.matches(line).count(), 1);
    Script::new(SOURCE.replace(line, "local clock = {ARGV[15], ARGV[16]}"))
}

pub(super) struct Sim {
    _redis: Redis,
    pub(super) link: Link,
    pub(super) table: Table,
    pub(super) now: Tick,
    /// The time of the server's clock when the fleet's clock shows zero.
    pub(super) epoch_secs: u64,
    resource: Resource,
    clients: Vec<Client>,
}

struct Client {
    registration: Registration,
    id: String,
    holder: Holder,
    wants: Rate,
    is_alive: bool,
}

/// How the delivery of a report ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Well,
    /// Carried out, but the reply is lost.
    ReplyLost,
    /// Never arrives.
    Away,
}

pub(super) fn resource() -> Resource {
    Resource::new("partner", Rate::per_second(120))
}

impl Sim {
    pub(super) async fn new(resource: Resource) -> Self {
        let redis = Redis::start(Flavor::Redis);
        // A long deadline, because the test is not about deadlines.
        let url = format!("{}?deadline=60s&connect_timeout=60s", redis.url());
        let link = Link::open(url.parse().unwrap()).unwrap();
        let (table, now) = (Table::default(), Tick::from_secs(1));
        Self {
            _redis: redis,
            link,
            table,
            now,
            epoch_secs: EPOCH_SECS,
            resource,
            clients: Vec::new(),
        }
    }

    /// Starts again without processes, for another round on the same server.
    pub(super) async fn begin(&mut self, resource: Resource) {
        self.clients.clear();
        self.resource = resource;
        self.flush().await;
    }

    /// Loses the table.
    pub(super) async fn flush(&mut self) {
        self.link.call(Route::Any, Command::new("FLUSHALL", 0)).await.unwrap();
        self.table = Table::default();
    }

    pub(super) fn join(&mut self, member: Member, wants: u64) -> usize {
        let id = format!("p{}", self.clients.len());
        self.join_as(&id, member, wants)
    }

    pub(super) fn join_as(&mut self, id: &str, member: Member, wants: u64) -> usize {
        let registration =
            Registration::new(script(), self.resource.clone(), member.id(id)).unwrap();
        let Resource { capacity, safe_capacity, lease, .. } = self.resource;
        let holder = Holder::new(capacity, safe_capacity, lease);
        let wants = Rate::per_second(wants);
        self.clients.push(Client {
            registration,
            id: id.to_owned(),
            holder,
            wants,
            is_alive: true,
        });
        self.clients.len() - 1
    }

    pub(super) fn want(&mut self, who: usize, wants: Rate) {
        self.clients[who].wants = wants;
    }

    /// Kills a process without a report.
    pub(super) fn kill(&mut self, who: usize) {
        self.clients[who].is_alive = false;
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(by);
    }

    /// Reports, and reports again if the share has shrunk, as the task does.
    pub(super) async fn refresh(&mut self, who: usize) {
        if self.report(who, Path::Well).await == Some(true) {
            self.report(who, Path::Well).await;
        }
    }

    /// Each live process reports once, in order. Checks the sum after each report.
    pub(super) async fn round(&mut self) {
        for who in 0..self.clients.len() {
            if self.clients[who].is_alive {
                self.refresh(who).await;
                assert!(self.total() <= self.resource.capacity, "{} in all", self.total());
            }
        }
    }

    /// Each live process tries to report and fails.
    pub(super) async fn round_away(&mut self) {
        for who in 0..self.clients.len() {
            if self.clients[who].is_alive {
                self.report(who, Path::Away).await;
            }
        }
    }

    /// Reports. Returns whether the share has shrunk, if there was an answer.
    pub(super) async fn report(&mut self, who: usize, path: Path) -> Option<bool> {
        let report = self.prepare(who);
        if path == Path::Away {
            self.clients[who].holder.failed(self.now);
            return None;
        }
        let answer = self.deliver(who, &report).await;
        let holder = &mut self.clients[who].holder;
        if path == Path::ReplyLost {
            holder.failed(self.now);
            return None;
        }
        Some(holder.answered(self.now, &report, answer))
    }

    /// Makes a report as of now, to be delivered later.
    pub(super) fn prepare(&mut self, who: usize) -> Report {
        let client = &mut self.clients[who];
        client.holder.report(self.now, client.wants)
    }

    /// Delivers a report to the server and to its model, and checks that they agree.
    pub(super) async fn deliver(&mut self, who: usize, report: &Report) -> Answer {
        let client = &self.clients[who];
        let call = client.registration.call(Verb::Report, report, 2);
        let answer = run(&self.link, &client.registration, call, self.server_micros()).await;
        let micros = self.server_micros();
        let expected = self.table.report(micros, (&client.id, who), &client.registration, report);
        assert_eq!(answer, expected, "{} with {report:?} at {}", client.id, self.now);
        assert!(self.table.granted(micros) <= self.resource.capacity);
        answer
    }

    pub(super) async fn leave(&mut self, who: usize) {
        self.clients[who].is_alive = false;
        let report = self.prepare(who);
        let client = &self.clients[who];
        let call = client.registration.call(Verb::Leave, &report, 2);
        run(&self.link, &client.registration, call, self.server_micros()).await;
        let micros = self.server_micros();
        self.table.leave(micros, (&self.clients[who].id, who));
    }

    pub(super) fn share(&self, who: usize) -> Rate {
        self.clients[who].holder.share(self.now).0
    }

    pub(super) fn mode(&self, who: usize) -> Mode {
        self.clients[who].holder.share(self.now).1
    }

    pub(super) fn error(&self, who: usize) -> Option<&'static str> {
        self.clients[who].holder.refusal()
    }

    /// Returns the shares of all processes, in whole permits per second.
    pub(super) fn shares(&self) -> Vec<u64> {
        (0..self.clients.len()).map(|who| self.share(who).as_micros() / 1_000_000).collect()
    }

    fn server_micros(&self) -> u64 {
        self.epoch_secs * 1_000_000 + self.now.as_nanos() / 1_000
    }

    /// Returns the sum of the shares in force of all live processes.
    pub(super) fn total(&self) -> Rate {
        let alive = (0..self.clients.len()).filter(|who| self.clients[*who].is_alive);
        alive.map(|who| self.share(who)).sum()
    }
}

async fn run(link: &Link, registration: &Registration, mut call: Command, micros: u64) -> Answer {
    call.push_number(micros / 1_000_000);
    call.push_number(micros % 1_000_000);
    Answer::read(&link.run(Route::Any, registration.script(), call).await.unwrap()).unwrap()
}
