//! How the quota of a policy has changed, as all processes are told.

use super::super::seen::numbers;
use tollgate::{Inherit, store::StoreError};

/// One change of a policy's quota.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    /// Microseconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) how: Inherit,
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

impl Change {
    /// Returns all but the time, which is the server's.
    pub(super) fn encode(how: Inherit, from: &[u8], to: &[u8]) -> Result<Vec<u8>, StoreError> {
        let code = match how {
            Inherit::Reset => 0,
            Inherit::AsIs => 1,
            Inherit::Proportional => 2,
            Inherit::Additive => 3,
            other => {
                return Err(StoreError::invalid(format!("{other:?} is unknown to this store")));
            }
        };
        // Tags are three numbers of at most ten bytes.
        let lengths = [from.len() as u8, to.len() as u8];
        Ok([&[code, lengths[0], lengths[1]], from, to].concat())
    }

    fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let (time, rest) = bytes.split_at_checked(8)?;
        let [at] = numbers(time)?;
        let [code, from_length, to_length, rest @ ..] = rest else { return None };
        let (from, rest) = rest.split_at_checked(usize::from(*from_length))?;
        let (to, rest) = rest.split_at_checked(usize::from(*to_length))?;
        let how = match code {
            0 => Inherit::Reset,
            1 => Inherit::AsIs,
            2 => Inherit::Proportional,
            _ => Inherit::Additive,
        };
        *bytes = rest;
        Some(Self { at, how, from: from.to_vec(), to: to.to_vec() })
    }

    pub(super) fn parse_all(mut bytes: &[u8]) -> Vec<Self> {
        std::iter::from_fn(|| Self::parse(&mut bytes)).collect()
    }

    /// Returns the changes that lead from one quota to another, latest last, and the way; one that
    /// keeps what is left, as of `now`, if they are not known.
    pub(super) fn path(known: &[Self], from: &[u8], to: &[u8], now: u64) -> (Vec<Self>, Way) {
        if let Some(path) = Self::path_on(known, from, to) {
            return (path, Way::On);
        }
        if let Some(path) = Self::path_on(known, to, from) {
            return (path.iter().rev().map(|it| it.reversed(now)).collect(), Way::Back);
        }
        let as_is = Self { at: now, how: Inherit::AsIs, from: from.to_vec(), to: to.to_vec() };
        (vec![as_is], Way::On)
    }

    fn path_on(known: &[Self], from: &[u8], to: &[u8]) -> Option<Vec<Self>> {
        // Backwards from the latest change to `to`.
        let (mut path, mut target) = (Vec::new(), to);
        for change in known.iter().rev() {
            if change.to == target {
                path.push(change.clone());
                target = &change.from;
                if target == from {
                    path.reverse();
                    return Some(path);
                }
            }
        }
        None
    }

    /// Returns the way back.
    fn reversed(&self, now: u64) -> Self {
        let Self { from, to, .. } = self.clone();
        Self { from: to, to: from, ..self.again(now) }
    }

    /// Returns the change for a state that has seen it already.
    pub(super) fn again(&self, now: u64) -> Self {
        let how = if self.how == Inherit::Reset { Inherit::AsIs } else { self.how };
        Self { at: now, how, ..self.clone() }
    }
}

/// Which way a state is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It was closed, and nobody carried it over.
    Here,
    /// To a newer quota, or to one of which nothing is known.
    On,
    /// To the quota it had before a change.
    Back,
}

impl Way {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::On => "on",
            Self::Back => "back",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_written() {
        let encoded = Change::encode(Inherit::Additive, b"old", b"new one").unwrap();
        let one = [&5.0_f64.to_le_bytes()[..], &encoded].concat();
        let two = [one.clone(), one].concat();
        let expected =
            Change { at: 5, how: Inherit::Additive, from: b"old".into(), to: b"new one".into() };
        assert_eq!(Change::parse_all(&two), [expected.clone(), expected]);
        assert_eq!(Change::parse_all(&two[..two.len() - 1]).len(), 1, "cut off");
    }

    #[test]
    fn a_path_leads_through_all_changes() {
        let change = |from: &str, to: &str, at| Change {
            at,
            how: Inherit::Proportional,
            from: from.into(),
            to: to.into(),
        };
        let known = [change("a", "b", 1), change("x", "y", 2), change("b", "c", 3)];
        let ats = |from: &[u8], to: &[u8]| -> Vec<_> {
            Change::path(&known, from, to, 9).0.iter().map(|it| it.at).collect()
        };
        assert_eq!(ats(b"a", b"c"), [1, 3]);
        assert_eq!(ats(b"b", b"c"), [3]);
        assert_eq!(ats(b"z", b"c"), [9], "an unknown way is taken now");
        let (back, way) = Change::path(&known, b"c", b"a", 9);
        assert_eq!((back, way), (vec![change("c", "b", 9), change("b", "a", 9)], Way::Back));
    }
}
