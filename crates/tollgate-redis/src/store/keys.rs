//! The names of states in Redis.
//!
//! ```text
//! prefix : letter of the algorithm, length of its windows : { key } : policy
//! ```
//!
//! So windows of different lengths are different states; a state does not contain its limit. GCRA
//! has one state for all quotas.
//!
//! Input of users is escaped: no brace can move a key to another slot of a cluster, and no colon
//! can give two keys the same name. All policies of a key share a slot. A key of more than [`LONG`]
//! bytes becomes `%sha256-` and the 64 digits of its SHA-256: a name of bounded length, the same in
//! every process. No escaped key can look like it, because two digits of 0 to F follow each percent
//! sign of an escaped key.

use super::rule::Kind;
use crate::slot_of;
use sha2::{Digest, Sha256};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::{hash::Hasher, sync::OnceLock};
use tollgate::store::StoreError;

/// Which states share a slot of a cluster, and so can be decided in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// The states of one key, for all policies. If a decision has limits of different keys, they
    /// are taken slot by slot, and given back if one refuses.
    #[default]
    ByKey,
    /// All states. Every decision is all or nothing, and one server of a cluster does all the work.
    OneSlot,
}

/// Makes the names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
    placement: Placement,
    /// The secret for hashing keys, if they are hashed.
    secret: Option<[u8; 16]>,
}

/// The text in the braces for the empty key: no escape looks like it.
const EMPTY: &str = "%";

/// The longest key that is written verbatim, in bytes.
const LONG: usize = 256;

impl Names {
    pub(crate) fn new(
        prefix: &str,
        placement: Placement,
        secret: Option<[u8; 16]>,
    ) -> Result<Self, StoreError> {
        if prefix.is_empty() || prefix.contains(['{', '}', '\0']) || prefix.len() > 200 {
            return Err(StoreError::invalid(format!(
                "\"{prefix}\" is not a prefix for keys; use 1 to 200 bytes without braces, which \
                 would decide the slot"
            )));
        }
        Ok(Self { prefix: prefix.to_owned(), placement, secret })
    }

    /// Returns the name of a state, and its slot. Windows have a length in microseconds.
    pub(crate) fn state(
        &self,
        (kind, length): (Kind, u64),
        policy: &str,
        key: &[u8],
    ) -> (Vec<u8>, u16) {
        let mut what = vec![kind.letter()];
        if !kind.is_gcra() {
            what.extend_from_slice(length.to_string().as_bytes());
        }
        self.named(&what, policy, key)
    }

    /// Returns the name of a key's permits in flight, and its slot.
    pub(crate) fn permits(&self, name: &str, key: &[u8]) -> (Vec<u8>, u16) {
        self.named(b"p", name, key)
    }

    fn named(&self, what: &[u8], policy: &str, key: &[u8]) -> (Vec<u8>, u16) {
        let length = self.prefix.len() + policy.len() + key.len().min(LONG);
        let mut name = Vec::with_capacity(length + 16);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b':');
        name.extend_from_slice(what);
        name.extend_from_slice(b":{");
        match self.placement {
            Placement::ByKey => {
                self.push_key(&mut name, key);
                name.extend_from_slice(b"}:");
                escape(&mut name, policy.as_bytes());
            }
            Placement::OneSlot => {
                name.extend_from_slice(b"all}:");
                escape(&mut name, policy.as_bytes());
                name.push(b':');
                self.push_key(&mut name, key);
            }
        }
        let slot = slot_of(&name);
        (name, slot)
    }

    fn push_key(&self, name: &mut Vec<u8>, key: &[u8]) {
        match &self.secret {
            secret if key.len() > LONG => {
                let mut sha = Sha256::new();
                // A secret has a fixed length, so the key begins at a fixed place.
                sha.update(secret.as_ref().map_or(&[][..], |secret| &secret[..]));
                sha.update(key);
                name.extend_from_slice(b"%sha256-");
                for byte in sha.finalize() {
                    name.extend_from_slice(format!("{byte:02x}").as_bytes());
                }
            }
            Some(secret) => {
                let mut hasher = SipHasher24::new_with_key(secret);
                hasher.write(key);
                name.extend_from_slice(
                    format!("#{:032x}", hasher.finish128().as_u128()).as_bytes(),
                );
            }
            None if key.is_empty() => name.extend_from_slice(EMPTY.as_bytes()),
            None => escape(name, key),
        }
    }

    /// Returns the name of the open claims on a state.
    pub(crate) fn ledger(state: &[u8]) -> Vec<u8> {
        [state, b":claims"].concat()
    }

    /// Returns the name of a reservation, in the slot that its id contains.
    pub(crate) fn reservation(&self, id: u64) -> (Vec<u8>, u16) {
        let slot = (id >> ID_BITS) as u16;
        (format!("{}:r:{{{}}}:{id:016x}", self.prefix, tag_of(slot)).into_bytes(), slot)
    }
}

/// Bits of an id below the slot.
pub(crate) const ID_BITS: u32 = 50;

/// Returns a number whose digits hash to a slot.
fn tag_of(slot: u16) -> u32 {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let (mut tags, mut missing, mut number) = (vec![u32::MAX; 1 << 14], 1 << 14, 0_u32);
        while missing > 0 {
            let place = &mut tags[usize::from(slot_of(number.to_string().as_bytes()))];
            if *place == u32::MAX {
                (*place, missing) = (number, missing - 1);
            }
            number += 1;
        }
        tags
    });
    tags.get(usize::from(slot)).copied().unwrap_or(0)
}

/// Appends text without special characters: braces, colons, percent signs, and all that is not
/// printable ASCII, become `%` and two digits.
fn escape(name: &mut Vec<u8>, text: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text {
        match byte {
            b'{' | b'}' | b':' | b'%' | 0..=0x20 | 0x7f.. => {
                let (high, low) = (DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]);
                name.extend_from_slice(&[b'%', high, low]);
            }
            _ => name.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn names(placement: Placement) -> Names {
        Names::new("tollgate", placement, None).unwrap()
    }

    #[test]
    fn names_read_well() {
        for (placement, policy, key, expected) in [
            (Placement::ByKey, "per user", "alice", "tollgate:g:{alice}:per%20user"),
            (Placement::ByKey, "all", "", "tollgate:g:{%}:all"),
            (Placement::ByKey, "a", "{b}:c", "tollgate:g:{%7Bb%7D%3Ac}:a"),
            (Placement::OneSlot, "a", "b", "tollgate:g:{all}:a:b"),
        ] {
            let (name, _) = names(placement).state((Kind::Gcra, 0), policy, key.as_bytes());
            assert_eq!(String::from_utf8(name).unwrap(), expected);
        }
        let hashed = Names::new("t", Placement::ByKey, Some([7; 16])).unwrap();
        let (name, _) = hashed.state((Kind::Log, 60), "p", b"alice");
        let text = String::from_utf8(name).unwrap();
        assert!(text.starts_with("t:l60:{#") && !text.contains("alice"), "{text}");
    }

    #[test]
    fn long_keys_are_digests_that_no_short_key_can_look_like() {
        let long = [b'a'; LONG + 1];
        let secret = Some([7; 16]);
        for placement in [Placement::ByKey, Placement::OneSlot] {
            let of = |secret, key: &[u8]| {
                let (name, _) = Names::new("t", placement, secret).unwrap().permits("p", key);
                String::from_utf8(name).unwrap()
            };
            let name = of(None, &long);
            // The result of `head -c 257 /dev/zero | tr '\\0' a | sha256sum`.
            let digest = "e8d95cc2b4bc198c54b40bd214df958afb65f5e73d2c2eafe0593cf5c635c1f0";
            assert!(name.contains(&format!("%sha256-{digest}")), "{name}");
            assert!(of(None, &long[1..]).contains(&"a".repeat(LONG)), "a short one is readable");
            // A key that looks like a digest does not collide with one.
            let copied = name.split(['{', '}', ':']).find(|part| part.contains("sha256")).unwrap();
            assert_ne!(of(None, copied.as_bytes()), name);
            let other = [&long[..], b"b"].concat();
            let names = [of(None, &long), of(secret, &long), of(None, &other), of(secret, &other)];
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), 4, "{names:?}");
            assert!(names.iter().all(|name| name.len() < 100));
        }
    }

    #[test]
    fn no_user_can_move_a_slot_or_meet_another() {
        for placement in [Placement::ByKey, Placement::OneSlot] {
            let pairs = [
                ("a_b", "c"),
                ("a", "b_c"),
                ("a:b", "c"),
                ("a", "b:c"),
                ("a", ""),
                ("", "a"),
                ("", ""),
                ("a", "%"),
                ("a", "{b}"),
                ("a}", "{b"),
                ("a", "b}:a{"),
            ];
            let made: HashSet<_> = pairs
                .iter()
                .map(|(policy, key)| {
                    names(placement).state((Kind::Gcra, 0), policy, key.as_bytes()).0
                })
                .collect();
            assert_eq!(made.len(), pairs.len(), "{placement:?}");
        }
    }

    proptest! {
        #[test]
        fn different_pairs_have_different_names(
            one in (".{0,6}", prop::collection::vec(any::<u8>(), 0..6)),
            two in (".{0,6}", prop::collection::vec(any::<u8>(), 0..6)),
        ) {
            for placement in [Placement::ByKey, Placement::OneSlot] {
                let name = |(policy, key): &(String, Vec<u8>)| {
                    names(placement).state((Kind::Gcra, 0), policy, key).0
                };
                prop_assert_eq!(name(&one) == name(&two), one == two);
            }
        }

        #[test]
        fn the_policies_of_a_key_share_a_slot(
            key in prop::collection::vec(any::<u8>(), 0..20), a in ".{0,9}", b in ".{0,9}",
        ) {
            let slot = |kind, policy: &str| names(Placement::ByKey).state(kind, policy, &key).1;
            prop_assert_eq!(slot((Kind::Gcra, 0), &a), slot((Kind::Log, 60), &b));
        }
    }

    #[test]
    fn a_reservation_is_in_the_slot_of_its_id() {
        for slot in [0_u64, 1, 8191, 16383] {
            let (name, said) = names(Placement::ByKey).reservation(slot << ID_BITS | 12345);
            assert_eq!((slot_of(&name), u64::from(said)), (said, slot));
        }
    }

    #[test]
    fn a_prefix_must_not_decide_the_slot() {
        for prefix in ["", "a{b}", "}"] {
            let error = Names::new(prefix, Placement::ByKey, None).unwrap_err();
            assert!(error.is_invalid(), "{prefix}");
        }
    }
}
