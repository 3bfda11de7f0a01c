//! The parts of a key as text, and which keys a percentage selects.
//!
//! A layer and the service encode the same client in different bytes: a layer as tagged items, the
//! service as the values of descriptors. Both agree on the text of the parts, so a rollout depends
//! on that text.

use super::{
    KeyBytes, KeyText,
    bytes::{Item, PART_MAX, Tag},
    digest::sha256,
};
use siphasher::sip::SipHasher13;
use std::{
    borrow::Cow,
    hash::Hasher,
    net::{Ipv4Addr, Ipv6Addr},
};

impl KeyBytes {
    /// Returns the parts as text, for programs that identify clients by it: an address as it is
    /// written, a hashed secret as 32 hex digits, any other part as it is. A part of more than 255
    /// bytes is its SHA-256.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use tollgate_tower::{Info, Peer, key::{Key, KeyBytes}};
    ///
    /// let request = Request::builder().extension(Peer(([192, 0, 2, 1], 443).into())).body(())?;
    /// let mut key = KeyBytes::new();
    /// let _ = Key::all([Key::peer(), Key::path()]).find(&Info::of(&request), &mut key);
    /// let texts: Vec<_> = key.texts().collect();
    /// assert_eq!(texts, [&b"192.0.2.1"[..], b"/"]);
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn texts(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let (mut rest, mut tag) = (KeyText::of(self.as_bytes()), None);
        std::iter::from_fn(move || {
            loop {
                match rest.next()? {
                    Item::End | Item::Tag(Tag::Custom | Tag::Global) => {}
                    Item::Tag(Tag::Anonymous) => return Some(Cow::Borrowed(&b"(anonymous)"[..])),
                    Item::Tag(known) => tag = Some(known),
                    Item::Long(digest) => return Some(digest.into()),
                    Item::Part(part) => match tag.take() {
                        // The source that was found does not belong to the identity.
                        Some(Tag::Choice) => {}
                        tag => return Some(text(tag, part)),
                    },
                }
            }
        })
    }
}

fn text(tag: Option<Tag>, part: &[u8]) -> Cow<'_, [u8]> {
    // A key holds only the counted bytes of an address; the others are 0.
    let mut octets = [0; 16];
    let is_address =
        octets.get_mut(..part.len()).map(|start| start.copy_from_slice(part)).is_some();
    let text = match tag {
        Some(Tag::V4) if is_address => {
            let [a, b, c, d, ..] = octets;
            Ipv4Addr::new(a, b, c, d).to_string()
        }
        Some(Tag::V6) if is_address => Ipv6Addr::from(octets).to_string(),
        Some(Tag::Header | Tag::Bearer | Tag::Cookie) => {
            part.iter().map(|byte| format!("{byte:02x}")).collect()
        }
        _ => return part.into(),
    };
    text.into_bytes().into()
}

/// Returns the place of a key, 0 to 99, in a rollout by percentage: a policy that is enforced for `p` percent is enforced
/// for the keys below `p`.
///
/// It depends on the text of the key's parts only ([`KeyBytes::texts`]), so a layer and the service select the same
/// clients, in every process.
#[must_use]
pub fn rollout_place<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> u8 {
    let mut hasher = SipHasher13::new_with_keys(0x7065_7263, 0x656e_7461);
    for part in parts {
        let part = part.as_ref();
        let digest = (part.len() > PART_MAX).then(|| sha256(part));
        let part = digest.as_ref().map_or(part, |digest| digest);
        // The lengths distinguish ["ab", "c"] from ["a", "bc"].
        hasher.write_u64(part.len() as u64);
        hasher.write(part);
    }
    // Below 100, so it fits.
    (hasher.finish() % 100) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Info, Peer,
        key::{ClientAddress, Key},
    };
    use http::Request;

    fn texts(key: &Key, request: &Request<()>) -> Vec<String> {
        let mut bytes = KeyBytes::new();
        let _ = key.find(&Info::of(request), &mut bytes);
        bytes.texts().map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
    }

    #[test]
    fn parts_read_as_people_write_them() {
        let request = Request::get("/cart?x=1")
            .header("authorization", "Bearer s3cret")
            .header("cookie", "session=s3cret")
            .extension(Peer(([0x64, 0xff9b, 0, 0, 0, 0, 0xc000, 0x201], 443).into()))
            .body(())
            .unwrap();
        let secret = texts(&Key::bearer(), &request);
        assert_eq!((secret.len(), secret[0].len()), (1, 32));
        for (key, expected) in [
            (Key::peer(), vec!["192.0.2.1"]),
            (Key::client(ClientAddress::peer().ipv4_prefix(24)), vec!["192.0.2.0"]),
            (Key::any([Key::header("x-user"), Key::peer()]), vec!["192.0.2.1"]),
            (Key::all([Key::path(), Key::method()]), vec!["/cart", "GET"]),
            (
                Key::from_fn(|_, key| {
                    key.push(b"acme");
                    true
                }),
                vec!["acme"],
            ),
            // The same secret from another place.
            (Key::cookie("session"), vec![&*secret[0]]),
            (Key::header("x-user").or_anonymous(), vec!["(anonymous)"]),
            (Key::global(), vec![]),
        ] {
            assert_eq!(texts(&key, &request), expected, "{key:?}");
        }
    }

    #[test]
    fn places_are_spread_evenly_and_never_change() {
        let mut counts = [0; 100];
        for user in 0..100_000 {
            counts[usize::from(rollout_place([format!("user-{user}")]))] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_ne!(rollout_place(["ab", "c"]), rollout_place(["a", "bc"]));
        let long = "x".repeat(256);
        assert_eq!(rollout_place([&long[..]]), rollout_place([sha256(long.as_bytes())]));
    }
}
