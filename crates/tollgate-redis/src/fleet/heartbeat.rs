//! The heartbeat task.

use super::{FleetSize, JoinError, escaped, jittered, random_name, recent_max::RecentMax, runtime};
use crate::{Command, Link, LinkError, Route, Script, slot_of};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};
use tollgate::{Clock, Tick};

/// The most processes of one fleet.
const FLEET_MAX: u64 = 10_000;

/// How often a process sends a heartbeat, and how long it counts after one.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::HeartbeatSettings;
///
/// let settings = HeartbeatSettings::new().interval(Duration::from_millis(500)).expected(12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "settings do nothing until a fleet is joined"]
pub struct HeartbeatSettings {
    interval: Duration,
    life: Duration,
    pub(super) expected: u32,
}

impl HeartbeatSettings {
    /// Returns the defaults: a heartbeat each second, a life of 5 s, and a fleet of one until the
    /// first answer.
    pub const fn new() -> Self {
        Self { interval: Duration::from_secs(1), life: Duration::from_secs(5), expected: 1 }
    }

    /// Sets the time between two heartbeats, give or take a tenth; by default 1 s.
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how long a process counts after a heartbeat, by default 5 s: four heartbeats may be
    /// lost.
    pub const fn life(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// Sets the count until the first answer, by default 1. Too low a number over-admits at the
    /// start.
    pub const fn expected(mut self, processes: u32) -> Self {
        self.expected = processes;
        self
    }

    fn check(&self) -> Result<(), JoinError> {
        let Self { interval, life, expected } = *self;
        let wrong = |text: String| Err(JoinError::new(text));
        if interval < Duration::from_millis(10) || interval > Duration::from_secs(3_600) {
            return wrong(format!("interval {interval:?} is out of range; use 10ms to 1 hour"));
        }
        if life < 2 * interval || life > 100 * interval {
            let rule = "is not between 2 and 100 intervals; use a life of about 5 intervals";
            return wrong(format!("life {life:?} {rule}"));
        }
        if expected == 0 || u64::from(expected) > FLEET_MAX {
            return wrong(format!(
                "{expected} expected processes is out of range; use 1 to {FLEET_MAX}"
            ));
        }
        Ok(())
    }
}

impl Default for HeartbeatSettings {
    fn default() -> Self {
        Self::new()
    }
}

/// The membership of this process in a fleet. Dropping it leaves, in the background.
#[derive(Debug)]
#[must_use = "dropping it leaves the fleet"]
pub struct Heartbeat {
    stop: Arc<Notify>,
    state: watch::Receiver<State>,
    task: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    answers: u64,
    error: Option<String>,
}

impl Heartbeat {
    pub(super) fn start(
        link: Link,
        name: &str,
        settings: HeartbeatSettings,
        fleet: FleetSize,
    ) -> Result<Self, JoinError> {
        settings.check()?;
        let key = format!("tollgate:{{fleet}}:{}", escaped(name)?).into_bytes();
        let runtime = runtime()?;
        let stop = Arc::new(Notify::new());
        let (told, state) = watch::channel(State::default());
        let set = FleetSet { script: Script::new(SOURCE), key, id: random_name(), settings };
        let keeper = Keeper::new(settings.life);
        let task = runtime.spawn(beat(Beat { link, set, keeper, fleet, told }, stop.clone()));
        Ok(Self { stop, state, task: Some(task) })
    }

    /// Waits for the first count, for at most `patience`. Returns whether there was one.
    pub async fn ready(&self, patience: Duration) -> bool {
        let mut state = self.state.clone();
        let first = state.wait_for(|state| state.answers > 0);
        timeout(patience, first).await.is_ok_and(|seen| seen.is_ok())
    }

    /// Returns why the last heartbeat got no answer; `None` if it got one.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.state.borrow().error.clone()
    }

    /// Leaves the fleet, and waits until the others can see it or the store does not answer.
    pub async fn leave(mut self) {
        self.stop.notify_one();
        if let Some(task) = self.task.take() {
            // The task ends by itself; if the runtime ends first, there is nothing to wait for.
            let _ = task.await;
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

const SOURCE: &str = include_str!("../lua/heartbeat.lua");

struct FleetSet {
    script: Script,
    key: Vec<u8>,
    id: String,
    settings: HeartbeatSettings,
}

impl FleetSet {
    fn call(&self, verb: &str) -> Command {
        let mut call = self.script.call(1, 4);
        call.push(&self.key);
        call.push(self.id.as_bytes());
        // OVERFLOW: a life is at most 100 hours.
        call.push_number(self.settings.life.as_micros() as u64);
        call.push(verb.as_bytes());
        call.push_number(FLEET_MAX);
        call
    }

    /// Sends a heartbeat or leaves, and returns the number of processes.
    async fn tell(&self, link: &Link, verb: &str) -> Result<u32, String> {
        let route = Route::Slot(slot_of(&self.key));
        let answer = link.run(route, &self.script, self.call(verb));
        let reply = timeout(self.settings.life, answer).await;
        let reply = reply.map_err(|_| "no reply within the life of a heartbeat".to_owned())?;
        let reply = reply.map_err(|error: LinkError| error.to_string())?;
        match reply.int() {
            Some(-1) => Err(format!("the fleet has {FLEET_MAX} processes, which is the maximum")),
            Some(count) => u32::try_from(count).map_err(|error| error.to_string()),
            None => Err(format!("expected a count, but the server replied {reply:?}")),
        }
    }
}

/// Keeps the recent maximum of the counts.
#[derive(Debug)]
struct Keeper {
    recent_max: RecentMax,
    was_away: bool,
}

impl Keeper {
    fn new(life: Duration) -> Self {
        Self { recent_max: RecentMax::new(life), was_away: false }
    }

    /// Handles an answer, and returns the count from now on; without an answer, the count stays.
    fn take(&mut self, now: Tick, answer: Option<u32>) -> Option<u32> {
        let Some(count) = answer else {
            self.was_away = true;
            return None;
        };
        if std::mem::take(&mut self.was_away) {
            self.recent_max.resume(now);
        }
        Some(self.recent_max.add(now, count))
    }
}

struct Beat {
    link: Link,
    set: FleetSet,
    keeper: Keeper,
    fleet: FleetSize,
    told: watch::Sender<State>,
}

async fn beat(mut of: Beat, stop: Arc<Notify>) {
    let clock = Clock::monotonic();
    loop {
        let answer = tokio::select! {
            answer = of.set.tell(&of.link, "beat") => answer,
            () = stop.notified() => break,
        };
        if let Some(count) = of.keeper.take(clock.now(), answer.as_ref().ok().copied()) {
            of.fleet.set(count);
        }
        of.told.send_modify(|state| {
            state.answers += u64::from(answer.is_ok());
            state.error = answer.err();
        });
        if timeout(jittered(of.set.settings.interval), stop.notified()).await.is_ok() {
            break;
        }
    }
    if let Err(error) = of.set.tell(&of.link, "leave").await {
        tracing::debug!(
            error,
            "could not leave the fleet; the other processes count this one until its heartbeat \
             expires"
        );
    }
}

#[cfg(test)]
mod tests;
