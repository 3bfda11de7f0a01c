//! Items that are added in order and mostly removed in order, by number.

use std::collections::VecDeque;

/// Holds items by consecutive numbers; removed items take memory only while older ones stay.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Numbered<T> {
    pub(crate) const fn new() -> Self {
        Self { first: 0, places: VecDeque::new(), len: 0 }
    }

    /// Returns how many items there are.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Adds an item and returns its number.
    pub(crate) fn add(&mut self, it: T) -> u64 {
        self.places.push_back(Some(it));
        self.len += 1;
        self.first + self.places.len() as u64 - 1
    }

    fn place(&mut self, number: u64) -> Option<&mut Option<T>> {
        self.places.get_mut(number.checked_sub(self.first)? as usize)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.place(number)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let it = self.place(number)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        Some(it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_whatever_goes() {
        let mut things = Numbered::new();
        let numbers: Vec<_> = "abc".chars().map(|it| things.add(it)).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!((things.remove(1), things.places.len()), (Some('b'), 3));
        assert_eq!((things.remove(0), things.places.len()), (Some('a'), 1));
        assert_eq!((things.remove(0), things.remove(1), things.get_mut(9)), (None, None, None));
        assert_eq!((things.add('d'), things.get_mut(2).copied()), (3, Some('c')));
        assert_eq!(things.len(), 2);
    }
}
