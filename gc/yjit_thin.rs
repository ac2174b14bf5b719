// SPDX-License-Identifier: BSD-2-Clause
//! yjit_thin: the short arrays of a block, in a word each.
//!
//! Job: upstream has 16 bytes in a block for each of its arrays, of which most are empty or have one element.
//! A word here is 0, or the address of the only branch, or that of an array with the number of its elements in
//! front.
//!
//! Who writes this memory after a fork: a child that links a branch to an inherited block, and one that
//! invalidates it.

use super::BranchRef;
use crate::memory::Sum;
use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::cell::Cell;
use std::marker::PhantomData;
use std::{fmt, mem, ptr, slice};

/// An array of fixed length. Elements need no cleanup and an alignment of at most 8.
pub struct ThinSlice<T> {
    head: *mut usize, // the length, followed by the elements; null: there are none
    elements: PhantomData<T>,
}

impl<T> ThinSlice<T> {
    fn layout(length: usize) -> Layout {
        assert!(mem::align_of::<T>() <= mem::align_of::<usize>() && !mem::needs_drop::<T>());
        Layout::from_size_align(mem::size_of::<usize>() + length * mem::size_of::<T>(), mem::align_of::<usize>())
            .expect("an array fits into memory")
    }

    pub fn new(values: Vec<T>) -> Self {
        let mut head = ptr::null_mut();
        if !values.is_empty() {
            let layout = Self::layout(values.len());
            // SAFETY: the layout is not empty, and has room for the length and the values
            unsafe {
                head = alloc(layout).cast::<usize>();
                if head.is_null() {
                    handle_alloc_error(layout);
                }
                head.write(values.len());
                ptr::copy_nonoverlapping(values.as_ptr(), head.add(1).cast(), values.len());
            }
        }
        Self { head, elements: PhantomData }
    }

    pub fn as_slice(&self) -> &[T] {
        if self.head.is_null() {
            return &[];
        }
        // SAFETY: new has made it
        unsafe { slice::from_raw_parts(self.head.add(1).cast(), self.head.read()) }
    }

    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.as_slice().iter()
    }

    /// Adds the bytes of the array to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        if !self.head.is_null() {
            sum.add(self.head, Self::layout(self.as_slice().len()).size());
        }
    }
}

impl<T> Drop for ThinSlice<T> {
    fn drop(&mut self) {
        if !self.head.is_null() {
            // SAFETY: new has made it, with this layout
            unsafe { dealloc(self.head.cast(), Self::layout(self.head.read())) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ThinSlice<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(formatter)
    }
}

/// The lowest bit of a word that is the address of an array.
const ARRAY: usize = 1;

/// A list of branches that can be changed. Adding one takes time with its length; most have a few.
#[derive(Default)]
pub struct BranchList(Cell<usize>);

impl BranchList {
    pub fn new(branches: Vec<BranchRef>) -> Self {
        let list = Self::default();
        list.set(branches);
        list
    }

    /// Gives the array, which has more than one branch, unless there is none.
    fn array(&self) -> Option<mem::ManuallyDrop<ThinSlice<BranchRef>>> {
        let word = self.0.get();
        let head = (word & !ARRAY) as *mut usize;
        (word & ARRAY != 0).then(|| mem::ManuallyDrop::new(ThinSlice { head, elements: PhantomData }))
    }

    /// Calls +f+ with each branch. Writes nothing: what the GC stored here it would copy in each forked child.
    /// If +f+ changes the list, it is called for the branches that were there.
    pub fn for_each(&self, f: impl FnMut(BranchRef)) {
        self.to_vec().into_iter().for_each(f);
    }

    /// Likewise, without a copy.
    ///
    /// # Safety
    ///
    /// `f` must not modify the list.
    pub unsafe fn for_each_in_place(&self, mut f: impl FnMut(BranchRef)) {
        match self.array() {
            Some(array) => array.iter().copied().for_each(f),
            None => if let Some(branch) = BranchRef::new(self.0.get() as *mut _) { f(branch) },
        }
    }

    pub fn to_vec(&self) -> Vec<BranchRef> {
        match self.array() {
            Some(array) => array.as_slice().to_vec(),
            None => BranchRef::new(self.0.get() as *mut _).into_iter().collect(),
        }
    }

    pub fn last(&self) -> Option<BranchRef> {
        match self.array() {
            Some(array) => array.as_slice().last().copied(),
            None => BranchRef::new(self.0.get() as *mut _),
        }
    }

    pub fn len(&self) -> usize {
        self.array().map_or((self.0.get() != 0) as usize, |array| array.as_slice().len())
    }

    pub fn push(&self, branch: BranchRef) {
        let mut branches = self.to_vec();
        branches.push(branch);
        self.set(branches);
    }

    /// Removes a branch, if it is there.
    pub fn remove(&self, branch: BranchRef) {
        let mut branches = self.to_vec();
        let length = branches.len();
        branches.retain(|other| *other != branch);
        if branches.len() < length {
            self.set(branches);
        }
    }

    /// Empties the list. Gives what was in it.
    pub fn take(&self) -> Vec<BranchRef> {
        let branches = self.to_vec();
        self.set(Vec::new());
        branches
    }

    pub fn set(&self, branches: Vec<BranchRef>) {
        if branches.is_empty() && self.0.get() == 0 {
            return;
        }
        let old = self.array();
        self.0.set(match branches.len() {
            0 => 0,
            1 => branches[0].as_ptr() as usize,
            _ => mem::ManuallyDrop::new(ThinSlice::new(branches)).head as usize | ARRAY,
        });
        old.map(mem::ManuallyDrop::into_inner);
    }

    /// Adds the bytes of the array to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        if let Some(array) = self.array() {
            array.add_to(sum);
        }
    }
}

impl Drop for BranchList {
    fn drop(&mut self) {
        self.set(Vec::new());
    }
}

impl fmt::Debug for BranchList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.to_vec()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(number: usize) -> BranchRef {
        BranchRef::new((number * 32) as *mut _).unwrap()
    }

    #[test]
    fn a_word_for_each_length() {
        assert_eq!(mem::size_of::<BranchList>(), mem::size_of::<usize>());
        let list = BranchList::default();
        let mut want = vec![];
        assert_eq!((list.len(), list.last(), list.to_vec()), (0, None, want.clone()));
        for number in 1..10 {
            list.push(branch(number));
            want.push(branch(number));
            assert_eq!((list.len(), list.last(), list.to_vec()), (number, Some(branch(number)), want.clone()));
            let mut seen = vec![];
            unsafe { list.for_each_in_place(|branch| seen.push(branch)) };
            assert_eq!(seen, want);
        }
        while let Some(last) = want.pop() {
            list.remove(branch(100)); // it is not there
            list.remove(last);
            assert_eq!(list.to_vec(), want);
        }
    }

    #[test]
    fn a_list_may_change_while_it_is_visited() {
        let list = BranchList::new((1..4).map(branch).collect());
        let mut seen = vec![];
        list.for_each(|branch| {
            seen.push(branch);
            list.remove(branch);
        });
        assert_eq!(seen, (1..4).map(branch).collect::<Vec<_>>());
        assert_eq!(list.take(), []);
        list.set(vec![branch(1), branch(2)]);
        assert_eq!(list.take().len(), 2);
        assert_eq!(list.len(), 0);
    }

    #[test]
    fn arrays_of_no_and_of_some_elements() {
        assert_eq!(ThinSlice::<u32>::new(vec![]).as_slice(), []);
        let array = ThinSlice::new(vec![1u32, 2, 3]);
        assert_eq!(array.as_slice(), [1, 2, 3]);
        assert_eq!(ThinSlice::new(vec![7u64; 5]).iter().sum::<u64>(), 35);
    }
}
