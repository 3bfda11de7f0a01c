//! The head of a snapshot: how to read its records.

use super::error::Kind;

/// By which seed and clock the records of a snapshot were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// How keys became fingerprints.
    pub(crate) scheme: String,
    /// What [`seed_check`](super::seed_check) says of the seed.
    pub(crate) seed_check: u64,
    /// Wall time of the snapshot in nanoseconds since the Unix epoch.
    pub(crate) wall_ns: u64,
}

impl Head {
    /// Returns the variable part of the head.
    pub(super) fn encode(&self) -> Result<Vec<u8>, Kind> {
        let mut body = Vec::new();
        body.extend(self.seed_check.to_le_bytes());
        body.extend(self.wall_ns.to_le_bytes());
        push_text(&mut body, &self.scheme)?;
        Ok(body)
    }

    /// Reads the variable part of a head, or tells at which byte of it there is what wrong.
    pub(super) fn decode(body: &[u8]) -> Result<Self, (u64, &'static str)> {
        let mut rest = body;
        Self::take(&mut rest)
            .and_then(|head| if rest.is_empty() { Ok(head) } else { Err("bytes after the head") })
            // OVERFLOW: rest is a suffix of body.
            .map_err(|why| ((body.len() - rest.len()) as u64, why))
    }

    fn take(rest: &mut &[u8]) -> Result<Self, &'static str> {
        let seed_check = u64::from_le_bytes(take_bytes(rest)?);
        let wall_ns = u64::from_le_bytes(take_bytes(rest)?);
        let scheme = take_text(rest)?;
        Ok(Self { scheme, seed_check, wall_ns })
    }
}

fn push_text(body: &mut Vec<u8>, text: &str) -> Result<(), Kind> {
    let length = u16::try_from(text.len()).map_err(|_| Kind::Unfit {
        what: format!("a text of {} bytes", text.len()),
        bound: "a scheme may have 65535",
    })?;
    body.extend(length.to_le_bytes());
    body.extend(text.as_bytes());
    Ok(())
}

/// Takes a number's bytes from the front.
pub(super) fn take_bytes<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (bytes, after) = rest.split_first_chunk().ok_or("a number is cut off")?;
    *rest = after;
    Ok(*bytes)
}

fn take_text(rest: &mut &[u8]) -> Result<String, &'static str> {
    let length = usize::from(u16::from_le_bytes(take_bytes(rest)?));
    let (bytes, after) = rest.split_at_checked(length).ok_or("a text is cut off")?;
    let text = std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")?;
    *rest = after;
    Ok(text.to_owned())
}
