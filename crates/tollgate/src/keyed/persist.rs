//! The states of all keys, to a file and back.

use super::{
    KeyedLimiter,
    core::{Core, OVERRIDDEN},
};
use crate::{
    Algorithm, Initial, Quota, Seed, SnapshotError, Tick,
    algorithm::{AnyRule, word_time},
    clock::tick::duration_nanos,
    snapshot::{self, Head, Reader, Writer},
    table::{BoxedState, Hint, KeyRef},
};
use std::{hash::Hash, path::Path, time::Duration};

// The kinds of records in a file.

/// Wall time in nanoseconds until which the key is blocked.
const BLOCKED: u16 = 0;
/// A hint, and a word: that of a budget, or ninths of a nanosecond ahead of the file's time.
const WORD: u16 = 1;
/// Algorithm, count, period in nanoseconds, burst and initial permits of a quota, then the state: a word as above, two
/// counts and the wall time of their window in nanoseconds, or wall time in nanoseconds and cost of each event.
const RULE: u16 = 2;

/// When a file is written or read, and by which clock.
struct Moment<'a> {
    core: &'a Core,
    now: Tick,
    /// Wall time of the file, in nanoseconds since the Unix epoch.
    wall_ns: u64,
}

impl Moment<'_> {
    fn wall(&self, tick: Tick) -> u64 {
        duration_nanos(self.core.epoch).saturating_add(tick.as_nanos())
    }

    fn tick(&self, wall_ns: u64) -> Tick {
        Tick::from_nanos(wall_ns.saturating_sub(duration_nanos(self.core.epoch)))
    }

    /// Returns the word that was `ahead` of the file's time; `None` if it stands for nothing any more.
    /// That of a budget does not depend on time.
    ///
    /// The time since then counts as elapsed. If the wall clock went back, none has, by GCRA; windows follow
    /// the wall clock.
    fn word(&self, is_time: bool, ahead: u64) -> Option<u64> {
        if word_time::is_budget(ahead) {
            return Some(ahead);
        }
        let wall_now = self.wall(self.now);
        let now = i128::from(word_time::from_tick(self.now));
        let elapsed = i128::from(wall_now) - i128::from(self.wall_ns);
        let elapsed = elapsed.max(if is_time { 0 } else { i128::MIN });
        // Two ninths are forgiven: with the clock's origin the places have shifted, and a word that was
        // rounded up to one must not be rounded up again, or a whole permit would be missing.
        let slack = if is_time { 2 } else { 0 };
        let owed = ahead & word_time::OWED;
        let time =
            now + i128::from(ahead - owed) - elapsed * i128::from(word_time::PER_NANO) - slack;
        let time = u64::try_from(time).ok().filter(|time| *time < word_time::OWED)?;
        (i128::from(time) > now).then_some(time | owed)
    }

    /// The inverse of [`word`](Self::word).
    fn ahead(&self, word: u64) -> Option<u64> {
        if word_time::is_budget(word) {
            return Some(word);
        }
        let time = word & (word_time::OWED - 1);
        let ahead = time.checked_sub(word_time::from_tick(self.now)).filter(|ahead| *ahead > 0)?;
        Some(ahead | word & word_time::OWED)
    }
}

impl Core {
    pub(crate) fn save(&self, path: &Path) -> Result<u64, SnapshotError> {
        let now = self.clock.now();
        let mut moment = Moment { core: self, now, wall_ns: 0 };
        moment.wall_ns = moment.wall(now);
        let seed_check = snapshot::seed_check(self.seed.words());
        let (scheme, wall_ns) = (self.seed.scheme().to_owned(), moment.wall_ns);
        let head = Head { scheme, seed_check, wall_ns };
        let mut writer = Writer::create(path, &head)?;
        let (mut words, mut failed) = (Vec::new(), Ok(()));
        self.tables.words.visit(|fingerprint, hint, word| {
            let Some(saved) = moment.ahead(word).filter(|_| failed.is_ok()) else { return };
            failed = writer.record(fingerprint, WORD, &[hint.bits(), saved]);
        });
        self.tables.boxed.visit(|fingerprint, rule, state| {
            words.clear();
            if failed.is_ok() && moment.write(rule, state, &mut words) {
                failed = writer.record(fingerprint, RULE, &words);
            }
        });
        failed?;
        let mut blocked = Vec::new();
        self.overrides.each(|fingerprint, note| {
            if note.blocked_until > now {
                blocked.push((fingerprint, note.blocked_until));
            }
        });
        for (fingerprint, until) in blocked {
            writer.record(fingerprint, BLOCKED, &[moment.wall(until)])?;
        }
        writer.finish()
    }

    pub(crate) fn restore(&self, path: &Path) -> Result<u64, SnapshotError> {
        let mut reader = Reader::open(path)?;
        reader.expect(self.seed.scheme(), self.seed.words())?;
        let now = self.clock.now();
        let moment = Moment { core: self, now, wall_ns: reader.head().wall_ns };
        // States are replaced: what is booked for those who wait is taken out of them before, and
        // booked anew.
        let mut claims = (self.waiting() > 0).then(|| self.claims.lock_all());
        claims.iter_mut().for_each(|claims| claims.unbook(self, None));
        let restored = self.restore_records(&mut reader, &moment);
        if let Some(claims) = claims {
            claims.release(self);
        }
        restored
    }

    fn restore_records(
        &self,
        reader: &mut Reader,
        moment: &Moment<'_>,
    ) -> Result<u64, SnapshotError> {
        let (mut words, mut restored) = (Vec::new(), 0);
        while let Some(record) = reader.next_record(&mut words)? {
            let fingerprint = record.fingerprint;
            restored += u64::from(match (record.kind, &*words) {
                (BLOCKED, words) => self.restore_block(fingerprint, words, moment),
                (WORD, [hint, saved]) => {
                    let hint = Hint::from_bits(*hint);
                    let word = moment.word(hint.is_time(), *saved);
                    let words = &self.tables.words;
                    word.is_some_and(|word| words.put_back(fingerprint, (hint, word), moment.now))
                }
                (RULE, words) => moment.read(words).is_some_and(|(rule, state)| {
                    let (now, since) = (moment.now, Tick::MAX);
                    self.tables.boxed.put_back(&KeyRef { fingerprint, now, rule, since }, &state)
                }),
                _ => false,
            });
        }
        Ok(restored)
    }

    fn restore_block(&self, fingerprint: u64, words: &[u64], moment: &Moment<'_>) -> bool {
        let [wall_ns] = words else { return false };
        let until = moment.tick(*wall_ns);
        self.mode.set(OVERRIDDEN, true);
        let noted = self.overrides.change(fingerprint, moment.now, |note| {
            note.blocked_until = note.blocked_until.max(until);
        });
        noted.is_ok() && moment.now < until
    }
}

/// States that are larger than a word, or kept at rest.
impl Moment<'_> {
    /// Adds the words of a state; returns false if it stands for nothing.
    fn write(&self, rule: &AnyRule, state: &BoxedState, words: &mut Vec<u64>) -> bool {
        let Some((algorithm, quota)) = rule.quota() else { return false };
        let Some(number) = Algorithm::ALL.iter().position(|known| *known == algorithm) else {
            return false;
        };
        let (burst, initial) = (quota.capacity(), quota.initial_permits());
        words.extend([number as u64, quota.count(), quota.period_ns(), burst, initial]);
        let is_live = match (rule, state) {
            (AnyRule::Word(_) | AnyRule::Kept(_), BoxedState::Word(word)) => {
                words.push(self.ahead(*word).unwrap_or(0));
                true
            }
            (AnyRule::Counter(counter), BoxedState::Counter(windows)) => {
                let (start, counts) = counter.opened(windows, self.now);
                words.extend([self.wall(start), counts.0, counts.1]);
                counts != (0, 0)
            }
            (AnyRule::Log(log), BoxedState::Log(entries)) => {
                let most = (snapshot::WORDS_MAX - 6) / 2;
                let (live, owed) = log.live(entries, self.now, most);
                let is_live = !live.is_empty();
                words.extend(live.into_iter().flat_map(|(tick, cost)| [self.wall(tick), cost]));
                words.extend((owed > 0).then_some(owed));
                is_live
            }
            _ => return false,
        };
        is_live || rule.is_kept()
    }

    /// Returns a state with its rule; `None` if it stands for nothing any more.
    fn read(&self, words: &[u64]) -> Option<(AnyRule, BoxedState)> {
        let ([number, count, period_ns, burst, initial], state) = words.split_first_chunk()?;
        let algorithm = *Algorithm::ALL.get(usize::try_from(*number).ok()?)?;
        let quota = Quota::per(*count, Duration::from_nanos(*period_ns)).burst(*burst);
        let quota = quota.initial(Initial::Permits(*initial));
        let rule = AnyRule::new(algorithm, &quota, self.core.epoch).ok()?;
        let (now, is_kept) = (self.now, rule.is_kept());
        let state = match (&rule, state) {
            (AnyRule::Word(inner) | AnyRule::Kept(inner), [saved]) => {
                let word = self.word(inner.as_gcra().is_some(), *saved);
                // A kept key at rest differs from a fresh one.
                BoxedState::Word(word.or_else(|| is_kept.then_some(0))?)
            }
            (AnyRule::Counter(counter), [start, previous, current]) => {
                let windows = counter.reopened(self.tick(*start), (*previous, *current), now);
                BoxedState::Counter(windows.or_else(|| is_kept.then(Default::default))?)
            }
            (AnyRule::Log(log), words) => {
                let (pairs, owed) = words.as_chunks::<2>();
                let entries = pairs.iter().map(|[wall, cost]| (self.tick(*wall), *cost));
                let rebuilt = log.rebuilt((entries, owed.first().copied().unwrap_or(0)), now);
                BoxedState::Log(rebuilt.or_else(|| is_kept.then(Default::default))?)
            }
            _ => return None,
        };
        Some((rule, state))
    }
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Writes the states of all keys to a file, for [`restore`](Self::restore). Returns how many.
    ///
    /// Deciding goes on meanwhile: no lock is held for longer than it takes to copy a few dozen
    /// slots. Decisions made meanwhile may be in the file or not. Blocks are written too; lists
    /// and overrides are not, and open reservations become final. Bookings of waiting callers
    /// count as spent.
    ///
    /// The file replaces an older one only when it is whole and on the disk: after a crash either
    /// is read, and never a part. It holds fingerprints and no keys, and only the owner may read it.
    /// The limiter needs a [`Seed`] that outlives the process.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: the old one is untouched.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Quota, Seed};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let folder = std::env::temp_dir().join(format!("tollgate-doc-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder)?;
    /// let start = || -> Result<_, Box<dyn std::error::Error>> {
    ///     let seed = Seed::load_or_create(folder.join("seed"))?;
    ///     Ok(KeyedLimiter::<str>::builder(Quota::per_hour(5)).seed(seed).build()?)
    /// };
    /// let before = start()?;
    /// let _ = before.try_acquire_n("alice", 3);
    /// before.save(folder.join("state"))?;
    ///
    /// let after = start()?; // another process, later
    /// assert_eq!(after.restore(folder.join("state"))?, 1);
    /// assert_eq!(after.available("alice"), 2);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> Result<u64, SnapshotError> {
        self.core.save(path.as_ref())
    }

    /// Takes over the states of a file that [`save`](Self::save) wrote. Returns how many.
    ///
    /// The time since then counts as elapsed, by the wall clock; if that went back, none. Keys that
    /// have refilled meanwhile are left out. If the quota is another one now, what each key has used stays as
    /// it is, as for [`set_quota`](Self::set_quota). Whoever waits is booked anew by the states that are
    /// taken over.
    ///
    /// # Errors
    ///
    /// When the file is missing, foreign, damaged, or of another seed. Nothing is taken over then.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<u64, SnapshotError> {
        self.core.restore(path.as_ref())
    }
}

impl Seed {
    /// Reads the seed from a file that only its owner may read, or makes one.
    ///
    /// Processes that start at once agree on one seed. Whoever has the file can find keys that
    /// collide, and look up whether a key is in a snapshot: keep it apart from the snapshots.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or made, is no seed, or others may read it.
    pub fn load_or_create(path: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        snapshot::SeedFile::load_or_create(path.as_ref()).map(Self::new)
    }
}
