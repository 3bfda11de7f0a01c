//! Addresses: how they are spelled, and which part of them is counted.

use super::{KeyBytes, ShortKey, bytes::Tag};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads an address as proxies write it: with or without port, brackets and zone.
///
/// An IPv4 address in IPv6 form (`::ffff:192.0.2.1`, in any notation) is the IPv4 address. `None`
/// if it is not an address: nothing is guessed.
///
/// # Examples
///
/// ```
/// use tollgate_tower::key::read_address;
///
/// assert_eq!(read_address(b"[::ffff:c000:201]:443"), Some([192, 0, 2, 1].into()));
/// assert_eq!(read_address(b"unknown"), None);
/// ```
#[must_use]
pub fn read_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']')?;
        if !after.is_empty() && !after.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        IpAddr::V6(without_zone(inner)?.parse().ok()?)
    } else if let Ok(address) = text.parse::<Ipv4Addr>() {
        IpAddr::V4(address)
    } else if let Some((address, port)) = text.split_once(':')
        && is_port(port)
        && let Ok(address) = address.parse::<Ipv4Addr>()
    {
        IpAddr::V4(address)
    } else {
        IpAddr::V6(without_zone(text)?.parse().ok()?)
    };
    Some(address.to_canonical())
}

/// A port in digits, or hidden (RFC 7239, section 6): `_` and letters, digits, `.`, `_` and `-`.
fn is_port(text: &str) -> bool {
    let all = |text: &str, good: fn(u8) -> bool| !text.is_empty() && text.bytes().all(good);
    match text.strip_prefix('_') {
        Some(hidden) => all(hidden, |byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)),
        None => text.len() <= 5 && all(text, |byte| byte.is_ascii_digit()),
    }
}

/// Cuts a zone (`%eth0`) off; `None` if there is a `%` without a zone.
fn without_zone(text: &str) -> Option<&str> {
    match text.split_once('%') {
        Some((_, zone)) if zone.is_empty() || zone.contains(['%', '[', ']', ':']) => None,
        Some((address, _)) => Some(address),
        None => Some(text),
    }
}

/// Which part of an address is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefixes {
    pub(super) v4: u8,
    pub(super) v6: u8,
    pub(super) six_to_four: bool,
    pub(super) teredo: bool,
}

impl Prefixes {
    /// The smallest network that one IPv6 client has is 64 bits.
    pub(super) const DEFAULT: Self = Self { v4: 32, v6: 64, six_to_four: false, teredo: false };

    /// Returns the address that is counted for this one.
    pub(super) fn counted(self, address: IpAddr) -> IpAddr {
        match self.inner(address.to_canonical()) {
            IpAddr::V4(address) => {
                // A prefix longer than the address keeps all of it; `check` refuses such a prefix.
                let rest = u32::MAX.checked_shr(u32::from(self.v4)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & !rest))
            }
            IpAddr::V6(address) => {
                let rest = u128::MAX.checked_shr(u32::from(self.v6)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !rest))
            }
        }
    }

    /// Returns the key of an address, if it has a usual length: the same as by
    /// [`write`](Self::write).
    pub(super) fn short(self, address: IpAddr) -> Option<ShortKey> {
        match self.counted(address) {
            IpAddr::V4(address) => Some(ShortKey::tagged(Tag::V4, address.octets())),
            IpAddr::V6(address) if self.v6 == 64 => {
                Some(ShortKey::tagged(Tag::V6, *address.octets().first_chunk::<8>()?))
            }
            IpAddr::V6(_) => None,
        }
    }

    /// Appends the address that is counted for this one.
    pub(super) fn write(self, address: IpAddr, key: &mut KeyBytes) {
        match self.counted(address) {
            IpAddr::V4(address) => key.tagged(Tag::V4, &address.octets()),
            IpAddr::V6(address) => {
                let bytes = usize::from(self.v6).div_ceil(8).min(16);
                key.tagged(Tag::V6, &address.octets()[..bytes]);
            }
        }
    }

    /// Returns the IPv4 address of a client behind a translator or a tunnel.
    fn inner(self, address: IpAddr) -> IpAddr {
        let IpAddr::V6(outer) = address else { return address };
        let v4 = |high: u16, low: u16| IpAddr::V4((u32::from(high) << 16 | u32::from(low)).into());
        match outer.segments() {
            // NAT64 (RFC 6052). Otherwise all of IPv4 behind a translator would be one network of
            // 64 bits.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
            // 6to4 (RFC 3056).
            [0x2002, high, low, ..] if self.six_to_four => v4(high, low),
            // Teredo (RFC 4380): the bits of the client's address are inverted.
            [0x2001, 0, .., high, low] if self.teredo => v4(!high, !low),
            _ => address,
        }
    }
}
