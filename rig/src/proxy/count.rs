//! Counts requests of the Redis protocol as they pass.

/// How far a request has been read. It keeps a number or two, never the bytes.
#[derive(Debug, Default)]
pub(super) struct RequestCount {
    state: State,
    /// Bulk strings of this request that are still to come.
    parts: u64,
    /// The number on the line that is being read.
    number: u64,
}

#[derive(Debug, Default)]
enum State {
    /// At the beginning of a request.
    #[default]
    Start,
    /// In `*3` of a request, or `$5` of a part.
    Header,
    /// In a request of words on a line.
    Inline,
    /// In a part, with its end of line: so many bytes to come.
    Body(u64),
}

impl RequestCount {
    /// Reads on, and returns how many requests came to their end.
    pub(super) fn read(&mut self, bytes: &[u8]) -> u64 {
        let mut ended = 0;
        for byte in bytes {
            ended += u64::from(self.step(*byte));
        }
        ended
    }

    fn step(&mut self, byte: u8) -> bool {
        match &mut self.state {
            State::Start => {
                self.number = 0;
                match byte {
                    b'*' | b'$' => self.state = State::Header,
                    b'\r' | b'\n' => {}
                    _ => self.state = State::Inline,
                }
                false
            }
            State::Header if byte.is_ascii_digit() => {
                self.number = self.number.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
                false
            }
            State::Header if byte == b'\n' => {
                if self.parts == 0 {
                    // The line was `*n`: n parts follow.
                    self.parts = self.number;
                    self.state = State::Start;
                    return self.parts == 0;
                }
                self.state = State::Body(self.number.saturating_add(2));
                false
            }
            State::Header => false,
            State::Inline => {
                if byte == b'\n' {
                    self.state = State::Start;
                }
                byte == b'\n'
            }
            State::Body(left) => {
                *left -= 1;
                if *left > 0 {
                    return false;
                }
                self.state = State::Start;
                self.parts -= 1;
                self.parts == 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RequestCount;

    #[test]
    fn counts_requests_however_they_are_cut() {
        for (text, expected) in [
            ("", 0),
            ("PING\r\n", 1),
            ("PING\r\nPING\r\nPI", 2),
            ("*1\r\n$4\r\nPING\r\n", 1),
            ("*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n", 2),
            ("*2\r\n$3\r\nGET\r\n$12\r\n*1\r\n$1\r\nx\r\n\r\n\r\n", 1),
            ("*2\r\n$3\r\nGET\r\n$1\r\nx\r", 0),
        ] {
            let whole = RequestCount::default().read(text.as_bytes());
            let mut count = RequestCount::default();
            let bytes: u64 = text.as_bytes().chunks(1).map(|byte| count.read(byte)).sum();
            assert_eq!((whole, bytes), (expected, expected), "{text:?}");
        }
    }
}
