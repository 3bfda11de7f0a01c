//! A list whose items have rising places, all of which can be lowered from some item on.
//!
//! # The idea
//!
//! A Fenwick tree holds, for each item, by how much it and all younger ones were lowered. The place
//! of an item is what it was when it came, less the sum of the tree up to there. So lowering a
//! hundred thousand places is one addition in the tree, and reading one is one sum.
//!
//! ```text
//! place(i) = base(i) - (lowered(0) + .. + lowered(i))        not below zero
//! ```
//!
//! Lowering step by step, each time not below zero, comes to the same as lowering by the sum once.
//!
//! # Cost
//!
//! Every operation is O(log n). A removed item stays as a tombstone, because what was lowered there
//! still counts for younger ones. When there are more tombstones than items, the list is rebuilt:
//! O(n), at most once in n / 2 removals. Memory is in proportion to the items.
//!
//! Source: Fenwick, "A new data structure for cumulative frequency tables", 1994. Departures: (1) the
//! tree grows and shrinks at its end; (2) sums are subtracted from what the items bring.

/// Places lie below this, and so does what they are lowered by in all before a rebuild: their sum
/// fits a word.
const BOUND: u64 = 1 << 63;

/// The list. An item has an id for life, and an index that holds until the next removal.
#[derive(Debug, Default)]
pub(crate) struct FenwickList {
    items: Vec<Item>,
    /// Ids of the items, which rise: apart from them, so that a search reads little memory.
    ids: Vec<u64>,
    next_id: u64,
    /// Node n (from one) has the sum of what was lowered at the `n & -n` items that end with the nth.
    tree: Vec<u64>,
    /// INVARIANT: the sum of what was lowered at all items.
    total: u64,
    /// Index of the oldest item that is no tombstone. INVARIANT: the youngest is none either.
    first: usize,
    /// Items that are no tombstones.
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    base: u64,
    value: u64,
    is_removed: bool,
}

/// Returns how many items a node of the tree covers.
const fn covered(node: usize) -> usize {
    node & node.wrapping_neg()
}

impl FenwickList {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there is far more memory than items. What 256 items take stays, so that small
    /// lists that fill and empty again and again ask for no memory.
    const fn is_roomy(&self) -> bool {
        self.items.capacity() > 4 * self.len + 256
    }

    /// Returns the index of the oldest item.
    pub(crate) fn first(&self) -> Option<usize> {
        (self.len > 0).then_some(self.first)
    }

    /// Returns the index of the youngest item.
    pub(crate) fn last(&self) -> Option<usize> {
        self.items.len().checked_sub(1)
    }

    /// Returns the indices of all items, the oldest first.
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> {
        (self.first..self.items.len()).filter(|index| !self.items[*index].is_removed)
    }

    pub(crate) fn place(&self, index: usize) -> u64 {
        self.items[index].base.saturating_sub(self.lowered(index + 1))
    }

    /// Moves an item to a place between its neighbours.
    pub(crate) fn set_place(&mut self, index: usize, place: u64) {
        self.items[index].base = place + self.lowered(index + 1);
    }

    pub(crate) fn value(&self, index: usize) -> u64 {
        self.items[index].value
    }

    pub(crate) fn set_value(&mut self, index: usize, value: u64) {
        self.items[index].value = value;
    }

    /// Gives ids not below `first` from now on.
    pub(crate) fn skip_ids(&mut self, first: u64) {
        self.next_id = self.next_id.max(first);
    }

    /// Asks for the memory that a queue of a dozen ever needs, at once.
    pub(crate) fn warm_up(&mut self) {
        if self.items.capacity() == 0 {
            self.items.reserve(64);
            self.ids.reserve(64);
            self.tree.reserve(64);
        }
    }

    /// Adds an item, whose place lies behind all others, and returns its id.
    pub(crate) fn push(&mut self, place: u64, value: u64) -> u64 {
        debug_assert!(place < BOUND, "{place} is no place");
        // OVERFLOW: both are at most the bound, and the place is below.
        let base = place.min(BOUND - 1) + self.total;
        self.items.push(Item { base, value, is_removed: false });
        self.tree.push(self.below(self.items.len()));
        self.ids.push(self.next_id);
        self.len += 1;
        self.next_id += 1;
        self.next_id - 1
    }

    /// Removes an item. Other items may have another index afterwards.
    pub(crate) fn remove(&mut self, index: usize) -> u64 {
        let Item { value, is_removed, .. } = self.items[index];
        debug_assert!(!is_removed, "an item is removed once");
        self.items[index].is_removed = true;
        self.len -= 1;
        if self.len == 0 {
            self.clear();
        }
        while self.items.last().is_some_and(|last| last.is_removed) {
            let node = self.items.len();
            self.total -= self.tree[node - 1] - self.below(node);
            self.items.pop();
            self.ids.pop();
            self.tree.pop();
        }
        while self.items.get(self.first).is_some_and(|item| item.is_removed) {
            self.first += 1;
        }
        if self.items.len() > 2 * self.len + 16 || self.is_roomy() {
            self.rebuild();
        }
        value
    }

    /// Lowers the places of the item at `index` and of all younger ones, though not below zero.
    pub(crate) fn lower_from(&mut self, index: usize, by: u64) {
        // Whatever is lowered by so much is at zero.
        let by = by.min(BOUND);
        if self.total > BOUND - by {
            return self.lower_rebuilt(index, by);
        }
        if index < self.items.len() {
            self.total += by;
        }
        let mut node = index + 1;
        while let Some(sum) = self.tree.get_mut(node - 1) {
            *sum += by;
            node += covered(node);
        }
    }

    /// Returns the index of the first item whose place lies behind `place`, or of the first tombstone there or behind: what
    /// was removed came behind, and has to move with those behind it, or places would no longer rise.
    pub(crate) fn first_behind(&self, place: u64) -> usize {
        let (mut node, mut lowered) = (0, 0);
        let mut step = (self.items.len() + 1).next_power_of_two() / 2;
        while step > 0 {
            let next = node + step;
            if let Some(item) = self.items.get(next - 1)
                && item.base.saturating_sub(lowered + self.tree[next - 1])
                    + u64::from(item.is_removed)
                    <= place
            {
                lowered += self.tree[next - 1];
                node = next;
            }
            step /= 2;
        }
        node
    }

    /// Returns the index of an item, unless it is removed.
    pub(crate) fn index_of(&self, id: u64) -> Option<usize> {
        let index = self.first_from(id);
        let is_here = self.ids.get(index) == Some(&id) && !self.items[index].is_removed;
        is_here.then_some(index)
    }

    /// Returns the index of the first item whose id is not below `id`, tombstones included.
    pub(crate) fn first_from(&self, id: u64) -> usize {
        self.ids.partition_point(|known| *known < id)
    }

    /// Gives every item another place and value, in the same order; drops all of them if one has none.
    pub(crate) fn change_each(&mut self, change: impl Fn(u64, u64) -> Option<(u64, u64)>) {
        self.rebuild();
        for index in 0..self.items.len() {
            let item = &mut self.items[index];
            match change(item.base, item.value) {
                Some(changed) => (item.base, item.value) = changed,
                None => return self.clear(),
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.ids.clear();
        self.tree.clear();
        (self.total, self.first, self.len) = (0, 0, 0);
    }

    /// Returns by how much the item before `node` was lowered: the sum of the tree up to there.
    fn lowered(&self, mut node: usize) -> u64 {
        let mut sum = 0;
        while node > 0 {
            sum += self.tree[node - 1];
            node -= covered(node);
        }
        sum
    }

    /// Returns the part of a node that comes from the nodes below it, all but its last item.
    fn below(&self, node: usize) -> u64 {
        let (mut child, mut sum) = (node - 1, 0);
        while child > node - covered(node) {
            sum += self.tree[child - 1];
            child -= covered(child);
        }
        sum
    }

    /// Drops all tombstones and begins anew with the places as they are.
    fn rebuild(&mut self) {
        // Building a tree adds each node to its parent, the first one first; this takes it back.
        for node in (1..=self.tree.len()).rev() {
            let (own, parent) = (self.tree[node - 1], node + covered(node));
            if let Some(sum) = self.tree.get_mut(parent - 1) {
                *sum -= own;
            }
        }
        let mut lowered = 0;
        for (item, own) in self.items.iter_mut().zip(&self.tree) {
            lowered += own;
            item.base = item.base.saturating_sub(lowered);
        }
        let mut items = self.items.iter();
        self.ids.retain(|_| items.next().is_some_and(|item| !item.is_removed));
        self.items.retain(|item| !item.is_removed);
        self.tree.clear();
        self.tree.resize(self.items.len(), 0);
        if self.is_roomy() {
            self.items.shrink_to(2 * self.len);
            self.ids.shrink_to(2 * self.len);
            self.tree.shrink_to(2 * self.len);
        }
        (self.total, self.first) = (0, 0);
    }

    /// [`lower_from`](Self::lower_from) where the sums would overflow.
    #[cold]
    fn lower_rebuilt(&mut self, index: usize, by: u64) {
        let kept = self.items.iter().take(index).filter(|item| !item.is_removed).count();
        self.rebuild();
        self.lower_from(kept, by);
    }
}

#[cfg(test)]
impl FenwickList {
    /// Returns for how many items there is memory.
    pub(super) const fn room(&self) -> usize {
        self.items.capacity()
    }

    pub(super) const fn next_id(&self) -> u64 {
        self.next_id
    }
}
