//! Scripts, and how they are called.

mod sha1;

use crate::Command;

/// A script by its source. The server knows it by the SHA-1 of that.
///
/// # Examples
///
/// ```
/// use tollgate_redis::Script;
///
/// let script = Script::new("return ARGV[1]");
/// let mut call = script.call(0, 1);
/// call.push(b"hello");
/// ```
#[derive(Debug)]
pub struct Script {
    source: String,
    sha: String,
}

impl Script {
    /// Returns the script of a source.
    #[must_use]
    pub fn new(source: impl Into<String>) -> Self {
        let source = source.into();
        let sha = sha1::hex(source.as_bytes());
        Self { source, sha }
    }

    /// Returns the source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the SHA-1 of the source, in hexadecimal.
    #[must_use]
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// Starts a call by the SHA-1. The caller pushes this many keys and arguments, keys first.
    #[must_use]
    pub fn call(&self, keys: usize, arguments: usize) -> Command {
        let mut command = Command::new("EVALSHA", 2 + keys + arguments);
        command.push(self.sha.as_bytes());
        command.push_number(keys as u64);
        command
    }

    /// Returns the same call with the source in it, for a server that does not know the script.
    #[must_use]
    pub fn with_source(&self, call: &[u8]) -> Vec<u8> {
        let head = format!("$7\r\nEVALSHA\r\n$40\r\n{}\r\n", self.sha);
        let start = call.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = call.get(start + head.len()..).unwrap_or_default();
        let source = self.source.as_bytes();
        let mut bytes = call[..start].to_vec();
        bytes.extend_from_slice(format!("$4\r\nEVAL\r\n${}\r\n", source.len()).as_bytes());
        bytes.extend_from_slice(source);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(rest);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_call_can_carry_the_source() {
        let script = Script::new("return 1");
        let mut call = script.call(1, 1);
        call.push(b"key");
        call.push(b"argument");
        let mut expected = Command::new("EVAL", 4);
        for part in ["return 1", "1", "key", "argument"] {
            expected.push(part.as_bytes());
        }
        assert_eq!(script.with_source(&call.into_bytes()), expected.into_bytes());
    }
}
