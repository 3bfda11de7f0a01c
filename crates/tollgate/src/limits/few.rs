//! A list that does without an allocation as long as it is short.

/// Up to sixteen values in place, more on the heap.
#[derive(Debug)]
pub(crate) struct Few<T> {
    short: [Option<T>; SHORT],
    len: usize,
    long: Vec<Option<T>>,
}

/// Two states for each of eight limits.
const SHORT: usize = 16;

impl<T> Few<T> {
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

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.slice().get(index)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slice_mut().get_mut(index)?.as_mut()
    }
}

impl<T: Ord> Few<T> {
    pub(crate) fn sort(&mut self) {
        self.slice_mut().sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_values_when_it_moves_to_the_heap() {
        for count in [0, 1, 15, 16, 17, 64] {
            let mut few = Few::new();
            (0..count).rev().for_each(|value| few.push(value));
            few.sort();
            assert!(few.iter().copied().eq(0..count), "{count}");
            assert_eq!(few.get(0), (count > 0).then_some(&0));
        }
    }
}
