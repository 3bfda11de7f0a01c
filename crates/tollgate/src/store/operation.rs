//! The operations of a store: their list, and the macro that forwards them.

/// Passes every asynchronous operation of `Store` to a macro: the method, its twin in `DynStore`, its
/// variant of `Operation`, its arguments and its answer. References get the lifetime, if one is given.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_operations {
    ([$($then:tt)+] $context:tt $($a:lifetime)?) => { $($then)+! { $context
        acquire dyn_acquire Acquire(demands: &$($a)? mut [$crate::store::Demand<'_>])
            -> $crate::Decision;
        peek dyn_peek Peek(demands: &$($a)? mut [$crate::store::Demand<'_>]) -> $crate::Decision;
        force dyn_force Force(demand: &$($a)? $crate::store::Demand<'_>) -> $crate::Decision;
        refund dyn_refund Refund(demand: &$($a)? $crate::store::Demand<'_>) -> u64;
        reset dyn_reset Reset(demand: &$($a)? $crate::store::Demand<'_>) -> ();
        reserve dyn_reserve Reserve(
            demands: &$($a)? mut [$crate::store::Demand<'_>], life: ::std::time::Duration
        ) -> $crate::store::Reserved;
        settle dyn_settle Settle(id: $crate::store::ReservationId, actual: &$($a)? [u64]) -> bool;
        lease dyn_lease Lease(
            demand: &$($a)? mut $crate::store::Demand<'_>, life: ::std::time::Duration
        ) -> $crate::store::Reserved;
        up_to dyn_up_to UpTo(demand: &$($a)? mut $crate::store::Demand<'_>) -> $crate::Decision;
        enter dyn_enter Enter(
            permits: &$($a)? $crate::store::Permits<'_>, life: ::std::time::Duration
        ) -> $crate::store::Entered;
        renew dyn_renew Renew(
            permits: &$($a)? $crate::store::Permits<'_>, id: $crate::store::PermitId,
            life: ::std::time::Duration
        ) -> bool;
        leave dyn_leave Leave(
            permits: &$($a)? $crate::store::Permits<'_>, id: $crate::store::PermitId
        ) -> bool;
    } };
}

macro_rules! operation {
    ([] $($name:ident $twin:ident $operation:ident $arguments:tt -> $answer:ty;)+) => {
        /// An operation of a [`Store`](super::Store).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Operation {$(
            #[doc = concat!("[`Store::", stringify!($name), "`](super::Store::", stringify!($name), ").")]
            $operation,
        )+}

        impl Operation {
            /// All operations.
            pub const ALL: &'static [Self] = &[$(Self::$operation),+];

            /// Returns the name of the method.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$operation => stringify!($name),)+
                }
            }
        }
    };
}
crate::__store_operations! { [operation] [] }

/// Writes the methods of a store around another one: each calls the same method of the inner store.
///
/// A wrapper names only what it changes. Operations that [`Store`](super::Store) gains later are
/// forwarded without a change to the wrapper.
///
/// | inside `impl Store for Wrapper { .. }` | forwards |
/// |---|---|
/// | `forward_store!(self => &self.inner);` | everything |
/// | `forward_store!(self => &self.inner, except acquire refund);` | the rest: the wrapper has its own `acquire` and `refund` |
/// | `forward_store!(self => &self.inner, through run);` | everything by way of `self.run(operation, future)`, which may fail, count or delay the call |
/// | `forward_store!(self => match { Self::One(it) => it, Self::Other(it) => it });` | to the store of the variant |
///
/// `through` comes before `except`. [`clock`](super::Store::clock) is always forwarded. An operation
/// that is excepted and not written is unsupported.
///
/// # Examples
///
/// A store that counts what is taken:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use tollgate::{Decision, store::{Demand, Store, StoreError, forward_store}};
///
/// struct Counted<S>(S, AtomicU64);
///
/// impl<S: Store> Store for Counted<S> {
///     forward_store!(self => &self.0, except acquire);
///
///     async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
///         self.1.fetch_add(1, Relaxed);
///         self.0.acquire(demands).await
///     }
/// }
/// ```
///
/// A store that is down, for tests:
///
/// ```
/// use tollgate::{Quota, store::{Demand, MemoryStore, Operation, Policy, Store, StoreError, forward_store}};
///
/// struct Down(MemoryStore);
///
/// impl Down {
///     /// `call` is the call of the inner store, which starts when it is polled: never.
///     async fn run<T>(
///         &self,
///         operation: Operation,
///         _call: impl Future<Output = Result<T, StoreError>>,
///     ) -> Result<T, StoreError> {
///         Err(StoreError::unavailable(format!("no answer to {}", operation.name())))
///     }
/// }
///
/// impl Store for Down {
///     forward_store!(self => &self.0, through run);
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let api = Policy::new("api", Quota::per_second(5))?;
/// let error = Down(MemoryStore::new()).refund(&Demand::new(&api, b"alice", 1)).await.unwrap_err();
/// assert_eq!(error.to_string(), "no answer to refund");
/// # Ok(())
/// # }
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # assert!(matches!(Box::pin(example()).as_mut().poll(&mut context), std::task::Poll::Ready(Ok(()))));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_store {
    (
        $self:ident => match { $($case:pat => $to:expr),+ $(,)? }
        $(, through $hook:ident)? $(, except $($own:ident)+)?
    ) => {
        fn clock(&$self) -> &$crate::Clock {
            match $self {
                $($case => $crate::store::Store::clock($to),)+
            }
        }
        $crate::__store_operations! {
            [$crate::__forward_store] [$self [$($hook)?] [$($($own)+)?] {$($case => $to),+}]
        }
    };
    ($self:ident => $to:expr $(, $($how:tt)+)?) => {
        $crate::__forward_store! { $self => match { _ => $to } $(, $($how)+)? }
    };
    (
        [$self:ident $hook:tt $own:tt $cases:tt]
        $($name:ident $twin:ident $operation:ident $arguments:tt -> $answer:ty;)+
    ) => {
        $($crate::__forward_store! {
            @$name $own; $self $hook $cases $operation $arguments $answer
        })+
    };
    // A method that the wrapper has itself.
    (@acquire [acquire $($own:ident)*]; $($row:tt)+) => {};
    (@peek [peek $($own:ident)*]; $($row:tt)+) => {};
    (@force [force $($own:ident)*]; $($row:tt)+) => {};
    (@refund [refund $($own:ident)*]; $($row:tt)+) => {};
    (@reset [reset $($own:ident)*]; $($row:tt)+) => {};
    (@reserve [reserve $($own:ident)*]; $($row:tt)+) => {};
    (@settle [settle $($own:ident)*]; $($row:tt)+) => {};
    (@lease [lease $($own:ident)*]; $($row:tt)+) => {};
    (@up_to [up_to $($own:ident)*]; $($row:tt)+) => {};
    (@enter [enter $($own:ident)*]; $($row:tt)+) => {};
    (@renew [renew $($own:ident)*]; $($row:tt)+) => {};
    (@leave [leave $($own:ident)*]; $($row:tt)+) => {};
    (@$name:ident [$other:ident $($own:ident)*]; $($row:tt)+) => {
        $crate::__forward_store! { @$name [$($own)*]; $($row)+ }
    };
    (
        @$name:ident []; $self:ident $hook:tt $cases:tt
        $operation:ident ($($argument:ident: $type:ty),+) $answer:ty
    ) => {
        async fn $name(
            &$self, $($argument: $type),+
        ) -> ::std::result::Result<$answer, $crate::store::StoreError> {
            $crate::__forward_store! { $cases $self [$hook $operation $name $($argument)+] }
        }
    };
    ({$($case:pat => $to:expr),+} $self:ident $call:tt) => {
        match $self {
            $($case => $crate::__forward_store!($to; $self $call),)+
        }
    };
    ($to:expr; $self:ident [[] $operation:ident $name:ident $($argument:ident)+]) => {
        $crate::store::Store::$name($to, $($argument),+).await
    };
    ($to:expr; $self:ident [[$hook:ident] $operation:ident $name:ident $($argument:ident)+]) => {
        $self.$hook(
            $crate::store::Operation::$operation,
            $crate::store::Store::$name($to, $($argument),+),
        )
        .await
    };
}
