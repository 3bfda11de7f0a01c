//! The query of an address.

/// The parameters of a query, decoded. Values are bytes: keys need not be text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, Vec<u8>)>);

/// The most parameters of a query.
const MOST: usize = 64;

impl Query {
    /// Parses a query.
    ///
    /// # Errors
    ///
    /// When it is not a valid query; the text names the mistake.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if all.len() == MOST {
                return Err(format!("a query can have at most {MOST} parameters; use fewer"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decoded(name, true)?).into_owned();
            all.push((name, decoded(value, true)?));
        }
        Ok(Self(all))
    }

    /// Rejects unknown parameters: a misspelled name would otherwise be silently ignored.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), String> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) if known.is_empty() => {
                Err(format!("there is no parameter \"{}\"; this path takes none", short(name)))
            }
            Some((name, _)) => {
                Err(format!("there is no parameter \"{}\"; use {}", short(name), known.join(", ")))
            }
        }
    }

    /// Returns all values of a parameter.
    pub(super) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    /// Returns the value of a parameter as text, if it is there.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, String> {
        let mut values = self.all(name);
        let first = values.next();
        if values.next().is_some() {
            return Err(format!("\"{name}\" is given twice; give it once"));
        }
        match first.map(std::str::from_utf8) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(format!("the value of \"{name}\" is not UTF-8")),
        }
    }

    /// Returns the value of a parameter as a number up to `most`, or the default.
    pub(super) fn number(&self, name: &str, default: u64, most: u64) -> Result<u64, String> {
        let Some(text) = self.text(name)? else { return Ok(default) };
        match text.parse() {
            Ok(number) if number <= most => Ok(number),
            _ => Err(format!("{name}={} is not a number from 0 to {most}", short(text))),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Decodes `%20` and, in a query, `+`.
pub(super) fn decoded(text: &str, is_query: bool) -> Result<Vec<u8>, String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' if is_query => out.push(b' '),
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                // OVERFLOW: two hexadecimal digits are below 256.
                (Some(high), Some(low)) => out.push((high << 4 | low) as u8),
                _ => {
                    let text = short(text);
                    return Err(format!(
                        "\"{text}\" has a % without two hexadecimal digits; write %25 for %"
                    ));
                }
            },
            byte => out.push(byte),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_queries_apart() {
        let query = Query::parse("policy=per+ip&key=a%2Fb&key=%ff&n=7&&flag").unwrap();
        assert_eq!(query.text("policy"), Ok(Some("per ip")));
        assert_eq!(query.all("key").collect::<Vec<_>>(), [&b"a/b"[..], b"\xff"]);
        assert_eq!(query.number("n", 1, 10), Ok(7));
        assert_eq!(query.number("m", 1, 10), Ok(1));
        assert_eq!(query.text("flag"), Ok(Some("")));
        assert_eq!(query.only(&["policy", "key", "n", "flag"]), Ok(()));
        for (row, wrong) in [
            query.text("key").map(|_| ()),
            query.number("n", 1, 6).map(|_| ()),
            query.only(&["policy"]),
            Query::parse("a=%2").map(|_| ()),
            Query::parse("a=%zz").map(|_| ()),
            Query::parse(&"a&".repeat(65)).map(|_| ()),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(wrong.is_err(), "row {row}");
        }
    }
}
