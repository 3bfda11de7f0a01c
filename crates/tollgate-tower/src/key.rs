//! The keys that requests are counted by.
//!
//! A [`Key`] says which part of a request identifies its owner: an address, a token, a user, a
//! route, or several of these together. Requests with the same key share a quota.
//!
//! | I want to count by | use |
//! |---|---|
//! | nothing: one limit for all | [`Key::global`] |
//! | address, no proxy in front | [`Key::peer`] |
//! | address behind proxies | [`Key::client`] with a [`ClientAddress`] |
//! | the user that an outer layer has found | [`Key::extension`] |
//! | API key, token, session | [`Key::header`], [`Key::bearer`], [`Key::cookie`] |
//! | route, path, method | [`Key::route`], [`Key::path`], [`Key::method`] |
//! | anything else | [`Key::from_fn`], [`Key::from_source`] |
//! | several together | [`Key::all`] |
//! | the user, else the address | [`Key::any`] |
//!
//! # Requests without a key
//!
//! A request in which the key is not found is refused, unless the key says otherwise:
//! [`or_anonymous`](Key::or_anonymous), [`or_skip`](Key::or_skip). It never shares a bucket with an
//! empty name.
//!
//! # Secrets
//!
//! Headers, tokens and cookies are counted by a hash, so that they reach no store and no log: the
//! first 16 bytes of SHA-256 over a block of 64 bytes and the secret. It is the same in all
//! processes. The block is public, so anyone who sees the hashes can try guesses: that is hopeless
//! for random secrets of 16 bytes and more, and easy for short ones. For short secrets, use
//! [`hash_key`](Key::hash_key), which puts a secret of yours into the block.
//!
//! A claimed identity is not a verified one: a client that makes up a new token for each request
//! gets a new key each time. Count by secrets behind the layer that checks them, or add a limit by
//! address.
//!
//! # Codes
//!
//! [`Key::check`] reports invalid keys ([`KeyError`], `TG-K01` to `TG-K15`) before the first
//! request; [`Key::hint`] reports likely mistakes at run time ([`Hint`], `TG-K51` to `TG-K54`).

mod address;
mod bytes;
mod client;
mod digest;
mod error;
mod forwarded;
mod part;
mod rollout;
mod source;
mod trust;

pub use address::read_address;
pub(crate) use bytes::ShortKey;
pub use bytes::{KeyBytes, KeyText};
pub use client::ClientAddress;
pub use error::{Hint, KeyError};
pub use part::KeyPart;
pub use rollout::rollout_place;
pub use trust::Trust;

use crate::Info;
use bytes::Tag;
use digest::HashKey;
use source::{Source, Wrote};
use std::{fmt, marker::PhantomData, sync::Arc};

/// The key that requests are counted by. Cheap to clone.
///
/// Settings are validated by [`check`](Self::check) only, which layers call when they are built.
///
/// # Examples
///
/// The user if there is one, else the address; per route:
///
/// ```
/// use tollgate_tower::key::{ClientAddress, Key, Trust};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let address = ClientAddress::x_forwarded_for(Trust::networks(["10.0.0.0/8"]));
/// let who = Key::any([Key::extension(|user: &User| &user.id), Key::client(address)]);
/// let key = Key::all([who, Key::route()]).or_anonymous();
/// key.check()?;
/// # Ok::<(), tollgate_tower::key::KeyError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Key {
    source: Source,
    /// The user's setting. If a part of a combination has none, the setting of the whole applies.
    missing: Option<Missing>,
    /// The user's hash key and its length.
    hash_key: Option<(HashKey, usize)>,
}

/// What happens to a request in which the key is not found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// All such requests count as one client: they share a key that no other request can have.
    Anonymous,
    /// It is refused. The default: a request that cannot be counted must not pass unnoticed.
    #[default]
    Refuse,
    /// It is not counted, and passes.
    Skip,
}

/// The result of looking for a key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The key is written.
    Known,
    /// There is none; the key that all such requests share is written.
    Anonymous,
    /// There is none, and the request is to be refused.
    Refuse,
    /// There is none, and the request is not to be counted.
    Skip,
    /// There are several values where one is needed, such as two API keys. The request is to be
    /// refused, whatever the setting for missing keys is: otherwise a client could choose between
    /// limits.
    Ambiguous,
}

impl Found {
    /// Tells whether a key is written.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Known | Self::Anonymous)
    }
}

/// Finds the key of a request.
pub trait KeySource: Send + Sync {
    /// Appends the parts of the key; tells whether there is one.
    ///
    /// If a source appends nothing, the request has no key, whatever the source returns.
    fn write(&self, info: &Info<'_>, key: &mut KeyBytes) -> bool;
}

impl Key {
    /// Counts all requests together.
    pub const fn global() -> Self {
        Self::new(Source::Global)
    }

    /// Counts by the address of the other end of the connection.
    ///
    /// Behind a proxy this is the proxy, for all its clients: see [`client`](Self::client). IPv6 is
    /// counted by its first 64 bits.
    pub fn peer() -> Self {
        Self::client(ClientAddress::peer())
    }

    /// Counts by the address of the client.
    pub fn client(address: ClientAddress) -> Self {
        Self::new(Source::Client(Arc::new(address)))
    }

    /// Counts by the hash of a header such as `x-api-key`.
    ///
    /// An empty value counts as none. Two lines with different values are [`Found::Ambiguous`].
    pub fn header(name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        Self::new(Source::Header(name.parse().map_err(|_| name.into())))
    }

    /// Counts by the hash of the token in `Authorization: Bearer ...`.
    ///
    /// The time this takes grows with the token. For long signed tokens, count by the user in them
    /// ([`extension`](Self::extension)).
    pub const fn bearer() -> Self {
        Self::new(Source::Bearer)
    }

    /// Counts by the hash of a cookie.
    ///
    /// Two cookies of that name with different values are [`Found::Ambiguous`].
    pub fn cookie(name: impl AsRef<str>) -> Self {
        Self::new(Source::Cookie(name.as_ref().into()))
    }

    /// Counts by something that a layer further out has put into the extensions of the request,
    /// such as the user. See [`KeyPart`] for what can be counted.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_tower::key::Key;
    ///
    /// #[derive(Clone)]
    /// struct User { name: String, tenant: u64 }
    ///
    /// let by_name = Key::extension(|user: &User| &user.name);
    /// let by_tenant = Key::extension(|user: &User| &user.tenant);
    /// ```
    pub fn extension<T, P>(part: impl Fn(&T) -> &P + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        P: KeyPart + ?Sized + 'static,
    {
        Self::from_source(Extension { part, types: PhantomData })
    }

    /// Counts by the route that has matched (`/users/{id}`), see [`Info::route`].
    pub const fn route() -> Self {
        Self::new(Source::Route)
    }

    /// Counts by the path, as the client wrote it, without the query.
    ///
    /// Clients can often write one path in many ways, and have a key for each; prefer
    /// [`route`](Self::route).
    pub const fn path() -> Self {
        Self::new(Source::Path)
    }

    /// Counts by the method. All methods that are not in RFC 9110 or RFC 5789 count as one.
    pub const fn method() -> Self {
        Self::new(Source::Method)
    }

    /// Counts by the parts that a closure appends, if it returns true.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_tower::key::Key;
    ///
    /// let by_host = Key::from_fn(|info, key| {
    ///     let host = info.uri().host().unwrap_or_default();
    ///     key.push(host.to_ascii_lowercase().as_bytes());
    ///     !host.is_empty()
    /// });
    /// ```
    pub fn from_fn(
        write: impl Fn(&Info<'_>, &mut KeyBytes) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::from_source(Closure(write))
    }

    /// Counts by the parts that a source of your own finds.
    pub fn from_source(source: impl KeySource + 'static) -> Self {
        Self::new(Source::Custom(Arc::new(source)))
    }

    /// Counts by all of these together: the address *and* the route. If a part is missing, there is
    /// no key, unless that part says [`or_anonymous`](Self::or_anonymous).
    pub fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::new(Source::All(parts.into_iter().collect()))
    }

    /// Counts by the first of these that is present: the user, *else* the address.
    pub fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::new(Source::Any(parts.into_iter().collect()))
    }

    const fn new(source: Source) -> Self {
        Self { source, missing: None, hash_key: None }
    }

    /// Counts all requests without a key as one client, whose key no other request can have.
    pub const fn or_anonymous(mut self) -> Self {
        self.missing = Some(Missing::Anonymous);
        self
    }

    /// Refuses requests without a key. This is the default.
    pub const fn or_refuse(mut self) -> Self {
        self.missing = Some(Missing::Refuse);
        self
    }

    /// Lets requests without a key pass uncounted.
    pub const fn or_skip(mut self) -> Self {
        self.missing = Some(Missing::Skip);
        self
    }

    /// Hashes secrets under a key of 16 to 64 bytes, the same in all processes that share a store.
    ///
    /// Needed where secrets are short enough to be guessed. Parts that have a hash key of their own
    /// keep it. Changing the hash key changes the keys of all clients.
    pub fn hash_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.hash_key = Some((HashKey::of(key.as_ref()), key.as_ref().len()));
        self
    }

    /// Returns what happens to a request without a key.
    #[must_use]
    pub fn missing(&self) -> Missing {
        self.missing.unwrap_or_default()
    }

    /// Appends the key of a request, or the shared key of requests without one; returns which it
    /// was.
    ///
    /// Nothing is appended unless the request [is counted](Found::is_counted).
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use tollgate_tower::{Info, key::{Found, Key, KeyBytes}};
    ///
    /// let key = Key::header("x-api-key");
    /// let request = Request::builder().header("x-api-key", "s3cret").body(())?;
    /// let mut bytes = KeyBytes::new();
    /// assert_eq!(key.find(&Info::of(&request), &mut bytes), Found::Known);
    /// assert_eq!(key.find(&Info::of(&Request::new(())), &mut bytes), Found::Refuse);
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn find(&self, info: &Info<'_>, key: &mut KeyBytes) -> Found {
        let before = key.mark();
        let hash = self.hash_key.as_ref().map_or(HashKey::PUBLIC, |(hash, _)| hash);
        let wrote = self.source.write(info, key, hash);
        if wrote == Wrote::Known {
            return Found::Known;
        }
        key.back_to(before);
        match (wrote, self.missing()) {
            (Wrote::Ambiguous, _) => Found::Ambiguous,
            (_, Missing::Refuse) => Found::Refuse,
            (_, Missing::Skip) => Found::Skip,
            (_, Missing::Anonymous) => {
                key.tag(Tag::Anonymous);
                Found::Anonymous
            }
        }
    }

    /// Returns the key of a request as [`find`](Self::find) does, if its fast path applies.
    pub(crate) fn find_short(&self, info: &Info<'_>) -> Option<ShortKey> {
        match &self.source {
            Source::Client(client) => client.short(info),
            _ => None,
        }
    }

    /// Tells whether this key can be used.
    ///
    /// # Errors
    ///
    /// Returns the first fault found.
    pub fn check(&self) -> Result<(), KeyError> {
        if let Some((_, length)) = &self.hash_key {
            if !HashKey::LENGTH.contains(length) {
                return Err(KeyError::HashKeyLength { length: *length });
            }
            if !self.source.hashes() {
                return Err(KeyError::HashKeyUnused);
            }
        }
        self.source.check()
    }

    /// Tells whether all requests have the same key.
    pub(crate) const fn is_global(&self) -> bool {
        matches!(self.source, Source::Global)
    }

    /// Returns a likely mistake in this key, as a request shows it. Cheap enough to call now and
    /// then, but not for each request.
    #[must_use]
    pub fn hint(&self, info: &Info<'_>) -> Option<Hint> {
        match &self.source {
            Source::Client(client) => client.hint(info),
            Source::All(keys) | Source::Any(keys) => keys.iter().find_map(|key| key.hint(info)),
            _ => None,
        }
    }
}

impl KeySource for Key {
    fn write(&self, info: &Info<'_>, key: &mut KeyBytes) -> bool {
        self.find(info, key).is_counted()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The hash key is a secret.
        write!(f, "Key({:?}, {:?})", self.source, self.missing())
    }
}

/// A source that runs a closure.
struct Closure<F>(F);

impl<F: Fn(&Info<'_>, &mut KeyBytes) -> bool + Send + Sync> KeySource for Closure<F> {
    fn write(&self, info: &Info<'_>, key: &mut KeyBytes) -> bool {
        (self.0)(info, key)
    }
}

/// A part of something in the extensions of a request.
struct Extension<T, P: ?Sized, F> {
    part: F,
    types: PhantomData<fn(&T) -> &P>,
}

impl<T, P, F> KeySource for Extension<T, P, F>
where
    T: Send + Sync + 'static,
    P: KeyPart + ?Sized,
    F: Fn(&T) -> &P + Send + Sync,
{
    fn write(&self, info: &Info<'_>, key: &mut KeyBytes) -> bool {
        info.extensions().get().is_some_and(|value| (self.part)(value).write(key))
    }
}
