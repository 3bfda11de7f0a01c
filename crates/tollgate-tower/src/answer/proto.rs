//! Writes Protobuf: each function appends a field to a vector that is reused.
//!
//! A field is a tag (number and wire type) and a value. Fields above 15 have longer tags; no
//! message here has one.

/// The wire types, less groups.
pub mod wire_type {
    /// A number of one to ten bytes.
    pub const VARINT: u8 = 0;
    /// Eight bytes.
    pub const FIXED64: u8 = 1;
    /// A length, and that many bytes.
    pub const BYTES: u8 = 2;
    /// Four bytes.
    pub const FIXED32: u8 = 5;
}

const fn tag(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// Writes a number without a tag.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // OVERFLOW: the low seven bits, and the mark that more follow.
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a number; zero is the default and left out.
pub fn write_number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        write_number_always(out, field, value);
    }
}

/// Writes a number even if it is zero: in a `oneof`, the field says which variant it is.
pub fn write_number_always(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(tag(field, wire_type::VARINT));
    write_varint(out, value);
}

/// Writes a string, or bytes, even if they are empty.
pub fn write_bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(tag(field, wire_type::BYTES));
    write_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Writes a floating-point number, even zero: in a `oneof`, the field says which variant it is.
pub fn write_double(out: &mut Vec<u8>, field: u8, value: f64) {
    out.push(tag(field, wire_type::FIXED64));
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a message within the message. Its length precedes it but is known only after it: one byte
/// is reserved for the length, and a long message is shifted.
pub fn write_message(out: &mut Vec<u8>, field: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[tag(field, wire_type::BYTES), 0]);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    if length < 0x80 {
        // OVERFLOW: just compared.
        out[start - 1] = length as u8;
        return;
    }
    let end = out.len();
    write_varint(out, length as u64);
    let extra = out.len() - end;
    let prefix: [u8; 10] = std::array::from_fn(|index| out.get(end + index).copied().unwrap_or(0));
    out.truncate(end);
    out.resize(end + extra - 1, 0);
    out.copy_within(start..end, start + extra - 1);
    out[start - 1..start - 1 + extra].copy_from_slice(&prefix[..extra]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_prost() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            write_varint(&mut ours, value);
            prost::encoding::encode_varint(value, &mut theirs);
            assert_eq!(ours, theirs, "{value}");
        }
    }

    #[test]
    fn long_messages_are_moved_on() {
        for length in [0, 1, 127, 128, 129, 16_383, 16_384, 70_000] {
            let content = vec![7; length];
            let (mut nested, mut plain) = (vec![9], vec![9]);
            write_message(&mut nested, 2, |out| out.extend_from_slice(&content));
            write_bytes(&mut plain, 2, &content);
            assert_eq!(nested, plain, "{length} bytes");
        }
    }
}
