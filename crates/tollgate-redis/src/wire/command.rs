//! Commands, encoded as they are built.

/// One command with its arguments, as the bytes that are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    bytes: Vec<u8>,
    missing: usize,
}

impl Command {
    /// Starts a command that will have `arguments` arguments after its name.
    #[must_use]
    pub fn new(name: &str, arguments: usize) -> Self {
        let mut bytes = Vec::with_capacity(16 + 24 * (arguments + 1));
        head(&mut bytes, b'*', arguments as u64 + 1);
        let mut command = Self { bytes, missing: arguments + 1 };
        command.push(name.as_bytes());
        command
    }

    /// Adds an argument.
    pub fn push(&mut self, argument: &[u8]) {
        debug_assert!(self.missing > 0, "more arguments than announced");
        self.missing -= 1;
        head(&mut self.bytes, b'$', argument.len() as u64);
        self.bytes.extend_from_slice(argument);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a number.
    pub fn push_number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let start = decimal(&mut digits, number);
        self.push(&digits[start..]);
    }

    /// Returns the bytes to send.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        debug_assert_eq!(self.missing, 0, "fewer arguments than announced");
        self.bytes
    }
}

fn head(bytes: &mut Vec<u8>, mark: u8, number: u64) {
    let mut digits = [0; 20];
    let start = decimal(&mut digits, number);
    bytes.push(mark);
    bytes.extend_from_slice(&digits[start..]);
    bytes.extend_from_slice(b"\r\n");
}

/// Writes a number to the end of `digits`. Returns where it starts.
fn decimal(digits: &mut [u8; 20], mut number: u64) -> usize {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut command = Command::new("SET", 2);
        command.push(b"k\r\n");
        command.push_number(1_234_567_890);
        let expected = b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$10\r\n1234567890\r\n";
        assert_eq!(command.into_bytes(), expected);
    }
}
