//! Interleavings of the table of words alone.
//!
//! If one of two threads only reads, the test spawns the reader: loom discovers that a load comes
//! before a store only if it has seen the store first.

use crate::explore;
use loom::thread;
use tollgate::{
    Tick,
    loom_model::{Entry, Table},
};

const NOW: Tick = Tick::from_secs(1);
/// The time at which all permits booked at `NOW` are idle.
const LATER: Tick = Tick::from_secs(3600);
const A: u64 = 1;
const B: u64 = 2;
const C: u64 = 3;

fn short(word: u64) -> Entry {
    Entry { word, is_long: false }
}

/// A table with one entry of the shorter quota, with this many of its four permits booked.
fn with(key: u64, permits: u64) -> (Table, u64) {
    let (table, word) = (Table::new(), Table::booked(NOW, permits));
    table.put(key, short(word), NOW);
    (table, word)
}

/// A key leaves, and another with the very same word takes its slot, while a thread is about to charge the first.
#[test]
fn a_take_never_charges_the_next_key_of_a_slot() {
    explore(3, || {
        let (mine, word) = with(A, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            theirs.remove(A);
            theirs.put(B, short(word), NOW);
        });
        let _ = mine.take(A, NOW);
        other.join().unwrap();
        assert_eq!(mine.read(B), short(word), "nobody took from it");
    });
}

/// An idle key leaves to make room while a thread is about to charge it.
#[test]
fn a_take_beside_eviction_never_charges_the_next_key() {
    explore(3, || {
        let (mine, _) = with(A, 1);
        let theirs = mine.clone();
        let word = Table::booked(LATER, 2);
        let other = thread::spawn(move || theirs.put(B, short(word), LATER));
        let _ = mine.take(A, LATER);
        other.join().unwrap();
        assert_eq!(mine.read(B), short(word), "nobody took from it");
        let left = mine.read(A).word;
        assert!(left == 0 || left == Table::booked(LATER, 1) || left == Table::booked(NOW, 1));
    });
}

/// The slot goes from B to A to C, and the words of B and C are the same: that of an exhausted key.
/// A never is.
#[test]
fn a_denial_is_never_that_of_another_key() {
    explore(3, || {
        let (mine, word) = with(B, 4);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.take(A, NOW));
        mine.remove(B);
        mine.put(A, short(Table::booked(NOW, 1)), NOW);
        mine.remove(A);
        mine.put(C, short(word), NOW);
        assert_ne!(other.join().unwrap(), Some(false));
        assert_eq!(mine.read(C), short(word));
    });
}

/// An exhausted key is denied, whatever happens to others.
#[test]
fn a_denial_beside_other_keys_is_a_denial() {
    explore(3, || {
        let (mine, word) = with(A, 4);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.take(A, NOW));
        mine.put(B, short(Table::booked(NOW, 1)), NOW);
        mine.grow(NOW);
        assert_ne!(other.join().unwrap(), Some(true));
        assert_eq!(mine.read(A), short(word));
    });
}

/// Word and hint belong to the same moment.
#[test]
fn a_reader_never_mixes_two_quotas() {
    explore(3, || {
        let mine = Table::new();
        let (before, after) = (Entry { word: 1 << 50, is_long: true }, short(1 << 40));
        mine.put(A, before, NOW);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(A));
        mine.put(A, after, NOW);
        let found = other.join().unwrap();
        assert!(found == before || found == after, "{found:?}");
        assert_eq!(mine.read(A), after);
    });
}

/// The key moves to the new bucket: both of its homes exist.
#[test]
fn a_take_beside_growth_is_charged_once() {
    const MOVING: u64 = 1 | 1 << 28;
    explore(3, || {
        let (mine, word) = with(MOVING, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.grow(NOW));
        let taken = mine.take(MOVING, NOW);
        other.join().unwrap();
        let expected = if taken == Some(true) { Table::booked(NOW, 2) } else { word };
        assert_eq!(mine.read(MOVING), short(expected), "{taken:?}");
    });
}

#[test]
fn two_takes_are_charged_twice() {
    explore(3, || {
        let (mine, _) = with(A, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.take(A, NOW));
        let taken = u64::from(mine.take(A, NOW) == Some(true));
        let theirs = u64::from(other.join().unwrap() == Some(true));
        assert_eq!(mine.read(A), short(Table::booked(NOW, 1 + taken + theirs)));
    });
}
