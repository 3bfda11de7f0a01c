//! The address of the client, with or without proxies in between.

use super::{
    Hint, KeyBytes, KeyError, ShortKey,
    address::Prefixes,
    forwarded::List,
    trust::{Networks, Rule, Trust},
};
use crate::Info;
use http::HeaderName;
use std::net::IpAddr;

/// How the address of a client is found, and how much of it is counted.
///
/// The default is the safe choice: the other end of the connection, without reading any header.
/// Behind proxies, name the *one* header that they write, and the proxies to believe ([`Trust`]).
/// An entry that the client itself has put into the header is never used.
///
/// | in front of this service | use |
/// |---|---|
/// | nothing | [`peer`](Self::peer) |
/// | 2 proxies of yours, always | [`x_forwarded_for`](Self::x_forwarded_for)`(`[`Trust::hops`]`(2))` |
/// | proxies at known addresses | [`x_forwarded_for`](Self::x_forwarded_for)`(`[`Trust::networks`]`(["10.0.0.0/8"]))` |
/// | proxies that write RFC 7239 | [`forwarded`](Self::forwarded) |
/// | a provider with a header of its own | [`header`](Self::header)`("cf-connecting-ip", `[`Trust::networks`]`(..))` |
///
/// IPv6 clients are counted by their network of 64 bits, because each has at least one of those.
/// IPv4 in IPv6 form (`::ffff:192.0.2.1`) and behind NAT64 (`64:ff9b::/96`) is IPv4.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate_tower::{Info, Peer, key::{ClientAddress, Trust}};
///
/// let client = ClientAddress::x_forwarded_for(Trust::hops(1));
/// let request = Request::builder()
///     .header("x-forwarded-for", "1.1.1.1, 203.0.113.9") // the client made the first one up
///     .extension(Peer(([10, 0, 0, 1], 4711).into()))
///     .body(())?;
/// assert_eq!(client.address(&Info::of(&request)), Some([203, 0, 113, 9].into()));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientAddress {
    place: Place,
    prefixes: Prefixes,
    require_client: bool,
}

/// Headers that indicate a proxy.
const SIGNS: [&str; 4] = ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip"];
/// Headers of one address that many proxies write.
const VALUES: [&str; 4] = ["x-real-ip", "cf-connecting-ip", "true-client-ip", "fly-client-ip"];

/// The place of the address.
#[derive(Clone, Debug)]
enum Place {
    Peer,
    List(List, Trust),
    Value(Result<HeaderName, String>, Trust),
}

impl ClientAddress {
    /// The shortest and the longest prefix of IPv4 that may be counted.
    const V4_BITS: (u8, u8) = (8, 32);
    /// The same for IPv6: a provider has 32 bits.
    const V6_BITS: (u8, u8) = (32, 128);

    /// Takes the address of the other end of the connection.
    pub const fn peer() -> Self {
        Self::new(Place::Peer)
    }

    /// Reads `X-Forwarded-For` from the right, as far as its entries can be believed.
    pub const fn x_forwarded_for(trust: Trust) -> Self {
        Self::new(Place::List(List::XForwardedFor, trust))
    }

    /// Reads `Forwarded` (RFC 7239) from the right, as far as its entries can be believed.
    pub const fn forwarded(trust: Trust) -> Self {
        Self::new(Place::List(List::Forwarded, trust))
    }

    /// Reads a header that a proxy sets to one address: `X-Real-IP`, `CF-Connecting-IP`,
    /// `True-Client-IP`, `Fly-Client-IP`.
    ///
    /// Make sure that the proxy replaces the value that the client sends. Two lines with different
    /// values are not believed.
    pub fn header(name: impl AsRef<str>, trust: Trust) -> Self {
        let name = name.as_ref();
        Self::new(Place::Value(name.parse().map_err(|_| name.to_owned()), trust))
    }

    const fn new(place: Place) -> Self {
        Self { place, prefixes: Prefixes::DEFAULT, require_client: false }
    }

    /// Counts this many bits of IPv6 addresses: 32 to 128, by default 64, the least that one client
    /// has.
    ///
    /// With more bits, a client has as many keys as it likes. With fewer, neighbours share one:
    /// providers give 56 or 48 bits to one customer. For both, use two limits: a tight one by 64
    /// bits and a loose one by 48.
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefixes.v6 = bits;
        self
    }

    /// Counts this many bits of IPv4 addresses: 8 to 32, by default 32.
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.prefixes.v4 = bits;
        self
    }

    /// Counts clients of 6to4 (`2002::/16`) by their IPv4 address.
    pub const fn unwrap_6to4(mut self) -> Self {
        self.prefixes.six_to_four = true;
        self
    }

    /// Counts clients of Teredo (`2001::/32`) by their IPv4 address.
    pub const fn unwrap_teredo(mut self) -> Self {
        self.prefixes.teredo = true;
        self
    }

    /// Never counts the address of a proxy as that of a client.
    ///
    /// Without this, a request for which a proxy names no believable address is counted by the
    /// address of the proxy: its clients then share a key. With this, such a request has no
    /// address.
    pub const fn require_client(mut self) -> Self {
        self.require_client = true;
        self
    }

    /// Returns the full address of the client; `None` if it is unknown.
    ///
    /// IPv4 in IPv6 form is IPv4.
    #[must_use]
    pub fn address(&self, info: &Info<'_>) -> Option<IpAddr> {
        let peer = info.peer().map(|peer| peer.ip().to_canonical());
        match &self.place {
            Place::Peer => peer,
            Place::List(list, trust) => match &trust.0 {
                Rule::Hops(hops) => self.client_or(peer, hop(list.entries(info.headers()), *hops)),
                Rule::Networks(networks) => {
                    let believes = |address| networks.contain(address);
                    let last = walk(peer?, list.entries(info.headers()), believes);
                    (!self.require_client || !believes(last)).then_some(last)
                }
            },
            Place::Value(name, trust) => {
                if let Rule::Networks(networks) = &trust.0
                    && !networks.contain(peer?)
                {
                    return peer;
                }
                self.client_or(peer, one_value(name.as_ref().ok(), info))
            }
        }
    }

    /// Returns the part of an address that is counted: its prefix.
    #[must_use]
    pub fn counted(&self, address: IpAddr) -> IpAddr {
        self.prefixes.counted(address)
    }

    fn client_or(&self, peer: Option<IpAddr>, client: Option<IpAddr>) -> Option<IpAddr> {
        client.or(if self.require_client { None } else { peer })
    }

    /// Tells whether this can be used.
    ///
    /// # Errors
    ///
    /// Returns the first fault found.
    pub fn check(&self) -> Result<(), KeyError> {
        let bits = |family, bits, (shortest, longest)| {
            if (shortest..=longest).contains(&bits) {
                return Ok(());
            }
            Err(KeyError::Prefix { family, bits, shortest, longest })
        };
        bits("IPv4", self.prefixes.v4, Self::V4_BITS)?;
        bits("IPv6", self.prefixes.v6, Self::V6_BITS)?;
        match &self.place {
            Place::Peer => Ok(()),
            Place::List(list, trust) => trust.check(list.text().into()),
            Place::Value(Err(name), _) => Err(KeyError::HeaderName { name: name.clone() }),
            Place::Value(Ok(name), trust) => {
                let header = name.as_str().to_owned();
                if List::is_one(name) {
                    return Err(KeyError::ListAsValue { header });
                }
                match trust.0 {
                    Rule::Hops(hops @ 2..) => Err(KeyError::HopsOfOneValue { header, hops }),
                    _ => trust.check(header.into()),
                }
            }
        }
    }

    /// Returns the key of the counted address, if it has a usual length.
    pub(super) fn short(&self, info: &Info<'_>) -> Option<ShortKey> {
        self.prefixes.short(self.address(info)?)
    }

    /// Appends the address that is counted; returns false if there is none.
    pub(super) fn write(&self, info: &Info<'_>, key: &mut KeyBytes) -> bool {
        self.address(info).map(|address| self.prefixes.write(address, key)).is_some()
    }

    /// Returns a likely mistake, as a request shows it.
    pub(super) fn hint(&self, info: &Info<'_>) -> Option<Hint> {
        let has = |header: &&str| info.headers().contains_key(*header);
        let not_believed = || (!self.is_believed(info)).then_some(Hint::NotBelieved);
        match &self.place {
            _ if self.needs_peer() && info.peer().is_none() => Some(Hint::NoPeer),
            Place::Peer => SIGNS.into_iter().find(has).map(|header| Hint::Proxied { header }),
            Place::List(list, _) if has(&list.text()) => not_believed(),
            Place::List(list, _) => {
                let (read, found) = (list.text(), list.other().text());
                has(&found).then_some(Hint::OtherHeader { read, found })
            }
            Place::Value(Ok(name), _) if has(&name.as_str()) => not_believed(),
            Place::Value(Ok(name), _) => {
                let known = VALUES.into_iter().find(|known| *known == name.as_str());
                let read = known.unwrap_or("the header you have named");
                SIGNS.into_iter().find(has).map(|found| Hint::OtherHeader { read, found })
            }
            Place::Value(Err(_), _) => None,
        }
    }

    /// Tells whether the header that is read names a client, and is believed.
    fn is_believed(&self, info: &Info<'_>) -> bool {
        let is_trusted = |networks: &Networks| {
            info.peer().is_some_and(|peer| networks.contain(peer.ip().to_canonical()))
        };
        match &self.place {
            Place::Peer => true,
            Place::List(list, trust) => {
                let mut entries = list.entries(info.headers());
                match &trust.0 {
                    Rule::Hops(hops) => hop(entries, *hops).is_some(),
                    Rule::Networks(networks) => {
                        is_trusted(networks) && entries.next().flatten().is_some()
                    }
                }
            }
            Place::Value(name, trust) => {
                let is_trusted = match &trust.0 {
                    Rule::Hops(_) => true,
                    Rule::Networks(networks) => is_trusted(networks),
                };
                is_trusted && one_value(name.as_ref().ok(), info).is_some()
            }
        }
    }

    /// Tells whether the address is unknown without that of the connection.
    fn needs_peer(&self) -> bool {
        match &self.place {
            Place::Peer => true,
            Place::List(_, trust) | Place::Value(_, trust) => matches!(trust.0, Rule::Networks(_)),
        }
    }
}

impl Default for ClientAddress {
    /// Takes the address of the other end of the connection.
    fn default() -> Self {
        Self::peer()
    }
}

/// Returns the address in a header with a single value; `None` if its lines differ.
fn one_value(name: Option<&HeaderName>, info: &Info<'_>) -> Option<IpAddr> {
    let mut lines = info.headers().get_all(name?).into_iter();
    let first = lines.next()?;
    let value = lines.all(|line| line == first).then_some(first)?;
    super::read_address(value.as_bytes())
}

/// Returns the entry that the outermost of `hops` proxies has written; `None` if one of them has
/// written an entry that cannot be read.
fn hop(mut entries: impl Iterator<Item = Option<IpAddr>>, hops: u8) -> Option<IpAddr> {
    let before = hops.checked_sub(1)?;
    for _ in 0..before {
        entries.next()??;
    }
    entries.next()?
}

/// Walks from the peer to the left, as long as the writers of the entries are believed.
fn walk(
    peer: IpAddr,
    entries: impl Iterator<Item = Option<IpAddr>>,
    believes: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let mut last = peer;
    for entry in entries {
        // An entry that cannot be read ends the walk, and so does a writer that is not believed.
        let Some(address) = entry.filter(|_| believes(last)) else { break };
        last = address;
    }
    last
}
