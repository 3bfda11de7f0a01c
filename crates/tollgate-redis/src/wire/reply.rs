//! Replies, of both versions of the protocol.

/// The server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing: a null of any kind.
    Nil,
    /// A number or a truth value.
    Int(i64),
    /// A simple or a bulk string, or anything else that is text.
    Bytes(Vec<u8>),
    /// An array, a set, or a map with alternating keys and values.
    Array(Vec<Reply>),
    /// An error, with its code in front: `NOSCRIPT No matching script`.
    Error(String),
}

impl Reply {
    /// Returns the number, if it is one.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the bytes, if it is a string.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the parts, if it is an array.
    #[must_use]
    pub fn parts(&self) -> Option<&[Reply]> {
        match self {
            Self::Array(parts) => Some(parts),
            _ => None,
        }
    }
}
