// SPDX-License-Identifier: BSD-2-Clause
//! yjit_young: arrays and tables of YJIT's that only grow, in two parts after a fork.
//!
//! Job: an array that must grow is copied, and an entry of a hash table goes to a random place, so that a forked
//! child that compiles would soon have copied all of both. Here what a child adds goes to a part of its own
//! (young_tables.h does the same for the VM's tables). A child of a child goes on in its parent's part; when a
//! process seals its heap it makes one of both parts, because from then on its children share what it has.
//!
//! Who writes this memory after a fork: a child writes its own part.

use crate::memory::Sum;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::mem;

/// Makes +own+ what was inherited and, after that, what it was.
fn merge_parts<C: Default + IntoIterator + Extend<C::Item>>(inherited: &mut C, own: &mut C) {
    let young = mem::replace(own, mem::take(inherited));
    own.extend(young);
}

/// An array to whose end values are added.
#[derive(Clone)]
pub struct YoungVec<T> {
    inherited: Vec<T>,
    own: Vec<T>,
}

impl<T: Copy> YoungVec<T> {
    pub fn with_capacity(capacity: usize) -> Self {
        Self { inherited: Vec::new(), own: Vec::with_capacity(capacity) }
    }

    /// Gives the value at +index+, which has to be there.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        let count = self.inherited.len();
        if index < count { self.inherited[index] } else { self.own[index - count] }
    }

    pub fn len(&self) -> usize {
        self.inherited.len() + self.own.len()
    }

    pub fn last(&self) -> Option<&T> {
        self.own.last().or_else(|| self.inherited.last())
    }

    /// Gives the last value, to be changed, unless it is inherited.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.own.last_mut()
    }

    /// Adds a value. The array grows by a fifth.
    pub fn push(&mut self, value: T) {
        if self.own.len() == self.own.capacity() {
            self.own.reserve_exact(self.own.len() / 5 + 64);
        }
        self.own.push(value);
    }

    /// Adds the bytes of the array to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        for part in [&self.inherited, &self.own] {
            sum.add(part.as_ptr(), part.capacity() * mem::size_of::<T>());
        }
    }

    /// Gives all values, and forgets them.
    pub fn take(&mut self) -> Vec<T> {
        self.merge();
        mem::take(&mut self.own)
    }

    /// Called in the child of a fork.
    pub fn inherit(&mut self) {
        if self.inherited.is_empty() {
            self.inherited = mem::take(&mut self.own);
        }
    }

    /// Gets the memory that merge needs. False: there is none.
    pub fn try_reserve(&mut self) -> bool {
        self.inherited.is_empty() || self.inherited.try_reserve_exact(self.own.len()).is_ok()
    }

    /// Makes one of both parts. Without try_reserve the process ends if there is no memory.
    pub fn merge(&mut self) {
        if !self.inherited.is_empty() {
            merge_parts(&mut self.inherited, &mut self.own);
        }
    }
}

/// Adds the bytes of a hash table, without what its entries own, to +sum+. Its address is private: that of an
/// entry has to do.
pub fn add_map_to<K, V>(map: &HashMap<K, V>, sum: &mut Sum) {
    if let Some(entry) = map.iter().next() {
        sum.add(entry.0, map.capacity() * 8 / 7 * (mem::size_of::<(K, V)>() + 1));
    }
}

/// Likewise of a set.
pub fn add_set_to<K>(set: &HashSet<K>, sum: &mut Sum) {
    if let Some(entry) = set.iter().next() {
        sum.add(entry, set.capacity() * 8 / 7 * (mem::size_of::<K>() + 1));
    }
}

/// A hash table to which entries are added.
pub struct YoungMap<K, V> {
    inherited: HashMap<K, V>,
    own: HashMap<K, V>,
}

/// Not derived: that would ask for a default of K and V, which pointers have since Rust 1.88 only.
impl<K, V> Default for YoungMap<K, V> {
    fn default() -> Self {
        YoungMap { inherited: HashMap::new(), own: HashMap::new() }
    }
}

impl<K: Eq + Hash, V: PartialEq> YoungMap<K, V> {
    pub fn get(&self, key: &K) -> Option<&V> {
        self.own.get(key).or_else(|| self.inherited.get(key))
    }

    /// Adds the bytes of the table to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        add_map_to(&self.inherited, sum);
        add_map_to(&self.own, sum);
    }

    /// Adds an entry, or changes it.
    pub fn insert(&mut self, key: K, value: V) {
        if self.inherited.get(&key) != Some(&value) || self.own.contains_key(&key) {
            self.own.insert(key, value);
        }
    }

    /// Called in the child of a fork.
    pub fn inherit(&mut self) {
        if self.inherited.is_empty() {
            self.inherited = mem::take(&mut self.own);
        }
    }

    /// Gets the memory that merge needs. False: there is none.
    pub fn try_reserve(&mut self) -> bool {
        self.inherited.is_empty() || self.inherited.try_reserve(self.own.len()).is_ok()
    }

    /// Makes one of both parts. Without try_reserve the process ends if there is no memory.
    pub fn merge(&mut self) {
        if !self.inherited.is_empty() {
            merge_parts(&mut self.inherited, &mut self.own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_in_two_parts() {
        let mut values = YoungVec::with_capacity(0);
        (0..10).for_each(|value| values.push(value));
        values.inherit();
        assert_eq!((values.len(), values.last()), (10, Some(&9)));
        assert_eq!(values.last_mut(), None);
        (10..300).for_each(|value| values.push(value));
        values.inherit(); // of the child of a child: nothing
        assert_eq!(values.last_mut(), Some(&mut 299));
        assert!((0..300).all(|index| values.get(index) == index));
        assert!(values.try_reserve());
        let place = values.inherited.as_ptr();
        values.merge();
        assert_eq!(values.own.as_ptr(), place, "the room that was asked for");
        values.push(300);
        assert!((0..301).all(|index| values.get(index) == index));
        values.inherit();
        values.push(301);
        assert_eq!(values.take(), (0..302).collect::<Vec<_>>());
        assert_eq!((values.len(), values.last()), (0, None));
    }

    #[test]
    fn a_table_in_two_parts() {
        let mut table = YoungMap::default();
        table.insert(1, "one");
        table.insert(2, "two");
        table.inherit();
        table.insert(2, "two");
        assert!(table.own.is_empty(), "nothing is added that is there");
        table.insert(2, "deux");
        table.insert(3, "three");
        fn look(table: &YoungMap<i32, &'static str>) -> [Option<&'static str>; 4] {
            [1, 2, 3, 4].map(|key| table.get(&key).copied())
        }
        assert_eq!(look(&table), [Some("one"), Some("deux"), Some("three"), None]);
        table.insert(2, "two");
        assert_eq!(table.get(&2), Some(&"two"));
        assert!(table.try_reserve());
        table.merge();
        assert_eq!(look(&table), [Some("one"), Some("two"), Some("three"), None]);
        assert!(table.inherited.is_empty());
    }
}
