//! Errors in a key, found before the first request, and likely mistakes found at run time.

use std::{borrow::Cow, fmt};

/// The reason why a key cannot be used.
///
/// Each has a [`code`](Self::code) and a place in the [documentation](Self::docs).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// `TG-K01`: the trusted networks cover the whole Internet, so every client may claim any
    /// address.
    TrustsEverybody {
        /// The network, or the union of several networks.
        network: String,
    },
    /// `TG-K02`: no proxy is trusted to write the header.
    NoHops {
        /// The header.
        header: Cow<'static, str>,
    },
    /// `TG-K03`: not the name of a header.
    HeaderName {
        /// The text that was given.
        name: String,
    },
    /// `TG-K04`: a prefix of an address that counts too many addresses as one, or that does not
    /// exist.
    Prefix {
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The number that was given.
        bits: u8,
        /// The shortest prefix allowed.
        shortest: u8,
        /// The longest prefix that exists.
        longest: u8,
    },
    /// `TG-K05`: a combination of nothing.
    Empty {
        /// `all` or `any`.
        combination: &'static str,
    },
    /// `TG-K06`: not a network.
    Network {
        /// The text that was given.
        text: String,
        /// The network that may have been meant.
        meant: Option<String>,
    },
    /// `TG-K07`: an empty list of trusted networks.
    NoNetworks,
    /// `TG-K08`: several hops of a header that has one value.
    HopsOfOneValue {
        /// The header.
        header: String,
        /// The number that was given.
        hops: u8,
    },
    /// `TG-K09`: a list that each proxy appends to, read as a single value.
    ListAsValue {
        /// The header.
        header: String,
    },
    /// `TG-K10`: parts that are never reached, because a part before them is always there.
    Unreachable {
        /// The part that is always there, from 0.
        position: usize,
    },
    /// `TG-K11`: a part has a setting for missing keys, which only the whole may have.
    MissingOfPart {
        /// The part, from 0.
        position: usize,
        /// The setting: `or_refuse` or `or_skip`.
        said: &'static str,
    },
    /// `TG-K12`: a hash key that is too short to be secret, or too long.
    HashKeyLength {
        /// The length that was given.
        length: usize,
    },
    /// `TG-K13`: a hash key where nothing is hashed.
    HashKeyUnused,
    /// `TG-K14`: a combination of too many parts.
    TooMany {
        /// The number of parts that was given.
        parts: usize,
        /// The most parts allowed.
        most: usize,
    },
    /// `TG-K15`: not the name of a cookie.
    CookieName {
        /// The text that was given.
        name: String,
    },
}

impl KeyError {
    /// Returns the code, which never changes: `TG-K01`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.place().0
    }

    /// Returns where the documentation explains it.
    #[must_use]
    pub const fn docs(&self) -> &'static str {
        self.place().1
    }

    const fn place(&self) -> (&'static str, &'static str) {
        match self {
            Self::TrustsEverybody { .. } => ("TG-K01", docs!("http.md#tg-k01")),
            Self::NoHops { .. } => ("TG-K02", docs!("http.md#tg-k02")),
            Self::HeaderName { .. } => ("TG-K03", docs!("http.md#tg-k03")),
            Self::Prefix { .. } => ("TG-K04", docs!("http.md#tg-k04")),
            Self::Empty { .. } => ("TG-K05", docs!("http.md#tg-k05")),
            Self::Network { .. } => ("TG-K06", docs!("http.md#tg-k06")),
            Self::NoNetworks => ("TG-K07", docs!("http.md#tg-k07")),
            Self::HopsOfOneValue { .. } => ("TG-K08", docs!("http.md#tg-k08")),
            Self::ListAsValue { .. } => ("TG-K09", docs!("http.md#tg-k09")),
            Self::Unreachable { .. } => ("TG-K10", docs!("http.md#tg-k10")),
            Self::MissingOfPart { .. } => ("TG-K11", docs!("http.md#tg-k11")),
            Self::HashKeyLength { .. } => ("TG-K12", docs!("http.md#tg-k12")),
            Self::HashKeyUnused => ("TG-K13", docs!("http.md#tg-k13")),
            Self::TooMany { .. } => ("TG-K14", docs!("http.md#tg-k14")),
            Self::CookieName { .. } => ("TG-K15", docs!("http.md#tg-k15")),
        }
    }
}

impl std::error::Error for KeyError {}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(f)?;
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl KeyError {
    fn say(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TrustsEverybody { network } => write!(
                f,
                "the trusted networks include {network}, so every client can choose the address it \
                 is counted by; list the networks of your own proxies"
            ),
            Self::NoHops { header } => write!(
                f,
                "0 trusted hops trust no proxy, but {header} should be read; count your own \
                 proxies, the nearest included, or use ClientAddress::peer()"
            ),
            Self::HeaderName { name } => write!(
                f,
                "{name:?} is not the name of a header; write letters, digits and - as in \"x-api-key\""
            ),
            Self::Prefix { family, bits, shortest, longest } => write!(
                f,
                "a prefix of {bits} bits of {family} is outside {shortest} to {longest}; use one \
                 inside, or leave it out for the default"
            ),
            Self::Empty { combination } => write!(
                f,
                "Key::{combination} has no parts; give it some, or use Key::global() for one limit \
                 over all"
            ),
            Self::Network { text, meant: None } => write!(
                f,
                "{text:?} is neither a network nor an address; write it as \"10.0.0.0/8\" or \
                 \"2001:db8::1\""
            ),
            Self::Network { text, meant: Some(meant) } => write!(
                f,
                "{text:?} has bits set after its prefix; write \"{meant}\" if you mean that network"
            ),
            Self::NoNetworks => f.write_str(
                "the list of trusted networks is empty, so the header is never read; list your \
                 proxies, or use ClientAddress::peer()",
            ),
            Self::HopsOfOneValue { header, hops } => write!(
                f,
                "{hops} trusted hops for {header}, which has one value; use Trust::hops(1), or \
                 Trust::networks"
            ),
            Self::ListAsValue { header } => write!(
                f,
                "{header} is a list whose first entries come from clients; use \
                 ClientAddress::x_forwarded_for or ClientAddress::forwarded, which trust only your \
                 proxies"
            ),
            _ => self.say_of_combinations(f),
        }
    }

    fn say_of_combinations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { position } => write!(
                f,
                "part {position} of Key::any always has a value, so the parts after it are never \
                 used; move it to the end"
            ),
            Self::MissingOfPart { position, said } => write!(
                f,
                "part {position} of a combination calls {said}, which only the whole key can; call \
                 it on Key::all(..) or Key::any(..)"
            ),
            Self::HashKeyLength { length } => write!(
                f,
                "a hash key of {length} bytes is outside 16 to 64; use 32 random bytes, the same \
                 in all processes"
            ),
            Self::HashKeyUnused => f.write_str(
                "a hash key is given but nothing is hashed; leave it out, or count by header, \
                 bearer or cookie",
            ),
            Self::TooMany { parts, most } => write!(
                f,
                "{parts} parts in one combination are more than {most}; join them in Key::from_fn"
            ),
            Self::CookieName { name } => {
                write!(f, "{name:?} is not the name of a cookie; write, for example, \"sid\"")
            }
            // INVARIANT: `say` has written all others.
            _ => Ok(()),
        }
    }
}

/// A likely mistake in a key, found while requests are served. No request is refused for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// `TG-K51`: a proxy seems to be in front, and the address of that proxy is counted.
    Proxied {
        /// The header that indicates a proxy.
        header: &'static str,
    },
    /// `TG-K52`: addresses are counted, but the address of the connection is unknown.
    NoPeer,
    /// `TG-K53`: proxies write a different header than the one that is read.
    OtherHeader {
        /// The header that is read, and is missing.
        read: &'static str,
        /// The header that is there.
        found: &'static str,
    },
    /// `TG-K54`: the header that is read is present, and is never believed: the address of the
    /// connection is counted, or none.
    NotBelieved,
}

impl Hint {
    /// Returns the code, which never changes: `TG-K51`.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Proxied { .. } => "TG-K51",
            Self::NoPeer => "TG-K52",
            Self::OtherHeader { .. } => "TG-K53",
            Self::NotBelieved => "TG-K54",
        }
    }

    /// Returns where the documentation explains it.
    #[must_use]
    pub const fn docs(self) -> &'static str {
        match self {
            Self::Proxied { .. } => docs!("http.md#tg-k51"),
            Self::NoPeer => docs!("http.md#tg-k52"),
            Self::OtherHeader { .. } => docs!("http.md#tg-k53"),
            Self::NotBelieved => docs!("http.md#tg-k54"),
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxied { header } => write!(
                f,
                "a request has {header}, but requests are counted by the address of the \
                 connection, which may be a proxy for many clients; use Key::client with the \
                 proxies you trust"
            )?,
            Self::NoPeer => f.write_str(
                "the address of the connection is not known; serve with \
                 into_make_service_with_connect_info::<SocketAddr>() (axum), or put a Peer into the \
                 extensions of each request",
            )?,
            Self::OtherHeader { read, found } => write!(
                f,
                "a request has {found}, but the layer reads {read}; choose the header that your \
                 proxies write"
            )?,
            Self::NotBelieved => f.write_str(
                "the header names no client: its sender is not in a trusted network, or it has \
                 fewer addresses than trusted hops, or none that can be parsed; list the networks \
                 of your proxies, or count them again",
            )?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}
