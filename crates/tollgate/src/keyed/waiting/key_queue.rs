//! A key's state as its line sees it, and where the line is kept.

use crate::{
    Algorithm, Clock, Decision, Quota, Reason, Tick,
    algorithm::AnyRule,
    keyed::{
        claims::{KeyClaims, KeyLedger, Ledgers, Shard},
        core::{Core, Key},
        rule_cell::RuleCell,
    },
    limits::locks::State,
    sync::{Arc, lock},
    table::KeyRef,
    wait::{
        Wakes,
        alarm::Alarm,
        line::{At, Line, LineRules, Post},
    },
    watch::Watch,
};

/// Lines that a shard keeps for the next key, and how large they may be: so that keys that are
/// waited for again and again cost no allocation.
const SPARES: usize = 4;
const SPARE_PLACES: usize = 64;

/// The line of a key.
#[derive(Debug)]
pub(crate) struct KeyLine {
    line: Box<Line>,
    /// What stands in the set of dues for it.
    pub(super) due: Option<Tick>,
}

/// The state of a key, with the ledger of its open takes.
pub(crate) struct KeyPost<'a> {
    core: &'a Core,
    fingerprint: u64,
    ledgers: &'a mut Ledgers,
    /// A place was taken for one more who waits.
    has_place: bool,
}

impl KeyPost<'_> {
    const fn key(&self) -> Key<'static> {
        Key::plain(self.fingerprint)
    }
}

impl Post for KeyPost<'_> {
    fn rules(&self) -> LineRules {
        self.core.line_rules
    }

    fn has_room(&mut self, _waiting: usize) -> bool {
        self.has_place = self.has_place || self.core.take_place();
        self.has_place
    }

    fn exempt(&self, now: Tick, cost: u64) -> Option<Decision> {
        self.core.exempt(self.key(), now, cost)
    }

    fn rule(&self, now: Tick) -> AnyRule {
        self.core.who(self.key(), now).0.rule
    }

    fn quota(&self, now: Tick) -> Quota {
        self.core.cell_of(self.fingerprint, now).quota()
    }

    fn algorithm(&self) -> Algorithm {
        self.core.algorithm
    }

    fn state(&self, now: Tick) -> State<'_> {
        self.core.state(self.key(), now)
    }

    fn state_by(&self, rule: &AnyRule, now: Tick) -> State<'_> {
        let fingerprint = (self.fingerprint ^ rule.salt()).max(1);
        State::Key(self.core, KeyRef { fingerprint, now, rule: *rule, since: Tick::MAX })
    }

    fn lower_behind(&mut self, mark: u64, units: u64) {
        if let Some(KeyLedger { ledger, .. }) = self.ledgers.get_mut(&self.fingerprint) {
            ledger.lower_behind(mark, units);
        }
    }

    fn watch(&self) -> Option<&Watch> {
        self.core.watch()
    }

    fn changes_at(&self, now: Tick) -> Option<Tick> {
        let (own, _) = self.core.notes.look(self.fingerprint, now);
        let own = own.filter(|own| own.is_override && own.until > now)?;
        (own.until < Tick::MAX).then_some(own.until)
    }

    fn without_room(&self, now: Tick, cost: u64) -> Decision {
        let decision = self.core.refusal_without_room(self.key(), now, cost);
        decision.because(Reason::Saturated)
    }

    fn with_timer<R>(&mut self, work: impl FnOnce(&mut Alarm, &Clock) -> R) -> R {
        work(&mut lock(&self.core.dues).alarm, &self.core.clock)
    }
}

impl KeyClaims<'_> {
    /// Returns how many wait for the key.
    pub(super) fn waiting(&self) -> usize {
        self.line().map_or(0, Line::len)
    }

    /// Returns how much is booked for those who wait, in units.
    pub(crate) fn waiting_units(&self) -> u64 {
        self.line().map_or(0, Line::booked)
    }

    fn line(&self) -> Option<&Line> {
        self.shard.lines.get(&self.fingerprint).map(|known| &*known.line)
    }

    /// Changes the line if there is one, without settling it.
    pub(crate) fn change_line(&mut self, change: impl FnOnce(&mut Line)) {
        if let Some(known) = self.shard.lines.get_mut(&self.fingerprint) {
            change(&mut known.line);
        }
    }

    /// Runs `work` on the line of the key, if there is one.
    pub(crate) fn at_line<R>(
        &mut self,
        core: &Core,
        wakes: &mut Wakes,
        work: impl FnOnce(&mut Line, &mut KeyPost<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> Option<R> {
        let (fingerprint, shard) = (self.fingerprint, &mut *self.shard);
        let known = shard.lines.get_mut(&fingerprint)?;
        let caller = Caller { core, own: None };
        let done = known.work(&caller, (fingerprint, &mut shard.ledgers), wakes, work);
        shard.tidy_line(fingerprint);
        Some(done)
    }

    /// Runs `work` on the line of the key, which is made if there is none: somebody comes.
    pub(super) fn at_own_line<R>(
        &mut self,
        core: &Arc<Core>,
        wakes: &mut Wakes,
        work: impl FnOnce(&mut Line, &mut KeyPost<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> R {
        let (fingerprint, shard) = (self.fingerprint, &mut *self.shard);
        let spares = &mut shard.spares;
        let fresh = || Box::new(Line::new(core.line_rules.order));
        let known = shard
            .lines
            .entry(fingerprint)
            .or_insert_with(|| KeyLine { line: spares.pop().unwrap_or_else(fresh), due: None });
        let caller = Caller { core, own: Some(core) };
        let done = known.work(&caller, (fingerprint, &mut shard.ledgers), wakes, work);
        shard.tidy_line(fingerprint);
        done
    }

    /// Takes what is booked for those who wait out of the key's state, before that changes.
    pub(crate) fn unbook(&mut self, core: &Core) {
        let Shard { lines, ledgers, .. } = &mut *self.shard;
        if let Some(known) = lines.get_mut(&self.fingerprint) {
            known.unbook(core, (self.fingerprint, ledgers));
        }
    }
}

impl Shard {
    /// Removes a line in which nobody is.
    fn tidy_line(&mut self, fingerprint: u64) {
        if self.lines.get(&fingerprint).is_some_and(|known| known.line.is_idle())
            && let Some(KeyLine { line, .. }) = self.lines.remove(&fingerprint)
            && self.spares.len() < SPARES
            && line.places() <= SPARE_PLACES
        {
            self.spares.push(line);
        }
    }

    /// Takes what is booked for those who wait for keys of this quota, or of any, out of their states.
    pub(super) fn unbook(&mut self, core: &Core, quota: Option<&Arc<RuleCell>>) {
        let now = core.clock.now();
        for (fingerprint, known) in &mut self.lines {
            let has = |quota| Arc::ptr_eq(&core.cell_of(*fingerprint, now), quota);
            if !quota.is_none_or(has) {
                continue;
            }
            known.unbook(core, (*fingerprint, &mut self.ledgers));
        }
    }

    /// The states are gone, and what was booked with them.
    pub(crate) fn lose_bookings(&mut self) {
        self.lines.values_mut().for_each(|known| known.line.lose_bookings());
    }

    /// Runs `work` on all lines of the shard.
    pub(super) fn each_line(
        &mut self,
        core: &Core,
        wakes: &mut Wakes,
        work: &mut impl FnMut(&mut Line, &mut KeyPost<'_>, At<'_>) -> Option<Tick>,
    ) {
        let (ledgers, caller) = (&mut self.ledgers, Caller { core, own: None });
        self.lines.retain(|fingerprint, known| {
            let work =
                |line: &mut Line, post: &mut KeyPost<'_>, at: At<'_>| ((), work(line, post, at));
            known.work(&caller, (*fingerprint, ledgers), wakes, work);
            !known.line.is_idle()
        });
    }
}

/// Who works at a line.
pub(super) struct Caller<'a> {
    pub(super) core: &'a Core,
    /// The same, if somebody may come to wait.
    pub(super) own: Option<&'a Arc<Core>>,
}

impl KeyLine {
    /// Takes what is booked out of the state.
    fn unbook(&mut self, core: &Core, (fingerprint, ledgers): (u64, &mut Ledgers)) {
        let (now, mut post) =
            (core.clock.now(), KeyPost { core, fingerprint, ledgers, has_place: false });
        self.line.unbook_all(&mut post, now);
        self.line.forget_claims();
    }

    /// Runs `work`, counts who waits, and sees that somebody is awake when the line is due.
    fn work<R>(
        &mut self,
        caller: &Caller<'_>,
        (fingerprint, ledgers): (u64, &mut Ledgers),
        wakes: &mut Wakes,
        work: impl FnOnce(&mut Line, &mut KeyPost<'_>, At<'_>) -> (R, Option<Tick>),
    ) -> R {
        let (core, before) = (caller.core, self.line.len());
        let mut post = KeyPost { core, fingerprint, ledgers, has_place: false };
        let (done, target) = work(&mut self.line, &mut post, At { now: core.clock.now(), wakes });
        let counted = before + usize::from(post.has_place);
        let (has_place, after) = (post.has_place, self.line.len());
        core.count_waiting(counted as u64, after as u64);
        // Who took a place and did not wait may have kept another from seeing that it is over.
        if self.due != target || (before == 0) != (after == 0) || has_place {
            lock(&core.dues).put(caller, fingerprint, (&mut self.due, target), wakes);
        }
        wakes.push(target.and_then(|target| self.line.thread_to_wake(target)));
        done
    }
}
