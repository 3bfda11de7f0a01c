//! RESP: commands as arrays of bulk strings, and the answers of versions 2 and 3.

use super::{
    pipe::{Answer, Scan},
    tally::Verdict,
    template::Template,
};

/// How deep arrays may hold arrays.
const DEEPEST: u32 = 16;

/// How `TG.DESCRIPTOR` answers in the second version of the protocol if it passes without a limit.
const UNMATCHED: &[u8] = b"*6\r\n:1\r\n$-1\r\n";

/// Which answer means that a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The first number is 0 if the request passed and 1 if not, as `CL.THROTTLE` answers.
    ZeroPasses,
    /// The first number is 1 if the request passed and 0 if not, as throttlecrab answers.
    OnePasses,
    /// The same; an answer without a limit says that none fits, as `TG.DESCRIPTOR` answers.
    Descriptor,
    /// Every answer that is no error.
    AllPass,
}

impl Meaning {
    /// Goes by the name of the command.
    pub(crate) fn of_command(name: &str) -> Self {
        match name.to_ascii_uppercase().as_str() {
            "CL.THROTTLE" => Self::ZeroPasses,
            "THROTTLE" | "TG.CHECK" | "TG.PEEK" => Self::OnePasses,
            "TG.DESCRIPTOR" => Self::Descriptor,
            _ => Self::AllPass,
        }
    }

    fn judge(self, first: Option<i64>) -> Verdict {
        match (self, first) {
            (Self::AllPass, _)
            | (Self::ZeroPasses, Some(0))
            | (Self::OnePasses | Self::Descriptor, Some(1)) => Verdict::Allowed,
            (Self::ZeroPasses, Some(1)) | (Self::OnePasses | Self::Descriptor, Some(0)) => {
                Verdict::Denied
            }
            _ => Verdict::Error,
        }
    }
}

/// Encodes a command; words are separated by spaces.
pub(crate) fn encode(command: &str, prefix: &str) -> Template {
    let words: Vec<Template> =
        command.split_whitespace().map(|word| Template::of(word, prefix)).collect();
    let mut template = Template::default();
    template.raw(format!("*{}\r\n", words.len()).as_bytes());
    for word in &words {
        template.raw(format!("${}\r\n", word.len()).as_bytes());
        template.append(word);
        template.raw(b"\r\n");
    }
    template
}

/// Finds answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RespScan(pub(crate) Meaning);

impl Scan for RespScan {
    fn scan(&self, bytes: &[u8]) -> Result<Option<Answer>, String> {
        let mut reader = Reader { bytes, at: 0, first: None, is_error: false };
        if !reader.value(0)? {
            return Ok(None);
        }
        let verdict = match self.0 {
            _ if reader.is_error => Verdict::Error,
            Meaning::Descriptor if bytes.starts_with(UNMATCHED) => Verdict::Unmatched,
            meaning => meaning.judge(reader.first),
        };
        Ok(Some(Answer { length: reader.at, verdict, is_last: false }))
    }

    fn describe(&self, answer: &[u8]) -> String {
        let text = answer.get(..answer.len().min(200)).unwrap_or_default();
        format!("the server answered {}", text.trim_ascii().escape_ascii())
    }
}

/// Walks over one answer.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The first number in the answer, if it starts with one.
    first: Option<i64>,
    is_error: bool,
}

impl Reader<'_> {
    /// Walks over a value; false if its end has not come yet.
    fn value(&mut self, depth: u32) -> Result<bool, String> {
        let Some(&kind) = self.bytes.get(self.at) else { return Ok(false) };
        let line_at = self.at + 1;
        let Some(end) = self.line_end(line_at)? else { return Ok(false) };
        let line = self.bytes.get(line_at..end).unwrap_or_default();
        self.at = end + 2;
        match kind {
            b':' => {
                let number = integer(line)?;
                if self.first.is_none() {
                    self.first = Some(number);
                }
                Ok(true)
            }
            b'-' => {
                self.is_error |= depth == 0;
                Ok(true)
            }
            b'+' | b'_' | b'#' | b',' | b'(' => Ok(true),
            b'$' | b'=' => self.skip(integer(line)?),
            b'!' => {
                self.is_error |= depth == 0;
                self.skip(integer(line)?)
            }
            b'*' | b'~' => self.values(integer(line)?, 1, depth),
            b'%' => self.values(integer(line)?, 2, depth),
            // Attributes precede the value they belong to; a push is a separate message.
            b'|' => Ok(self.values(integer(line)?, 2, depth)? && self.value(depth)?),
            b'>' => Err("the server pushed a message although there is no subscription".into()),
            other => Err(format!(
                "a reply starts with byte 0x{other:02x}, which is not a RESP type; is this a RESP \
                 server?"
            )),
        }
    }

    fn values(&mut self, count: i64, each: i64, depth: u32) -> Result<bool, String> {
        if depth >= DEEPEST {
            return Err(format!("a reply is nested more than {DEEPEST} deep"));
        }
        for _ in 0..count.saturating_mul(each) {
            if !self.value(depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Skips `length` bytes and a line end; a negative length is a null.
    fn skip(&mut self, length: i64) -> Result<bool, String> {
        let Ok(length) = usize::try_from(length) else { return Ok(true) };
        let end = self.at.saturating_add(length);
        match self.bytes.get(end..end.saturating_add(2)) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(true)
            }
            Some(_) => Err(format!("a string of length {length} is not followed by CR LF")),
            None => Ok(false),
        }
    }

    /// Returns where the line ends; nothing if its end has not come yet.
    fn line_end(&self, from: usize) -> Result<Option<usize>, String> {
        let rest = self.bytes.get(from..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\r') else { return Ok(None) };
        match rest.get(end + 1) {
            Some(b'\n') => Ok(Some(from + end)),
            Some(_) => Err("a line of a reply ends in \\r without \\n".into()),
            None => Ok(None),
        }
    }
}

fn integer(line: &[u8]) -> Result<i64, String> {
    if let [digit @ b'0'..=b'9'] = line {
        return Ok(i64::from(digit - b'0'));
    }
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("\"{}\" in a reply is not a number", line.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &[u8]) -> Result<Option<Answer>, String> {
        RespScan(Meaning::AllPass).scan(bytes)
    }

    fn found(length: usize, verdict: Verdict) -> Result<Option<Answer>, String> {
        Ok(Some(Answer { length, verdict, is_last: false }))
    }

    #[test]
    fn a_command_becomes_an_array_of_strings() {
        let mut out = Vec::new();
        encode("  INCR {key}", "k:").write(5, &mut out);
        assert_eq!(out, b"*2\r\n$4\r\nINCR\r\n$14\r\nk:000000000005\r\n");
    }

    #[test]
    fn answers_of_every_type_end_where_they_end_however_they_are_cut() {
        for answer in [
            "+OK\r\n",
            ":-12\r\n",
            "$5\r\na\r\nbc\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*5\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:1\r\n",
            "*2\r\n*1\r\n$2\r\nab\r\n:1\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "(12345678901234567890\r\n",
            "=7\r\ntxt:abc\r\n",
            "%1\r\n+k\r\n:1\r\n",
            "~2\r\n:1\r\n:2\r\n",
            "|1\r\n+ttl\r\n:5\r\n*1\r\n:1\r\n",
        ] {
            let bytes = answer.as_bytes();
            for cut in 0..bytes.len() {
                assert_eq!(scan(&bytes[..cut]), Ok(None), "{answer:?} cut at {cut}");
            }
            let followed = [bytes, b"+next\r\n"].concat();
            assert_eq!(scan(&followed), found(bytes.len(), Verdict::Allowed), "{answer:?}");
        }
    }

    #[test]
    fn answers_mean_what_their_command_says() {
        for (command, answer, expected) in [
            ("CL.THROTTLE", "*2\r\n:0\r\n:9\r\n", Verdict::Allowed),
            ("cl.throttle", "*2\r\n:1\r\n:9\r\n", Verdict::Denied),
            ("CL.THROTTLE", "*2\r\n:7\r\n:9\r\n", Verdict::Error),
            ("CL.THROTTLE", "+OK\r\n", Verdict::Error),
            ("THROTTLE", "*2\r\n:1\r\n:9\r\n", Verdict::Allowed),
            ("THROTTLE", "*2\r\n:0\r\n:9\r\n", Verdict::Denied),
            ("INCR", ":1\r\n", Verdict::Allowed),
            ("INCR", "-ERR no\r\n", Verdict::Error),
            ("INCR", "!6\r\nERR no\r\n", Verdict::Error),
        ] {
            let scanned = RespScan(Meaning::of_command(command)).scan(answer.as_bytes());
            assert_eq!(scanned, found(answer.len(), expected), "{command} {answer:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = "*1\r\n".repeat(20);
        for answer in
            ["HTTP/1.1 400\r\n", ":x\r\n", "$1\r\nabc\r\n", "+a\rb", ">1\r\n+x\r\n", &deep]
        {
            let error = scan(answer.as_bytes()).expect_err(answer);
            assert!(!error.contains("1 bytes"), "{error}");
        }
    }

    #[test]
    fn an_error_is_shown_in_words() {
        let text = RespScan(Meaning::AllPass).describe(b"-ERR unknown command\r\n");
        assert_eq!(text, "the server answered -ERR unknown command");
    }
}
