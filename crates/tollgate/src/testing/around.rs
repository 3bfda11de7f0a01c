//! Stores around others, that do something to their calls.

use crate::{
    Clock, Decision,
    store::{Demand, Entered, PermitId, Permits, ReservationId, Reserved, Store, StoreError},
};
use std::{future::Future, time::Duration};

/// A store around another one, for tests: it fails, counts or delays calls. Whoever implements this is a
/// [`Store`].
///
/// # Examples
///
/// A store that is down:
///
/// ```
/// use tollgate::{Quota, store::{Demand, MemoryStore, Policy, Store, StoreError}};
/// use tollgate::testing::{Around, Call, StoreFuture, block_on};
///
/// struct Down(MemoryStore);
///
/// impl Around for Down {
///     type Inner = MemoryStore;
///
///     fn inner(&self) -> &MemoryStore {
///         &self.0
///     }
///
///     async fn run<T: Send>(&self, call: Call, _work: impl StoreFuture<T>) -> Result<T, StoreError> {
///         Err(StoreError::unavailable(format!("{call:?} is not answered")))
///     }
/// }
///
/// let api = Policy::new("api", Quota::per_second(5))?;
/// let store = Down(MemoryStore::new());
/// let error = block_on(store.acquire(&mut [Demand::new(&api, b"alice", 1)])).unwrap_err();
/// assert!(error.to_string().contains("Acquire is not answered"), "{error}");
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
pub trait Around: Send + Sync {
    /// The store inside.
    type Inner: Store;

    /// Returns the store inside.
    fn inner(&self) -> &Self::Inner;

    /// Runs a call; by default as it is. `work` is the same call of the store inside, which is not
    /// made unless it is polled.
    fn run<T: Send>(
        &self,
        _call: Call,
        work: impl StoreFuture<T>,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        work
    }

    /// Answers [`Call::Acquire`] and [`Call::Peek`] in place of the store inside; by default it does
    /// not.
    fn instead(
        &self,
        _call: Call,
        _demands: &mut [Demand<'_>],
    ) -> Option<Result<Decision, StoreError>> {
        None
    }

    /// Returns what callers are told instead of what was decided; by default the same.
    fn decided(&self, _call: Call, decision: Decision) -> Decision {
        decision
    }
}

/// A call of the store inside, as [`Around::run`] gets it: any future with such a result.
pub trait StoreFuture<T>: Future<Output = Result<T, StoreError>> + Send {}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> StoreFuture<T> for F {}

/// A call of a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the calls are those of Store")]
pub enum Call {
    Acquire,
    Peek,
    Force {
        /// What is booked.
        cost: u64,
    },
    Refund,
    Reset,
    Reserve,
    Settle,
    Lease,
    UpTo,
    Enter,
    Renew,
    Leave,
}

impl<A: Around> Store for A {
    fn clock(&self) -> &Clock {
        self.inner().clock()
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        if let Some(answer) = self.instead(Call::Acquire, demands) {
            return answer;
        }
        let decision = self.run(Call::Acquire, self.inner().acquire(demands)).await?;
        Ok(self.decided(Call::Acquire, decision))
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        if let Some(answer) = self.instead(Call::Peek, demands) {
            return answer;
        }
        let decision = self.run(Call::Peek, self.inner().peek(demands)).await?;
        Ok(self.decided(Call::Peek, decision))
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        let call = Call::Force { cost: demand.cost() };
        let decision = self.run(call, self.inner().force(demand)).await?;
        Ok(self.decided(call, decision))
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        self.run(Call::Refund, self.inner().refund(demand)).await
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.run(Call::Reset, self.inner().reset(demand)).await
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let reserved = self.run(Call::Reserve, self.inner().reserve(demands, life)).await?;
        Ok(Reserved { decision: self.decided(Call::Reserve, reserved.decision), ..reserved })
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        self.run(Call::Settle, self.inner().settle(id, actual)).await
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        let reserved = self.run(Call::Lease, self.inner().lease(demand, life)).await?;
        Ok(Reserved { decision: self.decided(Call::Lease, reserved.decision), ..reserved })
    }

    async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        let decision = self.run(Call::UpTo, self.inner().up_to(demand)).await?;
        Ok(self.decided(Call::UpTo, decision))
    }

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        self.run(Call::Enter, self.inner().enter(permits, life)).await
    }

    async fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> Result<bool, StoreError> {
        self.run(Call::Renew, self.inner().renew(permits, id, life)).await
    }

    async fn leave(&self, permits: &Permits<'_>, id: PermitId) -> Result<bool, StoreError> {
        self.run(Call::Leave, self.inner().leave(permits, id)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ManualClock, Quota,
        store::{MemoryStore, Policy},
        testing::{Subject, block_on, conformance},
    };
    use std::{
        collections::HashSet,
        mem::{Discriminant, discriminant},
        sync::Mutex,
    };

    /// Notes which calls there are.
    struct Noted<'a>(MemoryStore, &'a Mutex<HashSet<Discriminant<Call>>>);

    impl Around for Noted<'_> {
        type Inner = MemoryStore;

        fn inner(&self) -> &MemoryStore {
            &self.0
        }

        async fn run<T: Send>(
            &self,
            call: Call,
            work: impl StoreFuture<T>,
        ) -> Result<T, StoreError> {
            self.1.lock().unwrap().insert(discriminant(&call));
            work.await
        }
    }

    struct Case<'a>(Noted<'a>, ManualClock);

    impl<'a> Subject for Case<'a> {
        type Store = Noted<'a>;

        fn store(&self) -> &Noted<'a> {
            &self.0
        }

        async fn advance(&self, by: Duration) {
            self.1.advance(by);
        }
    }

    #[test]
    fn what_is_around_a_store_and_does_nothing_is_a_store() {
        let calls = Mutex::default();
        let report = block_on(conformance::run(async || {
            let (clock, hand) = Clock::manual();
            Case(Noted(MemoryStore::builder().clock(clock).build().unwrap(), &calls), hand)
        }));
        assert!(report.is_passed(), "{report}");
        // The suite asks for everything else.
        let store = Noted(MemoryStore::new(), &calls);
        let api = Policy::new("api", Quota::once(3)).unwrap();
        let decision = block_on(store.up_to(&mut Demand::new(&api, b"alice", 5))).unwrap();
        assert_eq!(decision.cost(), 3);
        assert_eq!(calls.lock().unwrap().len(), 12, "every call was made");
    }
}
