// SPDX-License-Identifier: BSD-2-Clause
//! yjit_word: words of YJIT's data that a forked child changes without writing them.
//!
//! Job: a child that compiles what an inherited branch leads to changes a word of the branch, one of the block
//! that it now leads to, and one of the iseq, each in an OS page of its own. Here the child writes down
//! what such a word is now in a table of its own, by the address of the word, and leaves the word as it is. When
//! it seals its own heap it writes the words.
//!
//! Who writes this memory after a fork: a child, its table.

use crate::memory::{inherited, Sum};
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;

/// A word that can be changed. It must not be moved once it lies where a child may inherit it.
#[derive(Default)]
pub struct Word(Cell<usize>);

/// Gives a hash of an address, whose high bits are the better ones (Fibonacci hashing: Knuth, volume 3, 6.4).
pub fn hash(address: usize) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// For a table, which looks at the low bits first.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("an address is hashed as a word");
    }

    fn write_usize(&mut self, address: usize) {
        self.0 = hash(address).rotate_left(32);
    }
}

type Table = HashMap<usize, usize, BuildHasherDefault<AddressHasher>>;

/// What inherited words are now, by their address. Cargo's tests have a table for each thread.
#[cfg(not(test))]
fn changed() -> &'static mut Option<Table> {
    static mut CHANGED: Option<Table> = None;
    // SAFETY: with the VM lock, or where no other thread runs; no caller keeps the reference
    unsafe { &mut *std::ptr::addr_of_mut!(CHANGED) }
}

#[cfg(test)]
fn changed() -> &'static mut Option<Table> {
    thread_local!(static CHANGED: Cell<*mut Option<Table>> = Cell::new(Box::into_raw(Box::default())));
    unsafe { &mut *CHANGED.with(Cell::get) }
}

impl Word {
    fn address(&self) -> usize {
        self as *const Self as usize
    }

    pub fn get(&self) -> usize {
        changed().as_ref().and_then(|table| table.get(&self.address()).copied()).unwrap_or(self.0.get())
    }

    pub fn set(&self, value: usize) {
        self.set_if(value, || inherited(self));
    }

    /// Changes the word; in the table, if it is there already or +is_inherited+ says so.
    fn set_if(&self, value: usize, is_inherited: impl FnOnce() -> bool) {
        if self.get() == value {
            return;
        }
        let table = changed();
        if let Some(entry) = table.as_mut().and_then(|table| table.get_mut(&self.address())) {
            *entry = value;
        } else if is_inherited() {
            table.get_or_insert_with(Table::default).insert(self.address(), value);
        } else {
            self.0.set(value);
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        if let Some(table) = changed() {
            table.remove(&self.address());
        }
    }
}

/// Writes all words that are in the table. Called before a process seals its heap.
pub fn merge() {
    for (address, value) in changed().take().into_iter().flatten() {
        // SAFETY: a word that is dropped is not in the table
        unsafe { &*(address as *const Word) }.0.set(value);
    }
}

/// Gives what the table holds.
pub fn sum() -> Sum {
    let mut sum = Sum::default();
    if let Some((table, entry)) = changed().as_ref().and_then(|table| Some((table, table.iter().next()?))) {
        sum.add(entry.0, table.capacity() * 8 / 7 * (mem::size_of::<(usize, usize)>() + 1));
        sum.count = table.len();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inherited_word_is_written_when_the_table_is_merged() {
        let words: Vec<Word> = (0..100).map(|value| Word(Cell::new(value))).collect();
        for (value, word) in words.iter().enumerate() {
            word.set_if(value, || panic!("it is that already"));
            word.set_if(value + 1000, || value % 2 == 0);
            assert_eq!((word.get(), word.0.get()), (value + 1000, if value % 2 == 0 { value } else { value + 1000 }));
            word.set_if(value + 2000, || false);
            assert_eq!(word.get(), value + 2000);
        }
        assert_eq!(changed().as_ref().unwrap().len(), 50);
        merge();
        assert!(changed().is_none());
        assert!(words.iter().enumerate().all(|(value, word)| word.0.get() == value + 2000));
    }

    #[test]
    fn a_dropped_word_is_not_in_the_table() {
        let word = Box::new(Word::default());
        word.set_if(1, || true);
        drop(word);
        assert_eq!(changed().as_ref().unwrap().len(), 0);
        merge();
    }
}
