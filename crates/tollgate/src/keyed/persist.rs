//! The states of all keys, to a file and back.

use super::{
    KeyedLimiter,
    core::{Core, Key, NOTED},
};
use crate::{
    Algorithm, Quota, Seed, SnapshotError,
    clock::tick::duration_nanos,
    snapshot::{self, Head, Reader, Writer},
    sync::lock,
    table::{
        Spot, Who, Words,
        class::{Class, MadeFrom},
        portable::{self, Moment},
    },
};
use std::{collections::HashMap, hash::Hash, path::Path, time::Duration};

/// The class of records that are blocks and not states.
const BLOCKED: &str = "blocked-until";
/// Marks the algorithm of a class whose quotas come with the calls.
const AD_HOC: &str = "ad-hoc-";

impl Core {
    /// Names how fingerprints are made, and in a bounded table where they are kept.
    fn scheme(&self) -> String {
        match &self.tables.words {
            Words::Growing(_) => self.seed.scheme().to_owned(),
            Words::Bounded(table) => {
                format!("{} in {} buckets", self.seed.scheme(), table.buckets())
            }
        }
    }

    pub(crate) fn save(&self, path: &Path) -> Result<u64, SnapshotError> {
        // Quotas of all keys stay what they are until the last one is written.
        let _changing = lock(&self.changing);
        let (clock, now) = (&self.clock, self.clock.now());
        let wall_ns = duration_nanos(clock.to_wall(now));
        let moment = Moment { clock, now, wall_ns };
        // The class of blocks first, then those in use, by their number in this process.
        let listed = self.tables.base.classes.all();
        let numbers: HashMap<Class, u16> =
            listed.iter().zip(1_u16..).map(|((class, _), number)| (*class, number)).collect();
        let mut classes =
            vec![snapshot::Class { algorithm: BLOCKED.to_owned(), quota: String::new() }];
        classes.extend(listed.iter().map(|(_, known)| snapshot::Class {
            algorithm: match (known.owner, known.is_ad_hoc) {
                (0, _) => known.algorithm.to_string(),
                (owner, false) => format!("{}@{owner:016x}", known.algorithm),
                (owner, true) => format!("{AD_HOC}{}@{owner:016x}", known.algorithm),
            },
            quota: known.quota.to_string(),
        }));
        let seed_check = snapshot::seed_check(self.seed.words());
        let head = Head { scheme: self.scheme(), seed_check, wall_ns, classes };
        let mut writer = Writer::create(path, &head)?;
        let (mut words, mut failed) = (Vec::new(), Ok(()));
        self.tables.visit(|spot, class, state| {
            let Some(number) = numbers.get(&class).filter(|_| failed.is_ok()) else { return };
            words.clear();
            let fingerprint = match spot {
                Spot::Fingerprint(fingerprint) => fingerprint,
                Spot::Slot { tag, bucket } => {
                    words.push(bucket);
                    tag
                }
            };
            let rule = self.tables.base.classes.any_rule(class);
            if portable::write(&rule, state, &moment, &mut words) {
                failed = writer.record(fingerprint, *number, &words);
            }
        });
        failed?;
        let mut blocked = Vec::new();
        self.notes.each(|fingerprint, note| {
            if note.blocked_until > now {
                blocked.push((fingerprint, note.blocked_until));
            }
        });
        for (fingerprint, until) in blocked {
            writer.record(fingerprint, 0, &[duration_nanos(clock.to_wall(until))])?;
        }
        writer.finish()
    }

    pub(crate) fn restore(&self, path: &Path) -> Result<u64, SnapshotError> {
        let mut reader = Reader::open(path)?;
        reader.expect(&self.scheme(), self.seed.words())?;
        let (clock, now) = (&self.clock, self.clock.now());
        let moment = Moment { clock, now, wall_ns: reader.head().wall_ns };
        let classes: Vec<_> =
            reader.head().classes.iter().map(|class| self.restored_class(class)).collect();
        // States are replaced: what is booked for those who wait is taken out of them before, and
        // booked anew.
        let mut claims = (self.waiting() > 0).then(|| self.claims.lock_all());
        claims.iter_mut().for_each(|claims| claims.unbook(self, None));
        let restored = self.restore_records(&mut reader, &classes, &moment);
        if let Some(claims) = claims {
            claims.release(self);
        }
        let known = &self.tables.base.classes;
        classes.iter().flatten().for_each(|class| known.unpin(*class));
        restored
    }

    fn restore_records(
        &self,
        reader: &mut Reader,
        classes: &[Option<Class>],
        moment: &Moment<'_>,
    ) -> Result<u64, SnapshotError> {
        let now = moment.now;
        let (mut words, mut restored) = (Vec::new(), 0);
        while let Some(record) = reader.next_record(&mut words)? {
            let fingerprint = record.fingerprint;
            if record.class == 0 {
                restored += u64::from(self.restore_block(fingerprint, &words, moment));
                continue;
            }
            let Some(Some(class)) = classes.get(usize::from(record.class)).copied() else {
                continue;
            };
            let rule = self.tables.base.classes.any_rule(class);
            let in_bucket = rule.is_word() && matches!(self.tables.words, Words::Bounded(_));
            let (spot, state) = match (in_bucket, &*words) {
                (true, [bucket, state @ ..]) => {
                    (Spot::Slot { tag: fingerprint, bucket: *bucket }, state)
                }
                (_, state) => (Spot::Fingerprint(fingerprint), state),
            };
            if let Some(state) = portable::read(&rule, state, moment) {
                let stamp = self.tables.base.classes.stamp();
                let who = Who { fingerprint, class, now, class_since: now, stamp };
                restored += u64::from(self.tables.put_back(spot, &who, &state));
            }
        }
        Ok(restored)
    }

    /// Returns the class of this process for one of a snapshot, pinned until its states are there;
    /// `None` if it has no use for it.
    fn restored_class(&self, class: &snapshot::Class) -> Option<Class> {
        let (algorithm, owner) = match class.algorithm.split_once('@') {
            Some((algorithm, owner)) => (algorithm, u64::from_str_radix(owner, 16).ok()?),
            None => (class.algorithm.as_str(), 0),
        };
        let (is_ad_hoc, algorithm) = match algorithm.strip_prefix(AD_HOC) {
            Some(algorithm) => (true, algorithm),
            None => (false, algorithm),
        };
        let (algorithm, quota): (Algorithm, Quota) =
            (algorithm.parse().ok()?, class.quota.parse().ok()?);
        let plan = lock(&self.plan);
        if owner == 0 && algorithm != self.algorithm {
            return None;
        }
        let tier = plan.tiers.values().find(|(known, _)| owner == 0 && *known == quota);
        let class = match tier {
            _ if owner == 0 && plan.quota == quota => self.default_class(),
            Some((_, class)) => *class,
            // What a key has left under another quota is carried over when it is next met.
            None => {
                let clock = &self.clock;
                let made_from = MadeFrom { algorithm, quota, clock, owner, is_ad_hoc };
                self.class_for(made_from, false).ok()?
            }
        };
        self.tables.base.classes.pin(class);
        Some(class)
    }

    fn restore_block(&self, fingerprint: u64, words: &[u64], moment: &Moment<'_>) -> bool {
        let [wall_ns] = words else { return false };
        let until = moment.clock.from_wall(Duration::from_nanos(*wall_ns));
        self.set_mode(NOTED, true);
        let noted = self.notes.change(fingerprint, moment.now, |note| {
            note.blocked_until = note.blocked_until.max(until);
        });
        noted.is_some() && self.who(Key::plain(fingerprint), moment.now).0.now < until
    }
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Writes the states of all keys to a file, for [`restore`](Self::restore). Returns how many.
    ///
    /// Deciding goes on meanwhile: no lock is held for longer than it takes to copy a few dozen
    /// slots. What is decided meanwhile may be in the file or not. Blocks are written too; lists
    /// and overrides are not, and open reservations become final. What is booked for those who wait
    /// counts as spent.
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
    /// have refilled meanwhile are left out. States under another quota are carried over when their
    /// key is next asked for, with what is left left; those of another algorithm are left out. Whoever
    /// waits is booked anew by the states that are taken over.
    ///
    /// # Errors
    ///
    /// When the file is missing, foreign, damaged, or of another seed, and of a bounded table when
    /// the number of keys it was made for differs. Nothing is taken over then.
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
