// SPDX-License-Identifier: BSD-2-Clause
//! yjit_versions: the compiled blocks of an iseq, and the code pages that they lie in.
//!
//! Job: upstream has a list of versions for each instruction of an iseq, 24 bytes each and a block of malloc's
//! for those that have a version, and a hash table of pages. Few instructions begin a block. Here the versions
//! stand in one array, sorted by the instruction, and the pages in another (yjit_thin.rs).

use crate::core::{BlockRef, IseqIdx};
use crate::core::thin::ThinVec;
use crate::memory::Sum;

/// Gives the instruction at which a block begins.
#[cfg(not(test))]
fn index_of(block: BlockRef) -> IseqIdx {
    // SAFETY: the blocks of an iseq that is not freed are initialized
    unsafe { block.as_ref() }.get_blockid().idx
}

/// Tests have addresses without a block.
#[cfg(test)]
fn index_of(block: BlockRef) -> IseqIdx {
    (block.as_ptr() as usize / 1024) as IseqIdx
}

/// The versions of all blocks of an iseq.
#[derive(Default)]
pub struct Versions(ThinVec<BlockRef>);

impl Versions {
    /// Gives where the versions of the block at +index+ stand.
    fn range(&self, index: IseqIdx) -> std::ops::Range<usize> {
        let start = self.0.partition_point(|&block| index_of(block) < index);
        let count = self.0[start..].iter().take_while(|&&block| index_of(block) == index).count();
        start..start + count
    }

    /// Gives the versions of the block at +index+, the oldest first.
    pub fn at(&self, index: IseqIdx) -> impl Iterator<Item = BlockRef> + '_ {
        self.0[self.range(index)].iter().copied()
    }

    /// Gives all blocks.
    pub fn iter(&self) -> impl Iterator<Item = BlockRef> + '_ {
        self.0.iter().copied()
    }

    /// Gives all blocks, and forgets them.
    pub fn take_all(&mut self) -> Vec<BlockRef> {
        self.take_range(0..self.0.len())
    }

    /// Adds a version of the block at +index+. Gives whether it is the first.
    pub fn add(&mut self, index: IseqIdx, block: BlockRef) -> bool {
        let range = self.range(index);
        self.0.insert(range.end, block);
        range.is_empty()
    }

    /// Removes a version of the block at +index+, if it is there.
    pub fn remove(&mut self, index: IseqIdx, block: BlockRef) {
        let range = self.range(index);
        if let Some(place) = self.0[range.clone()].iter().position(|&version| version == block) {
            self.0.remove(range.start + place..range.start + place + 1);
        }
    }

    /// Adds the bytes of the array to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        self.0.add_to(sum);
    }

    /// Removes all versions of the block at +index+, and gives them.
    pub fn take(&mut self, index: IseqIdx) -> Vec<BlockRef> {
        self.take_range(self.range(index))
    }

    fn take_range(&mut self, range: std::ops::Range<usize>) -> Vec<BlockRef> {
        let blocks = self.0[range.clone()].to_vec();
        self.0.remove(range);
        blocks
    }
}

/// The indices of code pages, each once.
#[derive(Default)]
pub struct Pages(ThinVec<u32>);

impl Pages {
    /// Adds a page, if it is not there.
    pub fn insert(&mut self, page: usize) {
        let page = u32::try_from(page).expect("a code page has an index of 32 bits");
        if !self.0.contains(&page) {
            self.0.push(page);
        }
    }

    /// Adds the bytes of the array to +sum+.
    pub fn add_to(&self, sum: &mut Sum) {
        self.0.add_to(sum);
    }

    /// Gives all pages.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|&page| page as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: usize, number: usize) -> BlockRef {
        BlockRef::new((index * 1024 + number * 64) as *mut _).unwrap()
    }

    #[test]
    fn versions_of_an_instruction_are_in_order_of_their_age() {
        let mut versions = Versions::default();
        assert!(versions.add(7, block(7, 9)));
        assert!(versions.add(2, block(2, 2)));
        assert!(!versions.add(7, block(7, 3)));
        assert!(versions.add(9, block(9, 4)));
        assert!(!versions.add(7, block(7, 5)));
        let at = |versions: &Versions, index| versions.at(index).collect::<Vec<_>>();
        assert_eq!(at(&versions, 7), [block(7, 9), block(7, 3), block(7, 5)]);
        assert_eq!(at(&versions, 3), []);
        assert_eq!(versions.iter().count(), 5);

        versions.remove(7, block(7, 3));
        versions.remove(7, block(2, 2)); // it is elsewhere
        assert_eq!(at(&versions, 7), [block(7, 9), block(7, 5)]);
        assert_eq!(versions.take(7), [block(7, 9), block(7, 5)]);
        assert_eq!(at(&versions, 7), []);
        assert!(versions.add(7, block(7, 6)));
        assert_eq!(versions.take_all(), [block(2, 2), block(7, 6), block(9, 4)]);
        assert_eq!(versions.iter().count(), 0);
    }

    #[test]
    fn pages_are_there_once() {
        let mut pages = Pages::default();
        [3, 1, 3, 70_000, 1].iter().for_each(|&page| pages.insert(page));
        assert_eq!(pages.iter().collect::<Vec<_>>(), [3, 1, 70_000]);
    }
}
