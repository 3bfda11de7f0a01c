//! A list that does without an allocation as long as it is short.

/// Up to sixteen values in place, more on the heap.
#[derive(Debug)]
pub(crate) struct InlineVec<T, R = [Option<T>; INLINE]> {
    inline: R,
    len: usize,
    heap: Vec<Option<T>>,
}

/// Two states for each of eight limits.
const INLINE: usize = 16;

/// An [`InlineVec`] in room that the caller lends: small itself, where moving the values would cost
/// more than what is done with them.
pub(crate) type BorrowedVec<'r, T> = InlineVec<T, &'r mut [Option<T>]>;

impl<T> InlineVec<T> {
    pub(crate) const fn new() -> Self {
        Self::within([const { None }; INLINE])
    }
}

impl<T, R> InlineVec<T, R> {
    /// Returns an empty list in `room`, which holds nothing.
    #[inline]
    pub(crate) const fn within(inline: R) -> Self {
        Self { inline, len: 0, heap: Vec::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

impl<T, R: AsRef<[Option<T>]> + AsMut<[Option<T>]>> InlineVec<T, R> {
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        match self.inline.as_mut().get_mut(self.len) {
            Some(place) => *place = Some(value),
            None => self.push_to_heap(value),
        }
        self.len += 1;
    }

    #[cold]
    fn push_to_heap(&mut self, value: T) {
        if self.heap.is_empty() {
            self.heap.extend(self.inline.as_mut().iter_mut().map(Option::take));
        }
        self.heap.push(Some(value));
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.slice().get(index)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slice_mut().get_mut(index)?.as_mut()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.slice().last()?.as_ref()
    }

    fn slice(&self) -> &[Option<T>] {
        self.inline.as_ref().get(..self.len).unwrap_or(&self.heap)
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [Option<T>] {
        self.inline.as_mut().get_mut(..self.len).unwrap_or(&mut self.heap)
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
        self.heap.clear();
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
            let mut lent = BorrowedVec::within(&mut room);
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
