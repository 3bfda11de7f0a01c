//! The name of a policy and its allowance: the part of a response that stays the same.

use super::{
    Refusal,
    field::{Allowance, push_policy},
    text::{Out, Padding, push_base64, push_name},
};
use http::HeaderValue;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::{borrow::Cow, fmt, hash::Hasher, sync::Arc};
use tollgate::{Algorithm, Quota};

/// A policy as clients know it: its name, its quota and the unit of its permits.
///
/// Make it once and keep it: clones share it, and it holds the text that can be written beforehand.
///
/// # Examples
///
/// ```
/// use tollgate::Quota;
/// use tollgate_tower::answer::{Label, Unit};
///
/// let uploads = Label::builder("uploads", Quota::per_minute(1_000_000))
///     .unit(Unit::ContentBytes)
///     .build()?;
/// assert_eq!(uploads.item(), r#""uploads";q=1000000;w=60;qu="content-bytes""#);
/// # Ok::<(), tollgate_tower::answer::LabelError>(())
/// ```
#[derive(Clone)]
pub struct Label {
    inner: Arc<Inner>,
}

/// The parameter that reports the remaining permits.
const LEFT: &[u8] = b";r=";

struct Inner {
    name: Box<str>,
    quota: Quota,
    unit: Unit,
    algorithm: Algorithm,
    refusal: Refusal,
    /// The name as a structured string, and [`LEFT`]: how an item of `RateLimit` begins.
    left: Box<[u8]>,
    /// The item of `RateLimit-Policy`.
    item: HeaderValue,
}

/// What one permit stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// One request, the default.
    #[default]
    Requests,
    /// One byte of content.
    ContentBytes,
    /// One running request. There is no window, and no wait is known: a running request has to
    /// finish.
    ConcurrentRequests,
    /// Anything else, by the name that clients see ("tokens").
    Other(Cow<'static, str>),
}

/// Builds a [`Label`].
#[must_use = "nothing is made before `build`"]
#[derive(Clone, Debug)]
pub struct LabelBuilder {
    name: String,
    quota: Quota,
    unit: Unit,
    algorithm: Algorithm,
    refusal: Refusal,
}

/// The error for an invalid label.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelError {
    /// `TG-A01`: the policy, or its unit, has no name.
    Unnamed,
    /// `TG-A02`: a name is longer than [`Label::NAME_MAX`].
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// `TG-A04`: a name has a character other than visible ASCII and spaces.
    NotAscii {
        /// The name.
        name: String,
    },
}

crate::coded::coded!(LabelError, "TG-A01");

impl LabelError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::Unnamed => ("TG-A01", docs!("http.md#tg-a01")),
            Self::TooLong { .. } => ("TG-A02", docs!("http.md#tg-a02")),
            Self::NotAscii { .. } => ("TG-A04", docs!("http.md#tg-a04")),
        }
    }

    /// Writes the error without its code: for layers, which have a code of their own.
    pub(crate) fn say(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed => f.write_str(
                "\"\" is not a name that clients can be shown; name the policy and its unit",
            ),
            Self::TooLong { length } => write!(
                f,
                "a name of {length} bytes is longer than {}; every response carries it, so use a \
                 shorter one",
                Label::NAME_MAX
            ),
            Self::NotAscii { name } => write!(
                f,
                "the name {name:?} is not printable ASCII, which headers require; use ASCII \
                 letters, digits and punctuation"
            ),
        }
    }
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(f)?;
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for LabelError {}

impl Label {
    /// The longest name of a policy or a unit, in bytes: a response with many policies must stay
    /// within the 8 KiB of headers that every client accepts.
    pub const NAME_MAX: usize = 128;

    /// Starts a label for the policy `name`.
    pub fn builder(name: impl Into<String>, quota: Quota) -> LabelBuilder {
        let (unit, algorithm) = (Unit::default(), Algorithm::default());
        let refusal = Refusal::QuotaExceeded;
        LabelBuilder { name: name.into(), quota, unit, algorithm, refusal }
    }

    /// Returns a label for a policy that counts requests.
    ///
    /// # Errors
    ///
    /// As [`LabelBuilder::build`].
    pub fn new(name: impl Into<String>, quota: Quota) -> Result<Self, LabelError> {
        Self::builder(name, quota).build()
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the quota of the policy.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.inner.quota
    }

    /// Returns what one permit stands for.
    #[must_use]
    pub fn unit(&self) -> &Unit {
        &self.inner.unit
    }

    /// Returns the item of `RateLimit-Policy`.
    #[must_use]
    pub fn item(&self) -> &HeaderValue {
        &self.inner.item
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.inner.algorithm
    }

    /// Returns why clients are refused when the policy is used up.
    pub(super) fn refusal(&self) -> Refusal {
        self.inner.refusal
    }

    /// Returns the name as a structured string.
    pub(crate) fn quoted(&self) -> &[u8] {
        self.inner.left.strip_suffix(LEFT).unwrap_or(&self.inner.left)
    }

    /// Returns the start of an item of `RateLimit`, up to the remaining permits.
    pub(super) fn left(&self) -> &[u8] {
        &self.inner.left
    }

    /// Returns the quota with another capacity: that of the limiter, if its quota was changed.
    pub(super) fn allowance(&self, capacity: u64) -> Allowance {
        let quota = &self.inner.quota;
        allowance(quota, &self.inner.unit, capacity)
    }

    /// Appends the item of `RateLimit-Policy`, for a limiter that holds `capacity`.
    pub(super) fn push_item(&self, out: &mut Vec<u8>, capacity: u64) {
        if capacity == self.inner.quota.capacity() {
            out.extend_from_slice(self.inner.item.as_bytes());
        } else {
            push_item(out, &self.inner.name, &self.inner.unit, &self.allowance(capacity));
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, quota, unit, .. } = &*self.inner;
        f.debug_struct("Label")
            .field("name", name)
            .field("quota", quota)
            .field("unit", unit)
            .finish_non_exhaustive()
    }
}

fn allowance(quota: &Quota, unit: &Unit, capacity: u64) -> Allowance {
    // Slots come back when requests finish, not with time.
    let count = if *unit == Unit::ConcurrentRequests { 0 } else { quota.count() };
    // A window without a burst of its own allows its count per period, also under a changed limit.
    let count = if count == quota.capacity() { capacity } else { count };
    Allowance { count, per: quota.period(), capacity }
}

fn push_item(out: &mut Vec<u8>, name: &str, unit: &Unit, allowance: &Allowance) {
    push_policy(out, name, allowance);
    if *unit != Unit::Requests {
        out.extend_from_slice(b";qu=");
        push_name(out, unit.name());
    }
}

impl Unit {
    /// Returns its name in `RateLimit-Policy`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::ContentBytes => "content-bytes",
            Self::ConcurrentRequests => "concurrent-requests",
            Self::Other(name) => name,
        }
    }

    /// Returns its name in sentences.
    pub(super) fn words(&self) -> &str {
        match self {
            Self::ContentBytes => "bytes",
            Self::ConcurrentRequests => "concurrent requests",
            other => other.name(),
        }
    }
}

impl LabelBuilder {
    /// Sets what one permit stands for, by default [`Unit::Requests`].
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets the algorithm of the limiter, by default [`Algorithm::Gcra`]. With GCRA, a response to
    /// the request that takes the last permit can report when the next permit comes back; with the
    /// others, when all are back.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets why clients are refused when the policy is used up, by default
    /// [`Refusal::QuotaExceeded`]. If all clients share the limit, the client that comes last is
    /// not at fault.
    pub fn refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = refusal;
        self
    }

    /// Makes the label.
    ///
    /// # Errors
    ///
    /// If the name of the policy or of its unit is empty, longer than [`Label::NAME_MAX`], or not of
    /// visible ASCII and spaces.
    pub fn build(self) -> Result<Label, LabelError> {
        let Self { name, quota, unit, algorithm, refusal } = self;
        for name in [&*name, unit.name()] {
            match name.len() {
                0 => return Err(LabelError::Unnamed),
                1..=Label::NAME_MAX => {}
                length => return Err(LabelError::TooLong { length }),
            }
            // Headers and bodies would have to spell any other character differently.
            if !name.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
                return Err(LabelError::NotAscii { name: name.to_owned() });
            }
        }
        let (mut left, mut item) = (Vec::new(), Vec::new());
        push_name(&mut left, &name);
        left.extend_from_slice(LEFT);
        push_item(&mut item, &name, &unit, &allowance(&quota, &unit, quota.capacity()));
        let (name, left) = (name.into_boxed_str(), left.into_boxed_slice());
        let item = super::header::value(&item);
        let inner = Inner { name, quota, unit, algorithm, refusal, left, item };
        Ok(Label { inner: Arc::new(inner) })
    }
}

/// Identifies the key that a policy's figures belong to: a hash of the key. Two clients, or one
/// client under two keys, can distinguish their figures by it, and learn nothing else.
///
/// It is the `pk` of `RateLimit` and `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition([u8; 12]);

impl Partition {
    /// Returns the partition of a key: 12 bytes of its SipHash under a secret. It cannot be
    /// reversed without the secret.
    #[must_use]
    pub fn hashed(secret: &[u8; 16], key: &[u8]) -> Self {
        let mut hasher = SipHasher24::new_with_key(secret);
        hasher.write(key);
        let hash = hasher.finish128().as_bytes();
        Self(std::array::from_fn(|at| hash[at]))
    }

    /// Appends the parameter.
    pub(super) fn push(self, out: &mut impl Out) {
        out.put(b";pk=:");
        push_base64(out, &self.0, Padding::Padded);
        out.put(b":");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn items_name_what_a_client_needs() {
        let slots = Quota::once(8);
        for (quota, unit, expected) in [
            (Quota::per_minute(100), Unit::Requests, "\"p\";q=100;w=60"),
            (Quota::per_second(10).burst(20), Unit::Requests, "\"p\";q=20;w=2"),
            (Quota::per(5, Duration::from_millis(100)), Unit::Requests, "\"p\";q=5"),
            (Quota::per_day(9), Unit::ContentBytes, "\"p\";q=9;w=86400;qu=\"content-bytes\""),
            (slots, Unit::ConcurrentRequests, "\"p\";q=8;qu=\"concurrent-requests\""),
            (
                Quota::per_second(8),
                Unit::ConcurrentRequests,
                "\"p\";q=8;qu=\"concurrent-requests\"",
            ),
            (
                Quota::per_second(1),
                Unit::Other("to\"kens".into()),
                "\"p\";q=1;w=1;qu=\"to\\\"kens\"",
            ),
        ] {
            let label = Label::builder("p", quota).unit(unit).build().unwrap();
            assert_eq!(label.item(), expected);
        }
    }

    #[test]
    fn a_changed_limit_is_told_as_it_is_now() {
        for (quota, capacity, expected) in [
            (Quota::per_minute(100), 100, "\"p\";q=100;w=60"),
            (Quota::per_minute(100), 50, "\"p\";q=50;w=60"),
            (Quota::per_second(10).burst(20), 40, "\"p\";q=40;w=4"),
        ] {
            let mut out = Vec::new();
            Label::new("p", quota).unwrap().push_item(&mut out, capacity);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }

    #[test]
    fn refuses_names_that_no_client_can_be_told() {
        let long = "x".repeat(129);
        for (name, unit, expected) in [
            ("", Unit::Requests, Err(LabelError::Unnamed)),
            ("p", Unit::Other("".into()), Err(LabelError::Unnamed)),
            (&long, Unit::Requests, Err(LabelError::TooLong { length: 129 })),
            ("p", Unit::Other(long.clone().into()), Err(LabelError::TooLong { length: 129 })),
            (&long[1..], Unit::Requests, Ok(())),
            ("\"100 %\\~", Unit::Requests, Ok(())),
            ("é", Unit::Requests, Err(LabelError::NotAscii { name: "é".into() })),
            ("a\n", Unit::Requests, Err(LabelError::NotAscii { name: "a\n".into() })),
            ("p", Unit::Other("ü".into()), Err(LabelError::NotAscii { name: "ü".into() })),
        ] {
            let built = Label::builder(name, Quota::per_second(1)).unit(unit).build();
            assert_eq!(built.map(drop), expected, "{name}");
        }
    }

    #[test]
    fn partitions_depend_on_key_and_secret_and_show_neither() {
        let of = |secret: u8, key: &str| {
            let mut out = Vec::new();
            Partition::hashed(&[secret; 16], key.as_bytes()).push(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(of(1, "alice"), of(1, "alice"));
        assert_ne!(of(1, "alice"), of(1, "bob"));
        assert_ne!(of(1, "alice"), of(2, "alice"));
        assert_eq!(of(1, "alice").len(), ";pk=::".len() + 16);
    }
}
