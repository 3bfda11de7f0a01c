//! A list that does without an allocation as long as it is short.

/// Up to sixteen values in place, more on the heap.
#[derive(Debug)]
pub(crate) struct InlineVec<T> {
    short: [Option<T>; SHORT],
    len: usize,
    long: Vec<Option<T>>,
}

/// Two states for each of eight limits.
const SHORT: usize = 16;

impl<T> InlineVec<T> {
    pub(crate) const fn new() -> Self {
        Self { short: [const { None }; SHORT], len: 0, long: Vec::new() }
    }

    pub(crate) fn push(&mut self, value: T) {
        if self.len == SHORT {
            self.long.extend(self.short.iter_mut().map(Option::take));
        }
        if self.len < SHORT {
            self.short[self.len] = Some(value);
        } else {
            self.long.push(Some(value));
        }
        self.len += 1;
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    fn slice(&self) -> &[Option<T>] {
        if self.len <= SHORT { &self.short[..self.len] } else { &self.long }
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [Option<T>] {
        if self.len <= SHORT { &mut self.short[..self.len] } else { &mut self.long }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.slice().iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slice_mut().iter_mut().flatten()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.slice().get(index)?.as_ref()
    }
}

/// As [`InlineVec`], in room that somebody lends: small itself, where moving the values would cost more
/// than what is done with them.
#[derive(Debug)]
pub(crate) struct BorrowedVec<'r, T> {
    room: &'r mut [Option<T>],
    len: usize,
    long: Vec<Option<T>>,
}

impl<'r, T> BorrowedVec<'r, T> {
    /// Returns an empty list. The room is empty as well.
    #[inline]
    pub(crate) const fn new(room: &'r mut [Option<T>]) -> Self {
        Self { room, len: 0, long: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        match self.room.get_mut(self.len) {
            Some(place) => *place = Some(value),
            None => self.push_long(value),
        }
        self.len += 1;
    }

    #[cold]
    fn push_long(&mut self, value: T) {
        if self.long.is_empty() {
            self.long.extend(self.room.iter_mut().map(Option::take));
        }
        self.long.push(Some(value));
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.slice().last()?.as_ref()
    }

    fn slice(&self) -> &[Option<T>] {
        self.room.get(..self.len).unwrap_or(&self.long)
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [Option<T>] {
        self.room.get_mut(..self.len).unwrap_or(&mut self.long)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.slice().iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slice_mut().iter_mut().flatten()
    }

    pub(crate) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        self.slice_mut().sort_unstable_by_key(|value| value.as_ref().map(&key));
    }

    /// Drops all values.
    pub(crate) fn clear(&mut self) {
        self.slice_mut().fill_with(|| None);
        self.long.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_values_when_it_moves_to_the_heap() {
        for count in [0, 1, 15, 16, 17, 64] {
            let mut few = InlineVec::new();
            (0..count).for_each(|value| few.push(value));
            assert!(few.iter().copied().eq(0..count), "{count}");
            assert_eq!(few.get(0), (count > 0).then_some(&0));
        }
    }

    #[test]
    fn outgrows_what_it_was_lent() {
        for (room, count) in [(0, 2), (3, 0), (3, 3), (3, 4), (3, 64)] {
            let mut room = vec![None; room];
            let mut lent = BorrowedVec::new(&mut room);
            (0..count).rev().for_each(|value| lent.push(value));
            lent.sort_by_key(|value| *value);
            lent.iter_mut().for_each(|value| *value += 1);
            assert!(lent.iter().copied().eq(1..=count), "{count}");
            lent.clear();
            assert_eq!(lent.iter().count(), 0);
            (0..=count).for_each(|value| lent.push(value));
            assert!(lent.iter().copied().eq(0..=count), "{count}, again");
            lent.clear();
            assert!(room.iter().all(Option::is_none));
        }
    }
}
