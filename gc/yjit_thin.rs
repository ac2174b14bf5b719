// SPDX-License-Identifier: BSD-2-Clause
//! yjit_thin: the short arrays of a block and of an iseq, in a word each.
//!
//! Job: upstream has 16 or 24 bytes for each of these arrays, of which most are empty or have one element. A word
//! here is 0, or the address of the only branch, or that of an array with the number of its elements in front.
//!
//! Who writes this memory after a fork: nobody. Where a child changes an inherited array it makes a copy, and notes
//! it in the table of yjit_word.rs.

use super::BranchRef;
use crate::memory::{inherited, Sum};
use crate::word::Word;
use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::{fmt, mem, ptr, slice};

/// An array of fixed length. Elements need no cleanup and an alignment of at most 8.
pub struct ThinSlice<T> {
    head: *mut usize, // the length, followed by the elements; null: there are none
    elements: PhantomData<T>,
}

/// Gives the layout of a length and so many elements.
fn layout<T>(room: usize) -> Layout {
    assert!(mem::align_of::<T>() <= mem::align_of::<usize>() && !mem::needs_drop::<T>());
    Layout::from_size_align(mem::size_of::<usize>() + room * mem::size_of::<T>(), mem::align_of::<usize>())
        .expect("an array fits into memory")
}

/// Gives room for a length, which is to be written, and so many elements.
fn allocate<T>(room: usize) -> *mut usize {
    let layout = layout::<T>(room);
    // SAFETY: the layout is not empty
    let head = unsafe { alloc(layout) }.cast::<usize>();
    if head.is_null() {
        handle_alloc_error(layout);
    }
    head
}

impl<T> ThinSlice<T> {
    pub fn new(values: Vec<T>) -> Self {
        let mut head = ptr::null_mut();
        if !values.is_empty() {
            head = allocate::<T>(values.len());
            // SAFETY: there is room for the length and the values
            unsafe {
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
            sum.add(self.head, layout::<T>(self.as_slice().len()).size());
        }
    }
}

impl<T> Drop for ThinSlice<T> {
    fn drop(&mut self) {
        if !self.head.is_null() {
            // SAFETY: new has made it, with this layout
            unsafe { dealloc(self.head.cast(), layout::<T>(self.head.read())) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ThinSlice<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(formatter)
    }
}

/// The room of a ThinVec is a multiple of so many elements: what is reserved and not used is memory that each forked
/// process has for itself.
const GROWTH: usize = 4;

/// An array that can be changed. Elements need no cleanup and an alignment of at most 8.
pub struct ThinVec<T> {
    head: Word, // the address of the length, which is followed by the elements; 0: there are none
    elements: PhantomData<T>,
}

impl<T> ThinVec<T> {
    fn room(length: usize) -> usize {
        (length + GROWTH - 1) / GROWTH * GROWTH
    }
}

impl<T> Default for ThinVec<T> {
    fn default() -> Self {
        Self { head: Word::default(), elements: PhantomData }
    }
}

impl<T: Copy> ThinVec<T> {
    fn head(&self) -> *mut usize {
        self.head.get() as *mut usize
    }

    /// Puts +added+ where the elements of +range+ are.
    fn splice(&mut self, range: Range<usize>, added: &[T]) {
        let (old, length) = (self.head(), self.len());
        let new_length = length - range.len() + added.len();
        let in_place = length > 0 && Self::room(new_length) == Self::room(length) && !inherited(old);
        let new = match new_length {
            _ if in_place => old,
            0 => ptr::null_mut(),
            _ => allocate::<T>(Self::room(new_length)),
        };
        // SAFETY: both arrays have the room; the end is copied first, as the elements that are added may be where it was
        unsafe {
            let place = |head: *mut usize, index| head.add(1).cast::<T>().add(index);
            if length > range.end {
                ptr::copy(place(old, range.end), place(new, range.start + added.len()), length - range.end);
            }
            if !in_place && range.start > 0 {
                ptr::copy_nonoverlapping(place(old, 0), place(new, 0), range.start);
            }
            if !added.is_empty() {
                ptr::copy_nonoverlapping(added.as_ptr(), place(new, range.start), added.len());
            }
            if new_length > 0 {
                new.write(new_length);
            }
            if !in_place {
                self.head.set(new as usize);
                if length > 0 {
                    dealloc(old.cast(), layout::<T>(Self::room(length)));
                }
            }
        }
    }

    pub fn insert(&mut self, index: usize, value: T) {
        self.splice(index..index, &[value]);
    }

    pub fn push(&mut self, value: T) {
        self.insert(self.len(), value);
    }

    /// Removes the elements of +range+.
    pub fn remove(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.splice(range, &[]);
        }
    }

    /// Adds the bytes of the array to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        if !self.is_empty() {
            sum.add(self.head(), layout::<T>(Self::room(self.len())).size());
        }
    }
}

impl<T> Deref for ThinVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let head = self.head.get() as *const usize;
        if head.is_null() {
            return &[];
        }
        // SAFETY: splice has made it
        unsafe { slice::from_raw_parts(head.add(1).cast(), head.read()) }
    }
}

impl<T> Drop for ThinVec<T> {
    fn drop(&mut self) {
        if !self.is_empty() {
            // SAFETY: splice has made it, with this layout
            unsafe { dealloc(self.head.get() as *mut u8, layout::<T>(Self::room(self.len()))) };
        }
    }
}

/// The lowest bit of a word that is the address of an array.
const ARRAY: usize = 1;

/// A list of branches that can be changed. Adding one takes time with its length; most have a few.
#[derive(Default)]
pub struct BranchList(Word);

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
    fn an_array_that_changes() {
        assert_eq!(mem::size_of::<ThinVec<u64>>(), mem::size_of::<usize>());
        let (mut array, mut want) = (ThinVec::<u32>::default(), vec![]);
        for value in 0..50 {
            array.push(value);
            want.push(value);
            array.insert(value as usize / 2, value + 100);
            want.insert(value as usize / 2, value + 100);
            assert_eq!(*array, *want);
        }
        for range in [3..3, 0..1, 10..20, 88..89, 0..20, 60..68, 0..60] {
            array.remove(range.clone());
            want.drain(range);
            assert_eq!(*array, *want);
        }
        assert!(array.is_empty() && array.head().is_null());
        array.push(7);
        assert_eq!(*array, [7]);
    }

    #[test]
    fn arrays_of_no_and_of_some_elements() {
        assert_eq!(ThinSlice::<u32>::new(vec![]).as_slice(), []);
        let array = ThinSlice::new(vec![1u32, 2, 3]);
        assert_eq!(array.as_slice(), [1, 2, 3]);
        assert_eq!(ThinSlice::new(vec![7u64; 5]).iter().sum::<u64>(), 35);
    }
}
