//! What becomes of a state when its policy has another quota.
//!
//! Nobody can walk over all keys of a policy in Redis. A state says which quota it belongs to; the
//! first call that meets it with another one carries it over: it reads the state, works out the new
//! one here, and puts it in place if nobody was faster. How, and as of when, is in a record that
//! [`change_quota`](tollgate::store::Store::change_quota) leaves for the whole fleet. Without one,
//! what is left stays left, as of now.
//!
//! While a change is rolled out, processes of both quotas meet the same states. Who has the old quota
//! carries a state back the way it came, so that both together get no more than the larger quota; and
//! leaves a mark, so that the next one on does not start it anew. Who carries a state over closes it
//! first: else a hot key would change faster than anybody can carry it.

mod change;

use super::{
    RedisStore,
    calls::{State, strange},
    keys::Names,
    rule::{BURST_MAX, Kind, Rule},
    seen::numbers,
};
use crate::{Command, Reply, Route};
use change::{Change, Way};
use tollgate::{
    Inherit,
    store::{Policy, StoreError},
};

/// Fraction bits of used permits, as [`Inherit::used_after`] wants them.
const FRACTION: u32 = 64;
/// How many bytes of changes of one policy are kept: some dozens.
const CHANGES_MAX: u64 = 2048;

/// The last byte of the tag of a state that is closed. No tag ends with it: the last byte of a number has
/// no upper bit, and a length is no negative number.
const CLOSED: u8 = 0xff;

/// A state without its quota.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    /// Booked up to `at` and `n/c` microseconds; written when.
    Booked(u64, u64, u64),
    /// A window by its number or start, and its count.
    Window(u64, u64),
    /// The number of a window, and the counts of the last one and of it.
    Windows(u64, u64, u64),
    /// Times and costs.
    Log(Vec<(u64, u64)>),
}

impl Held {
    fn parse(kind: Kind, value: &Reply) -> Option<(Self, Vec<u8>)> {
        let split = |bytes: &[u8], at: usize| {
            let (state, tag) = bytes.split_at_checked(at)?;
            Some((state.to_vec(), tag.to_vec()))
        };
        Some(match kind {
            Kind::Gcra | Kind::Timed => {
                let (state, tag) = split(value.bytes()?, 24)?;
                let [at, n, written] = numbers(&state)?;
                (Self::Booked(at, n, written), tag)
            }
            Kind::Fixed | Kind::Anchored => {
                let (state, tag) = split(value.bytes()?, 16)?;
                let [number, count] = numbers(&state)?;
                (Self::Window(number, count), tag)
            }
            Kind::Counter => {
                let (state, tag) = split(value.bytes()?, 24)?;
                let [number, previous, current] = numbers(&state)?;
                (Self::Windows(number, previous, current), tag)
            }
            Kind::Log => {
                let (head, entries) = value.parts()?.split_first()?;
                let (base, tag) = split(head.bytes()?, 8)?;
                let [mut before] = numbers(&base)?;
                let mut log = Vec::with_capacity(entries.len());
                for entry in entries {
                    let [time, sum] = numbers(entry.bytes()?)?;
                    log.push((time, sum.checked_sub(before)?));
                    before = sum;
                }
                (Self::Log(log), tag)
            }
        })
    }

    /// Returns how many bytes of a state are before its tag.
    const fn head(kind: Kind) -> u64 {
        match kind {
            Kind::Gcra | Kind::Timed | Kind::Counter => 24,
            Kind::Fixed | Kind::Anchored => 16,
            Kind::Log => 8,
        }
    }

    /// Returns the state as of `now` if the clock went back since it was written: no time has passed.
    /// Those of windows are healed by the scripts.
    fn healed(self, now: u64) -> Self {
        match self {
            Self::Booked(booked, n, written) if written > now => {
                Self::Booked(booked.saturating_sub(written - now), n, now)
            }
            held => held,
        }
    }

    /// Returns the state under `new` that continues this one under `old`, as of `at`; none if it
    /// starts anew.
    fn under(&self, old: &Rule, new: &Rule, how: Inherit, at: u64) -> Option<Self> {
        Some(match self {
            Self::Booked(booked, n, _) => {
                let ahead = match booked.checked_sub(at) {
                    Some(whole) => u128::from(whole) * old.c + u128::from(*n),
                    None => 0,
                };
                // Beyond any debt: not of our making.
                if ahead / old.p >= 1 << 58 {
                    return None;
                }
                let used = parts(ahead, old.p);
                let used = how.used_after(used, old.limit, new.limit)?;
                let ahead = whole(used, new.p).min(BURST_MAX * new.c);
                Self::Booked(at + (ahead / new.c) as u64, (ahead % new.c) as u64, at)
            }
            Self::Window(number, count) => self.window((*number, *count), old, new, (how, at))?,
            Self::Windows(number, previous, current) => {
                windows((*number, *previous, *current), old, new, (how, at))?
            }
            Self::Log(entries) => log(entries, old, new, (how, at))?,
        })
    }

    fn window(
        &self,
        (number, count): (u64, u64),
        old: &Rule,
        new: &Rule,
        (how, at): (Inherit, u64),
    ) -> Option<Self> {
        let is_over = match old.kind {
            Kind::Fixed => number < at / old.length,
            _ => at >= number + old.length,
        };
        let used = if is_over { 0 } else { count };
        let used = permits_after(how, used, old.limit, new.limit)?;
        let number = match (new.kind, old.length == new.length && !is_over) {
            (_, true) => number,
            (Kind::Fixed, false) => at / new.length,
            (_, false) => new.anchored_at(at),
        };
        Some(Self::Window(number, used))
    }

    /// Returns the bytes of the state under its quota, and how long it matters in milliseconds.
    fn encode(&self, rule: &Rule) -> Vec<Vec<u8>> {
        let pack = |numbers: &[u64]| -> Vec<u8> {
            numbers.iter().flat_map(|number| (*number as f64).to_le_bytes()).collect()
        };
        match self {
            Self::Booked(at, n, written) => {
                vec![[pack(&[*at, *n, *written]), rule.tag.clone()].concat()]
            }
            Self::Window(number, count) => {
                vec![[pack(&[*number, *count]), rule.tag.clone()].concat()]
            }
            Self::Windows(number, previous, current) => {
                vec![[pack(&[*number, *previous, *current]), rule.tag.clone()].concat()]
            }
            Self::Log(entries) => {
                let mut sum = 0;
                let head = [pack(&[0]), rule.tag.clone()].concat();
                let entries = entries.iter().map(|(time, cost)| {
                    sum += cost;
                    pack(&[*time, sum])
                });
                std::iter::once(head).chain(entries).collect()
            }
        }
    }

    /// Returns until when the state matters, in microseconds.
    fn ends(&self, rule: &Rule) -> u64 {
        match self {
            Self::Booked(at, ..) => at + 1,
            Self::Window(number, _) if rule.kind == Kind::Fixed => {
                (number + 1).saturating_mul(rule.length)
            }
            Self::Window(start, _) => start + rule.length,
            Self::Windows(number, ..) => (number + 2).saturating_mul(rule.length),
            Self::Log(entries) => entries.last().map_or(0, |(time, _)| time + rule.length),
        }
    }
}

/// Returns `amount / unit` in 2^-64, rounded up.
fn parts(amount: u128, unit: u128) -> u128 {
    // OVERFLOW: units are below 2^53.
    ((amount / unit) << FRACTION) + ((amount % unit) << FRACTION).div_ceil(unit)
}

/// Returns `parts x unit`, rounded up. What [`parts`] has rounded up is not rounded up again, so that
/// whole numbers stay whole.
fn whole(parts: u128, unit: u128) -> u128 {
    let rest = parts & ((1 << FRACTION) - 1);
    (parts >> FRACTION) * unit + (rest * unit).saturating_sub(unit).div_ceil(1 << FRACTION)
}

fn permits_after(how: Inherit, used: u64, old: u64, new: u64) -> Option<u64> {
    let used = how.used_after(u128::from(used) << FRACTION, old, new)?;
    Some(used.div_ceil(1 << FRACTION) as u64)
}

fn windows(
    (number, previous, current): (u64, u64, u64),
    old: &Rule,
    new: &Rule,
    (how, at): (Inherit, u64),
) -> Option<Held> {
    let now = at / old.length;
    let (number, previous, current) = match now.checked_sub(number) {
        None | Some(0) => (number, previous, current),
        Some(1) => (now, current, 0),
        Some(_) => (now, 0, 0),
    };
    let elapsed = at.saturating_sub(number.saturating_mul(old.length));
    let weight = u128::from(old.length.saturating_sub(elapsed));
    let used = (u128::from(previous) * weight / u128::from(old.length)) as u64 + current;
    let after = permits_after(how, used, old.limit, new.limit)?;
    // What the current window must hold for the sum to be that, if it can.
    let kept = (current + after).checked_sub(used).filter(|_| old.length == new.length);
    Some(match kept {
        Some(kept) => Held::Windows(number, previous, kept),
        None => Held::Windows(at / new.length, 0, after),
    })
}

fn log(entries: &[(u64, u64)], old: &Rule, new: &Rule, (how, at): (Inherit, u64)) -> Option<Held> {
    let at = entries.last().map_or(at, |(newest, _)| at.max(*newest));
    let live = entries.iter().copied().filter(|(time, _)| time + old.length > at);
    let used = live.clone().map(|(_, cost)| cost).sum();
    let after = permits_after(how, used, old.limit, new.limit)?;
    let mut dropped = used.saturating_sub(after);
    let mut kept = Vec::new();
    for (time, cost) in live {
        let cut = dropped.min(cost);
        dropped -= cut;
        push(&mut kept, time, cost - cut, new.limit);
    }
    push(&mut kept, at, after.saturating_sub(used), new.limit);
    Some(Held::Log(kept))
}

/// Adds an entry. A log has as many as its limit; what goes beyond is folded into the newest.
fn push(entries: &mut Vec<(u64, u64)>, time: u64, cost: u64, limit: u64) {
    let is_full = entries.len() as u64 >= limit.max(1);
    match entries.last_mut() {
        _ if cost == 0 => {}
        Some(newest) if is_full || newest.0 == time => *newest = (time, newest.1 + cost),
        _ => entries.push((time, cost)),
    }
}

impl RedisStore {
    /// Brings a state under the quota of its policy.
    pub(super) async fn carry_over(&self, state: &State, policy: &str) -> Result<(), StoreError> {
        let script = &self.shared.scripts.fetch;
        let rule = &*state.rule;
        let mut call = self.call(script, 2, 2);
        call.push(&state.name);
        call.push(&Names::mark(&state.name));
        call.push(&rule.tag);
        call.push_number(Held::head(rule.kind));
        let reply = self.send(state.slot, script, call).await?;
        let Some([time, value, mark]) = reply.parts() else { return Err(strange(&reply)) };
        let time: Option<[u64; 1]> = time.bytes().and_then(numbers);
        let (Some([now]), false) = (time, *value == Reply::Nil) else { return Ok(()) };
        let (next, way) = match Held::parse(rule.kind, value) {
            Some((_, tag)) if tag == rule.tag => return Ok(()),
            Some((held, tag)) => {
                let (held, tag) = (held.healed(now), tag.strip_suffix(&[CLOSED]).unwrap_or(&tag));
                if tag == rule.tag {
                    (Some(held), Way::Here)
                } else {
                    let (mut path, way) =
                        Change::path(&self.changes(policy).await?, tag, &rule.tag, now);
                    if mark.int() == Some(1) {
                        path.iter_mut().for_each(|change| *change = change.again(now));
                    }
                    (follow(held, rule.kind, &path, now), way)
                }
            }
            // Not of our making: a fresh state is the only one we know.
            None => (None, Way::On),
        };
        self.swap(state, value, (next, way), now).await
    }

    async fn changes(&self, policy: &str) -> Result<Vec<Change>, StoreError> {
        let (name, slot) = self.shared.names.changes(policy);
        let mut get = Command::new("GET", 1);
        get.push(&name);
        let reply = self.shared.link.call(Route::Slot(slot), get).await?;
        Ok(reply.bytes().map(Change::parse_all).unwrap_or_default())
    }

    /// Puts another state in the place of `old`, if that is still there.
    async fn swap(
        &self,
        state: &State,
        old: &Reply,
        (next, way): (Option<Held>, Way),
        now: u64,
    ) -> Result<(), StoreError> {
        let old = match old {
            Reply::Array(parts) => {
                let ends = [parts.first(), parts.last()].map(|it| it.and_then(Reply::bytes));
                let length = (parts.len() as f64).to_le_bytes();
                [ends[0].unwrap_or_default(), &length, ends[1].unwrap_or_default()].concat()
            }
            other => other.bytes().unwrap_or_default().to_vec(),
        };
        let next = next.filter(|held| held.ends(&state.rule) > now);
        let values = next.as_ref().map(|held| held.encode(&state.rule)).unwrap_or_default();
        let left = next.as_ref().map_or(0, |held| held.ends(&state.rule).saturating_sub(now));
        let grace = if self.shared.is_time_given { super::GRACE_MS } else { 0 };
        let is_log = state.rule.kind == Kind::Log;
        let script = &self.shared.scripts.swap;
        let mut call = self.call(script, 3, 5 + if is_log { values.len() } else { 0 });
        call.push(&state.name);
        call.push(&Names::ledger(&state.name));
        call.push(&Names::mark(&state.name));
        call.push(&old);
        call.push(if is_log { b"" } else { values.first().map_or(b"", Vec::as_slice) });
        call.push_number(left.min(BURST_MAX as u64) / 1000 + 2 + grace);
        call.push(way.name().as_bytes());
        call.push_number(noted_for(&state.rule));
        if is_log {
            for value in &values {
                call.push(value);
            }
        }
        // Whether it was in place or somebody was faster: the next try will see.
        self.send(state.slot, script, call).await.map(drop)
    }

    pub(super) async fn note_change(
        &self,
        old: &Policy,
        new: &Policy,
        how: Inherit,
    ) -> Result<(), StoreError> {
        if old.name() != new.name() || old.algorithm() != new.algorithm() {
            return Err(StoreError::invalid(format!(
                "\"{}\" by {} cannot become \"{}\" by {}: a change of quota keeps name and algorithm",
                old.name(),
                old.algorithm(),
                new.name(),
                new.algorithm()
            )));
        }
        if old.is_ad_hoc() || new.is_ad_hoc() {
            return Err(StoreError::invalid("the quota of an ad-hoc policy comes with each call"));
        }
        let (from, to) = (self.policy_rule(old)?, self.policy_rule(new)?);
        if from.tag == to.tag {
            return Ok(());
        }
        let change = Change::encode(how, &from.tag, &to.tag)?;
        let (name, slot) = self.shared.names.changes(old.name());
        let script = &self.shared.scripts.change;
        let mut call = self.call(script, 1, 3);
        call.push(&name);
        call.push(&change);
        call.push_number(noted_for(&from));
        call.push_number(CHANGES_MAX);
        self.send(slot, script, call).await.map(drop)
    }
}

/// Returns how long a change from a quota is known, in milliseconds: as long as a state under it can
/// live, and a little.
fn noted_for(rule: &Rule) -> u64 {
    rule.ttl.parse::<u64>().unwrap_or(0).saturating_add(60_000)
}

/// Takes a state through changes of its quota.
fn follow(mut held: Held, kind: Kind, path: &[Change], now: u64) -> Option<Held> {
    for change in path {
        let old = Rule::of_tag(kind, &change.from)?;
        let new = Rule::of_tag(kind, &change.to)?;
        let written = if let Held::Booked(.., written) = held { written } else { 0 };
        held = held.under(&old, &new, change.how, change.at.max(written).min(now))?;
    }
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Algorithm;

    fn rule(text: &str, algorithm: Algorithm) -> Rule {
        Rule::new(&text.parse().unwrap(), algorithm, false, 0).unwrap()
    }

    #[test]
    fn what_is_left_is_what_the_table_of_inherit_says() {
        // 60 of 100 a minute are used; then 500 a minute, or 50.
        let at = 1_800_000_000_000_000;
        for (how, to, left) in [
            (Inherit::AsIs, "500/min", 40),
            (Inherit::Proportional, "500/min", 200),
            (Inherit::Additive, "500/min", 440),
            (Inherit::AsIs, "50/min", 40),
            (Inherit::Proportional, "50/min", 20),
        ] {
            for (algorithm, held) in [
                (Algorithm::Gcra, Held::Booked(at + 36_000_000, 0, at)),
                (Algorithm::FixedWindow, Held::Window(at / 60_000_000, 60)),
                (Algorithm::AnchoredWindow, Held::Window(at - 5, 60)),
                (Algorithm::SlidingCounter, Held::Windows(at / 60_000_000, 0, 60)),
                (Algorithm::SlidingLog, Held::Log(vec![(at - 9, 50), (at, 10)])),
            ] {
                let (old, new) = (rule("100/min", algorithm), rule(to, algorithm));
                let used = match held.under(&old, &new, how, at).unwrap() {
                    Held::Booked(booked, n, _) => {
                        (u128::from(booked - at) * new.c + u128::from(n)).div_ceil(new.p) as u64
                    }
                    Held::Window(_, count) => count,
                    Held::Windows(_, _, count) => count,
                    Held::Log(entries) => entries.iter().map(|(_, cost)| cost).sum(),
                };
                assert_eq!(new.limit - used, left, "{algorithm}, {how:?}, {to}");
            }
        }
    }
}
