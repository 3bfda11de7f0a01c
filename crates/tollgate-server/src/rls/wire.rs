//! Protobuf on the wire: just what Envoy's messages need.
//!
//! A message is a row of fields, each a tag (number and wire type) and a value. The reader borrows
//! from the bytes it was given; the writer is that of `tollgate-tower`.

use std::{fmt, str::Utf8Error};

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The bytes end within a field.
    Short,
    /// A number with more than 64 bits.
    Varint,
    /// A tag with the number zero, or with more than 32 bits.
    Tag,
    /// A group, or a wire type that there is not.
    WireType {
        /// The field's number.
        field: u32,
        /// Its type.
        wire_type: u8,
    },
    /// A text that is not UTF-8.
    Utf8 {
        /// The field's number.
        field: u32,
        /// Where it stops being UTF-8.
        error: Utf8Error,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("the message ends inside a field; send all of it"),
            Self::Varint => f.write_str("a number in the message has more than 64 bits"),
            Self::Tag => f.write_str("a field of the message has the number 0 or one above 2^29"),
            Self::WireType { field, wire_type } => write!(
                f,
                "field {field} has the wire type {wire_type}, which is wrong; is this the right \
                 message?"
            ),
            Self::Utf8 { field, error } => {
                write!(f, "the text of field {field} is not UTF-8: {error}")
            }
        }
    }
}

impl std::error::Error for WireError {}

pub(super) use tollgate_tower::answer::raw::proto::{
    wire_type, write_bytes, write_double, write_message, write_number, write_number_always,
};

/// Reads the fields of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns number and wire type of the next field; `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, u8)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| WireError::Tag)?;
        if tag >> 3 == 0 {
            return Err(WireError::Tag);
        }
        Ok(Some((tag >> 3, (tag & 7) as u8)))
    }

    pub(super) fn varint(&mut self) -> Result<u64, WireError> {
        if let Some((&byte, rest)) = self.rest.split_first()
            && byte < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(byte));
        }
        let mut value = 0;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            if index == 9 && byte > 1 {
                return Err(WireError::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < 10 { WireError::Short } else { WireError::Varint })
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let length = usize::try_from(self.varint()?).map_err(|_| WireError::Short)?;
        self.take(length)
    }

    pub(super) fn text(&mut self, field: u32) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|error| WireError::Utf8 { field, error })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Passes over the value of a field that means nothing here.
    pub(super) fn skip(&mut self, field: u32, wire_type: u8) -> Result<(), WireError> {
        match wire_type {
            wire_type::VARINT => self.varint().map(drop),
            wire_type::FIXED64 => self.take(8).map(drop),
            wire_type::BYTES => self.bytes().map(drop),
            wire_type::FIXED32 => self.take(4).map(drop),
            // Groups are not of this protocol, and following them would need a bound on depth.
            _ => Err(WireError::WireType { field, wire_type }),
        }
    }
}

/// Tells that a known field has another type than it must have.
pub(super) fn expect(field: u32, is: u8, must: u8) -> Result<(), WireError> {
    if is == must { Ok(()) } else { Err(WireError::WireType { field, wire_type: is }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_tower::answer::raw::proto::write_varint;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            write_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.field(), Ok(None), "{value} has bytes left");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let eleven = [0x80_u8; 11];
        for (bytes, error) in [
            (&[0x08][..], WireError::Short),
            (&[0x0a, 5, 1], WireError::Short),
            (&[0x80], WireError::Short),
            (&eleven, WireError::Varint),
            (&[0x00], WireError::Tag),
            (&[0xff, 0xff, 0xff, 0xff, 0x7f], WireError::Tag),
            (&[0x0b, 0x0c], WireError::WireType { field: 1, wire_type: 3 }),
            (&[0x0e], WireError::WireType { field: 1, wire_type: 6 }),
        ] {
            let mut reader = Reader::new(bytes);
            let read = loop {
                match reader.field() {
                    Ok(Some((field, wire_type))) => match reader.skip(field, wire_type) {
                        Ok(()) => {}
                        Err(error) => break Err(error),
                    },
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            assert_eq!(read, Err(error), "{bytes:02x?}");
            assert!(!error.to_string().is_empty());
        }
    }
}
