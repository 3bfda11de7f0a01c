//! The bytes of a key, and its text form.
//!
//! A key is a sequence of items, and no two sequences have the same bytes:
//!
//! | first number | then | is |
//! |---|---|---|
//! | 0 | | the end of a group |
//! | 1 | a tag | the kind of the next item, or the start of a group |
//! | 2 | 32 bytes | a part longer than 255 bytes: its SHA-256 |
//! | n + 3 | n bytes | a part |
//!
//! The number takes 7 bits to a byte, the lowest first; the last byte is below 128. Each item says
//! where it ends before its content begins, so the bytes can be read back in one way only.

mod short;

pub(crate) use short::ShortKey;

use super::digest::sha256;
use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Keys up to this long need no allocation: an address and a user's name, or four hashed secrets.
const INLINE: usize = 96;
/// Parts up to this long are written as they are. This bounds the bytes that a long path takes in a
/// store.
pub(super) const PART_MAX: usize = 255;

const END: u8 = 0;
const TAG: u8 = 1;
const LONG: u8 = 2;
const PART: usize = 3;

/// The bytes of a key while it is built.
///
/// The bytes include the length of each part, so that no two lists of parts make the same key.
/// Usual keys need no allocation, and a buffer can be reused. A part longer than 255 bytes is
/// replaced by its SHA-256, so that clients cannot fill a store with long names.
///
/// Its text form (`{}`) names the client, for logs: text from the client is escaped, and secrets
/// appear only as the start of their hash.
///
/// # Examples
///
/// ```
/// use tollgate_tower::key::KeyBytes;
///
/// let (mut one, mut other) = (KeyBytes::new(), KeyBytes::new());
/// one.push(b"ab");
/// one.push(b"c");
/// other.push(b"a");
/// other.push(b"bc");
/// assert_ne!(one.as_bytes(), other.as_bytes());
/// ```
#[derive(Clone)]
pub struct KeyBytes {
    inline: [u8; INLINE],
    /// How much of `inline` is used. INVARIANT: 0 while `heap` has anything.
    used: usize,
    /// The whole key, once it does not fit.
    heap: Vec<u8>,
    /// The bytes before this belong to other sources: [`clear`](KeyBytes::clear) keeps them.
    floor: usize,
}

/// The kind of an item of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    // The numbers are in stored keys: they never change.
    Global = 1,
    Anonymous = 2,
    V4 = 3,
    V6 = 4,
    Header = 5,
    Bearer = 6,
    Cookie = 7,
    Route = 8,
    Path = 9,
    Method = 10,
    /// Which one of several sources was there.
    Choice = 11,
    /// A group: the parts that a user's own code has pushed.
    Custom = 12,
}

impl Tag {
    const ALL: [Self; 12] = [
        Self::Global,
        Self::Anonymous,
        Self::V4,
        Self::V6,
        Self::Header,
        Self::Bearer,
        Self::Cookie,
        Self::Route,
        Self::Path,
        Self::Method,
        Self::Choice,
        Self::Custom,
    ];
}

/// How much of a key is written, to roll back to.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    length: usize,
    floor: usize,
}

impl KeyBytes {
    /// Returns a key without parts.
    #[must_use]
    pub const fn new() -> Self {
        Self { inline: [0; INLINE], used: 0, heap: Vec::new(), floor: 0 }
    }

    /// Appends a part.
    pub fn push(&mut self, part: &[u8]) {
        if part.len() > PART_MAX {
            self.extend(&[LONG]);
            self.extend(&sha256(part));
            return;
        }
        // OVERFLOW: at most 255 + 3, so it takes one byte or two, of 7 bits each.
        let number = part.len() + PART;
        let low = (number & 0x7f) as u8;
        if number < 0x80 {
            self.extend(&[low]);
        } else {
            self.extend(&[low | 0x80, (number >> 7) as u8]);
        }
        self.extend(part);
    }

    /// Returns the key so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.used] } else { &self.heap }
    }

    /// Tells whether nothing has been pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().len() <= self.floor
    }

    /// Removes all parts that were pushed.
    ///
    /// Within a [`KeySource`](super::KeySource) it removes the parts that this source has pushed,
    /// and no others.
    pub fn clear(&mut self) {
        self.truncate(self.floor);
    }

    /// Appends the kind of the next item.
    pub(super) fn tag(&mut self, tag: Tag) {
        self.extend(&[TAG, tag as u8]);
    }

    /// Appends a part with its kind.
    pub(super) fn tagged(&mut self, tag: Tag, part: &[u8]) {
        // An address or a hash, written at once.
        const SHORT: usize = 16;
        let mut item = [0; 3 + SHORT];
        match item.get_mut(3..3 + part.len()) {
            Some(room) => {
                room.copy_from_slice(part);
                // OVERFLOW: at most 16 + 3.
                item[..3].copy_from_slice(&[TAG, tag as u8, (part.len() + PART) as u8]);
                self.extend(&item[..3 + part.len()]);
            }
            None => {
                self.tag(tag);
                self.push(part);
            }
        }
    }

    /// Appends the parts that `write` pushes, as a group; tells whether there are any. If there are
    /// none, the key stays as it was.
    pub(super) fn group(&mut self, write: impl FnOnce(&mut Self) -> bool) -> bool {
        let before = self.mark();
        self.tag(Tag::Custom);
        self.floor = self.as_bytes().len();
        // A group without parts would be one key that all such requests share unintentionally.
        let there = write(self) && !self.is_empty();
        self.floor = before.floor;
        if there {
            self.extend(&[END]);
        } else {
            self.back_to(before);
        }
        there
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { length: self.as_bytes().len(), floor: self.floor }
    }

    pub(super) fn back_to(&mut self, mark: Mark) {
        self.truncate(mark.length);
        self.floor = mark.floor;
    }

    fn truncate(&mut self, length: usize) {
        // Only one of them is in use; a heap that becomes empty leaves `used` at 0, as it was.
        self.used = self.used.min(length);
        self.heap.truncate(length);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            let end = self.used + bytes.len();
            if let Some(room) = self.inline.get_mut(self.used..end) {
                room.copy_from_slice(bytes);
                self.used = end;
                return;
            }
            self.heap.extend_from_slice(&self.inline[..self.used]);
            self.used = 0;
        }
        self.heap.extend_from_slice(bytes);
    }
}

impl Default for KeyBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyBytes {}

impl AsRef<[u8]> for KeyBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBytes({self})")
    }
}

impl fmt::Display for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KeyText::of(self.as_bytes()).fmt(f)
    }
}

/// Prints the bytes of a key for people.
///
/// Bytes that are not a key are printed escaped, and do no harm.
///
/// # Examples
///
/// ```
/// use tollgate_tower::key::{KeyBytes, KeyText};
///
/// let mut key = KeyBytes::new();
/// key.push(b"tenant 7");
/// assert_eq!(KeyText::of(key.as_bytes()).to_string(), "tenant 7");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyText<'a>(&'a [u8]);

/// One item of a key that is read back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    End,
    Tag(Tag),
    Long(&'a [u8]),
    Part(&'a [u8]),
}

impl<'a> KeyText<'a> {
    /// Prints these bytes.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Removes the next item; `None` if the bytes are not those of a key.
    pub(super) fn next(&mut self) -> Option<Item<'a>> {
        let (first, rest) = self.0.split_first()?;
        let (item, rest) = match *first {
            END => (Item::End, rest),
            TAG => {
                let (number, rest) = rest.split_first()?;
                (Item::Tag(Tag::ALL.into_iter().find(|tag| *tag as u8 == *number)?), rest)
            }
            LONG => {
                let (digest, rest) = rest.split_at_checked(32)?;
                (Item::Long(digest), rest)
            }
            low => {
                let (high, rest) = if low < 0x80 {
                    (0, rest)
                } else {
                    rest.split_first().map(|(h, r)| (*h, r))?
                };
                let number = usize::from(low & 0x7f) | usize::from(high) << 7;
                let (part, rest) = rest.split_at_checked(number.checked_sub(PART)?)?;
                (Item::Part(part), rest)
            }
        };
        self.0 = rest;
        Some(item)
    }

    /// Prints a part, which is of the kind `tag` if that is known.
    fn part(tag: Option<Tag>, part: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key holds only the counted bytes of an address; the others are 0.
        let mut octets = [0; 16];
        let known = octets.get_mut(..part.len()).map(|start| start.copy_from_slice(part)).is_some();
        match tag {
            Some(Tag::V4) if known => {
                let [a, b, c, d, ..] = octets;
                write!(f, "{}", Ipv4Addr::new(a, b, c, d))
            }
            Some(Tag::V6) if known => write!(f, "{}", Ipv6Addr::from(octets)),
            Some(Tag::Header | Tag::Bearer | Tag::Cookie) => Self::digest(part, f),
            _ => write!(f, "{}", part.escape_ascii()),
        }
    }

    fn digest(digest: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("#")?;
        digest.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut rest, mut tag, mut first) = (*self, None, true);
        while !rest.0.is_empty() {
            let Some(item) = rest.next() else {
                return write!(f, "{}", rest.0.escape_ascii());
            };
            if matches!(item, Item::End | Item::Tag(Tag::Custom)) {
                continue;
            }
            // The number of a choice does not help a reader.
            if tag == Some(Tag::Choice) {
                tag = None;
                continue;
            }
            if let Item::Tag(known) = item
                && !matches!(known, Tag::Global | Tag::Anonymous)
            {
                tag = Some(known);
                continue;
            }
            if !std::mem::take(&mut first) {
                f.write_str(" ")?;
            }
            match item {
                Item::Tag(Tag::Global) => f.write_str("(global)")?,
                Item::Tag(_) => f.write_str("(anonymous)")?,
                Item::Long(digest) => Self::digest(digest, f)?,
                Item::Part(part) => Self::part(tag, part, f)?,
                Item::End => {}
            }
            tag = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn bytes_of(parts: &[Vec<u8>]) -> KeyBytes {
        let mut key = KeyBytes::new();
        parts.iter().for_each(|part| key.push(part));
        key
    }

    /// Reads the parts back, long ones as their digests.
    fn parts_of(key: &KeyBytes) -> Vec<Vec<u8>> {
        let (mut text, mut parts) = (KeyText::of(key.as_bytes()), Vec::new());
        while let Some(item) = text.next() {
            match item {
                Item::Part(part) | Item::Long(part) => parts.push(part.to_vec()),
                other => panic!("{other:?} among parts"),
            }
        }
        assert!(text.0.is_empty(), "left over: {:?}", text.0);
        parts
    }

    fn lists() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Few values, so that pieces of one list fit into another.
        let short = vec(0_u8..6, 0..5);
        let long = (250_usize..262, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]);
        let middle = (90_usize..140).prop_map(|length| vec![3; length]);
        vec(prop_oneof![6 => short, 1 => long, 1 => middle], 0..6)
    }

    proptest! {
        #[test]
        fn different_lists_of_parts_are_different_bytes(one in lists(), other in lists()) {
            prop_assert_eq!(one == other, bytes_of(&one) == bytes_of(&other));
        }

        #[test]
        fn parts_can_be_read_back(parts in lists()) {
            let expected: Vec<_> = parts
                .iter()
                .map(|part| if part.len() > PART_MAX { sha256(part).to_vec() } else { part.clone() })
                .collect();
            prop_assert_eq!(parts_of(&bytes_of(&parts)), expected);
        }

        #[test]
        fn going_back_and_clearing_leave_what_was_there(one in lists(), other in lists()) {
            let mut key = bytes_of(&one);
            let mark = key.mark();
            other.iter().for_each(|part| key.push(part));
            key.back_to(mark);
            prop_assert_eq!(&key, &bytes_of(&one));
            key.clear();
            prop_assert!(key.is_empty());
            other.iter().for_each(|part| key.push(part));
            prop_assert_eq!(&key, &bytes_of(&other));
        }

        #[test]
        fn any_bytes_can_be_printed(bytes in vec(any::<u8>(), 0..80)) {
            prop_assert!(KeyText::of(&bytes).to_string().is_ascii());
        }
    }

    #[test]
    fn usual_keys_need_no_heap() {
        let mut key = KeyBytes::new();
        key.push(&[7; INLINE - 1]);
        assert_eq!((key.as_bytes().len(), key.heap.capacity()), (INLINE, 0));
        key.push(b"");
        assert_eq!(key.as_bytes().len(), INLINE + 1);
        assert!(key.heap.capacity() > 0);
    }

    #[test]
    fn a_group_keeps_to_itself() {
        let mut key = KeyBytes::new();
        key.push(b"before");
        let before = key.clone();
        assert!(!key.group(|key| {
            key.push(b"half");
            false
        }));
        assert!(!key.group(|_| true), "a group of nothing is not there");
        assert_eq!(key, before);
        assert!(key.group(|key| {
            assert!(key.is_empty());
            key.push(b"wrong");
            key.clear();
            key.push(b"right");
            true
        }));
        assert_eq!(key.to_string(), "before right");
    }
}
