//! Envoy's request: `RateLimitRequest`, read without copying.
//!
//! [`Decoder`] keeps the memory of its lists from one request to the next, so that in the long run
//! reading a request allocates nothing.

use super::wire::{Reader, WireError, expect, wire_type};
use crate::{
    config::Unit,
    engine::{AdHocLimit, Ask, Hits, MAX_ASKS, Subject},
    plan::Entry,
};
use std::{fmt, ops::Range};

/// The most entries in all descriptors of a request together: bounds what a request can make the
/// server keep.
pub const MAX_ALL_ENTRIES: usize = 2048;

/// Reads requests. Keep one per connection.
#[derive(Debug, Default)]
pub struct Decoder {
    entries: Vec<Entry<'static>>,
    descriptors: Vec<Descriptor>,
    asks: Vec<Ask<'static>>,
}

/// A request, as it came.
#[derive(Debug, Default)]
pub struct RateLimitRequest<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The hits of descriptors that say nothing else.
    pub hits_addend: u32,
    entries: Vec<Entry<'a>>,
    descriptors: Vec<Descriptor>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    pub(super) entries: Range<usize>,
    /// A limit in place of a configured one.
    pub limit: Option<LimitOverride>,
    /// The hits; `Some(0)` only looks.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
}

/// A limit that comes with the request, as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitOverride {
    /// How many.
    pub requests_per_unit: u32,
    /// The number of the unit.
    pub unit: i32,
}

/// Why a request cannot be read, or means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// It is no such message.
    Wire(WireError),
    /// It has no domain.
    NoDomain,
    /// It has no descriptors.
    NoDescriptors,
    /// It has more descriptors than are decided as one.
    TooManyDescriptors,
    /// It has more entries than [`MAX_ALL_ENTRIES`].
    TooManyEntries,
    /// A limit with a unit of time that there is not.
    Unit(i32),
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => write!(f, "not a RateLimitRequest: {error}"),
            Self::NoDomain => f.write_str("rate limit domain must not be empty"),
            Self::NoDescriptors => f.write_str("rate limit descriptor list must not be empty"),
            Self::TooManyDescriptors => {
                write!(f, "more than {MAX_ASKS} descriptors in one request; split it")
            }
            Self::TooManyEntries => {
                write!(f, "more than {MAX_ALL_ENTRIES} entries in one request; split it")
            }
            Self::Unit(number) => write!(
                f,
                "a descriptor's limit has the unit {number}; use one of SECOND (1) to YEAR (6), or \
                 WEEK (7)"
            ),
        }
    }
}

impl std::error::Error for BadRequest {}

impl From<WireError> for BadRequest {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl Decoder {
    /// Returns a decoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a request. Give its memory back with [`put_back`](Self::put_back).
    ///
    /// # Errors
    ///
    /// When the bytes are no `RateLimitRequest`, or it is too large. The decoder can be used on.
    pub fn decode<'a>(&mut self, message: &'a [u8]) -> Result<RateLimitRequest<'a>, BadRequest> {
        let mut request = RateLimitRequest {
            entries: std::mem::take(&mut self.entries),
            descriptors: std::mem::take(&mut self.descriptors),
            ..RateLimitRequest::default()
        };
        match request.read(message) {
            Ok(()) => Ok(request),
            Err(error) => {
                self.put_back(request);
                Err(error)
            }
        }
    }

    /// Takes the memory of a request back.
    pub fn put_back(&mut self, mut request: RateLimitRequest<'_>) {
        request.descriptors.clear();
        self.descriptors = request.descriptors;
        self.entries = emptied(request.entries, |_| Entry { key: "", value: "" });
    }

    /// Returns what a request asks of the engine. Give its memory back with
    /// [`put_asks_back`](Self::put_asks_back).
    ///
    /// # Errors
    ///
    /// When the request means nothing.
    pub fn asks<'a>(&mut self, request: &'a RateLimitRequest<'a>) -> Result<Asks<'a>, BadRequest> {
        if request.domain.is_empty() {
            return Err(BadRequest::NoDomain);
        }
        if request.descriptors.is_empty() {
            return Err(BadRequest::NoDescriptors);
        }
        let mut asks: Vec<Ask<'a>> = std::mem::take(&mut self.asks);
        for (descriptor, entries) in request.descriptors() {
            let limit = match descriptor.limit.map(LimitOverride::judge) {
                Some(Err(error)) => {
                    self.put_asks_back(Asks(asks));
                    return Err(error);
                }
                Some(Ok(limit)) => Some(limit),
                None => None,
            };
            let hits = hits(descriptor, request.hits_addend);
            asks.push(Ask { subject: Subject::Entries(entries), hits, limit });
        }
        Ok(Asks(asks))
    }

    /// Takes the memory of asks back.
    pub fn put_asks_back(&mut self, asks: Asks<'_>) {
        let none = Ask { subject: Subject::Entries(&[]), hits: Hits::Take(0), limit: None };
        self.asks = emptied(asks.0, |_| none);
    }
}

/// The asks of a request.
#[derive(Debug)]
pub struct Asks<'a>(Vec<Ask<'a>>);

impl<'a> std::ops::Deref for Asks<'a> {
    type Target = [Ask<'a>];

    fn deref(&self) -> &[Ask<'a>] {
        &self.0
    }
}

/// Empties a list and gives it another lifetime. The standard library collects such a list in place,
/// so its memory stays (held by a test); if it did not, this would only cost more.
fn emptied<A, B>(mut list: Vec<A>, never: impl Fn(A) -> B) -> Vec<B> {
    list.clear();
    list.into_iter().map(never).collect()
}

/// Returns what a descriptor takes or gives: its own number if it has one, and else the request's,
/// at least one.
fn hits(descriptor: &Descriptor, of_request: u32) -> Hits {
    let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(of_request.max(1)));
    if descriptor.is_negative_hits { Hits::Give(hits) } else { Hits::Take(hits) }
}

impl LimitOverride {
    fn judge(self) -> Result<AdHocLimit, BadRequest> {
        let unit = Unit::from_number(self.unit).ok_or(BadRequest::Unit(self.unit))?;
        Ok(AdHocLimit { count: u64::from(self.requests_per_unit), unit })
    }
}

impl<'a> RateLimitRequest<'a> {
    /// Returns a request from parts; the list has each descriptor with its entries.
    #[must_use]
    pub fn from_parts(
        domain: &'a str,
        hits_addend: u32,
        list: impl IntoIterator<Item = (Descriptor, Vec<Entry<'a>>)>,
    ) -> Self {
        let mut request = Self { domain, hits_addend, ..Self::default() };
        for (descriptor, entries) in list {
            let start = request.entries.len();
            request.entries.extend(entries);
            request
                .descriptors
                .push(Descriptor { entries: start..request.entries.len(), ..descriptor });
        }
        request
    }

    /// Returns the descriptors, each with its entries.
    pub fn descriptors(&self) -> impl Iterator<Item = (&Descriptor, &[Entry<'a>])> {
        self.descriptors
            .iter()
            .map(|descriptor| (descriptor, &self.entries[descriptor.entries.clone()]))
    }

    fn read(&mut self, message: &'a [u8]) -> Result<(), BadRequest> {
        let mut reader = Reader::new(message);
        while let Some((field, is)) = reader.field()? {
            match field {
                1 => {
                    expect(field, is, wire_type::BYTES)?;
                    self.domain = reader.text(field)?;
                }
                2 => {
                    expect(field, is, wire_type::BYTES)?;
                    if self.descriptors.len() == MAX_ASKS {
                        return Err(BadRequest::TooManyDescriptors);
                    }
                    let descriptor = self.read_descriptor(reader.bytes()?)?;
                    self.descriptors.push(descriptor);
                }
                3 => {
                    expect(field, is, wire_type::VARINT)?;
                    // OVERFLOW: protobuf takes the low bits of a longer number.
                    self.hits_addend = reader.varint()? as u32;
                }
                _ => reader.skip(field, is)?,
            }
        }
        Ok(())
    }

    fn read_descriptor(&mut self, message: &'a [u8]) -> Result<Descriptor, BadRequest> {
        let start = self.entries.len();
        let mut descriptor = Descriptor::default();
        let mut reader = Reader::new(message);
        while let Some((field, is)) = reader.field()? {
            match field {
                1 => {
                    expect(field, is, wire_type::BYTES)?;
                    if self.entries.len() == MAX_ALL_ENTRIES {
                        return Err(BadRequest::TooManyEntries);
                    }
                    self.entries.push(read_entry(reader.bytes()?)?);
                }
                2 => {
                    expect(field, is, wire_type::BYTES)?;
                    // A message that comes twice is merged.
                    let limit = descriptor.limit.get_or_insert_default();
                    read_limit(limit, reader.bytes()?)?;
                }
                3 => {
                    expect(field, is, wire_type::BYTES)?;
                    let hits = descriptor.hits_addend.get_or_insert(0);
                    read_wrapped(hits, reader.bytes()?)?;
                }
                4 => {
                    expect(field, is, wire_type::VARINT)?;
                    descriptor.is_negative_hits = reader.varint()? != 0;
                }
                _ => reader.skip(field, is)?,
            }
        }
        descriptor.entries = start..self.entries.len();
        Ok(descriptor)
    }
}

fn read_entry(message: &[u8]) -> Result<Entry<'_>, WireError> {
    let mut entry = Entry { key: "", value: "" };
    let mut reader = Reader::new(message);
    while let Some((field, is)) = reader.field()? {
        match field {
            1 | 2 => {
                expect(field, is, wire_type::BYTES)?;
                let text = reader.text(field)?;
                *(if field == 1 { &mut entry.key } else { &mut entry.value }) = text;
            }
            _ => reader.skip(field, is)?,
        }
    }
    Ok(entry)
}

fn read_limit(limit: &mut LimitOverride, message: &[u8]) -> Result<(), WireError> {
    let mut reader = Reader::new(message);
    while let Some((field, is)) = reader.field()? {
        match field {
            // OVERFLOW: protobuf takes the low bits of a longer number.
            1 => {
                expect(field, is, wire_type::VARINT)?;
                limit.requests_per_unit = reader.varint()? as u32;
            }
            2 => {
                expect(field, is, wire_type::VARINT)?;
                limit.unit = reader.varint()? as i32;
            }
            _ => reader.skip(field, is)?,
        }
    }
    Ok(())
}

/// Reads a `UInt64Value`.
fn read_wrapped(value: &mut u64, message: &[u8]) -> Result<(), WireError> {
    let mut reader = Reader::new(message);
    while let Some((field, is)) = reader.field()? {
        if field == 1 {
            expect(field, is, wire_type::VARINT)?;
            *value = reader.varint()?;
        } else {
            reader.skip(field, is)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
