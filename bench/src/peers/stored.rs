//! Rows of the store in memory: one demand, and several in one decision.

use super::{DENIED_BURST, PARTLY_USED, tollgate::quota};
use crate::grid::{Ask, Case, Row};
use std::sync::Arc;
use tollgate::store::{Demand, MemoryStore, Policy};

/// What a service limits by, with a key of each.
const LIMITS: [(&str, &[u8]); 3] =
    [("address", b"192.0.2.17"), ("user", b"alice@example.org"), ("global", b"all")];

#[derive(Clone)]
struct Stored {
    store: MemoryStore,
    policies: [Policy; 3],
}

/// Builds a store with its keys in the state of a case.
fn stored(case: Case) -> Option<Stored> {
    let store = MemoryStore::new();
    let policy = |(name, _)| Policy::new(name, quota(case)).expect("the quotas make sense");
    let policies = LIMITS.map(policy);
    let used = match case {
        Case::Partly => PARTLY_USED,
        Case::Denied => DENIED_BURST,
        Case::Full | Case::Half | Case::Hammered => 0,
    };
    for (policy, (_, key)) in policies.iter().zip(LIMITS) {
        let taken = store.acquire_now(&mut [Demand::new(policy, key, used)]);
        assert!(taken.is_ok_and(|decision| decision.is_allowed()), "a fresh key has its burst");
    }
    Some(Stored { store, policies })
}

/// Asks for one permit of each of the first `N` limits.
#[derive(Clone, Copy)]
struct Demands<const N: usize>;

#[allow(clippy::inline_always, reason = "what is measured is a decision, not the way to it")]
impl<const N: usize> Ask<Stored> for Demands<N> {
    #[inline(always)]
    fn ask(self, Stored { store, policies }: &Stored) -> bool {
        let mut demands: [_; N] =
            std::array::from_fn(|index| Demand::new(&policies[index], LIMITS[index].1, 1));
        store.acquire_now(&mut demands).is_ok_and(|decision| decision.is_allowed())
    }
}

/// The rows that show what several limits in one decision cost.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row::handle("tollgate, store in memory", stored, Demands::<1>),
        Row::handle("tollgate, store in memory, 3 demands", stored, Demands::<3>),
    ]
}

/// A store with many policies, of which a decision asks the first ones.
#[derive(Clone)]
struct Wide {
    store: MemoryStore,
    policies: Arc<[Policy]>,
}

fn wide(case: Case) -> Option<Wide> {
    let policy = |number| Policy::new(format!("limit {number}"), quota(case)).ok();
    let policies: Option<Vec<Policy>> = (0..WIDEST).map(policy).collect();
    let (store, policies) = (MemoryStore::new(), policies?);
    for policy in &policies {
        let taken = store.acquire_now(&mut [Demand::new(policy, LIMITS[1].1, PARTLY_USED)]);
        assert!(taken.is_ok_and(|decision| decision.is_allowed()), "a fresh key has its burst");
    }
    Some(Wide { store, policies: policies.into() })
}

/// The most demands of one decision.
const WIDEST: usize = 64;

#[allow(clippy::inline_always, reason = "what is measured is a decision, not the way to it")]
impl<const N: usize> Ask<Wide> for Demands<N> {
    #[inline(always)]
    fn ask(self, Wide { store, policies }: &Wide) -> bool {
        let mut demands: [_; N] =
            std::array::from_fn(|index| Demand::new(&policies[index], LIMITS[1].1, 1));
        store.acquire_now(&mut demands).is_ok_and(|decision| decision.is_allowed())
    }
}

/// The rows that show how the cost grows with the demands of one decision.
pub(crate) fn widths() -> [Row; 6] {
    [
        Row::handle("1 demand", wide, Demands::<1>),
        Row::handle("2 demands", wide, Demands::<2>),
        Row::handle("4 demands", wide, Demands::<4>),
        Row::handle("8 demands", wide, Demands::<8>),
        Row::handle("16 demands", wide, Demands::<16>),
        Row::handle("64 demands", wide, Demands::<WIDEST>),
    ]
}
