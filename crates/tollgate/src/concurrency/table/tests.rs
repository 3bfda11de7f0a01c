//! How much memory keys take.

use super::*;
use crate::{concurrency::Permit, sync::Arc};

#[test]
fn a_key_is_small() {
    assert_eq!(size_of::<(u64, PermitQueue)>(), 32);
}

#[test]
fn memory_follows_the_keys_in_use() {
    let bounds = Bounds { max_waiting_total: 0, max_keys: 1 << 20, max_overrides: 0 };
    let rules = WaitRules::new();
    let table = Arc::new(Table::new(1, (bounds, rules), Box::default(), Tally::new(false)));
    let place = |key| Owner::Key(Arc::clone(&table), key);
    let capacity =
        || -> usize { table.shards.iter().map(|shard| lock(&shard.0).queues.capacity()).sum() };
    let keys: Vec<u64> = (0..100_000_u64).map(|key| table.seed.fingerprint(&key)).collect();
    keys.iter().for_each(|&key| assert_eq!(table.try_enter(key, 1), Ok(())));
    assert!(capacity() >= keys.len());
    keys.iter().for_each(|&key| drop(Permit::new(place(key), 1)));
    assert_eq!((table.keys.get(), table.total_in_flight()), (0, 0));
    assert!(capacity() <= SHARDS * 32, "{} slots left", capacity());
}
