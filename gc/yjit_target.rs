// SPDX-License-Identifier: BSD-2-Clause
//! yjit_target: where a branch goes, in a word, and how long its code is, in two bytes.
//!
//! Job: upstream allocates 16 bytes for each target of a branch, to say whether it is a block or a stub, and
//! another 24 for a stub. The word here is the block's address, or the stub's with the lowest bit set; 0: none.
//! The code of a branch has some bytes; but where it goes over the end of a code page it ends in the next page that
//! is free, which may be anywhere after a code GC. Such lengths stand in a table.
//!
//! Who writes this memory after a fork: a child in which an inherited branch changes its length. Where it goes is
//! in the table of yjit_word.rs then.

use super::{BlockId, BlockRef, IseqIdx};
use crate::cruby::IseqPtr;
use crate::virtualmem::CodePtr;
use crate::word::Word;
use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// What has not been compiled yet.
#[derive(Debug)]
pub struct BranchStub {
    pub address: Option<CodePtr>,
    pub iseq: Cell<IseqPtr>,
    pub iseq_idx: IseqIdx,
    pub ctx: u32,
}

/// A place that a branch could jump to
#[derive(Debug, Clone, Copy)]
pub enum BranchTarget<'a> {
    Stub(&'a BranchStub), // Not compiled yet
    Block(BlockRef),      // Already compiled
}

impl BranchTarget<'_> {
    pub fn get_address(self) -> Option<CodePtr> {
        match self {
            BranchTarget::Stub(stub) => stub.address,
            BranchTarget::Block(blockref) => Some(unsafe { blockref.as_ref() }.start_addr),
        }
    }

    pub fn get_blockid(self) -> BlockId {
        match self {
            BranchTarget::Stub(stub) => BlockId { iseq: stub.iseq.get(), idx: stub.iseq_idx },
            BranchTarget::Block(blockref) => unsafe { blockref.as_ref() }.get_blockid(),
        }
    }

    pub fn get_ctx(self) -> u32 {
        match self {
            BranchTarget::Stub(stub) => stub.ctx,
            BranchTarget::Block(blockref) => unsafe { blockref.as_ref() }.ctx,
        }
    }

    pub fn get_block(self) -> Option<BlockRef> {
        match self {
            BranchTarget::Stub(_) => None,
            BranchTarget::Block(blockref) => Some(blockref),
        }
    }
}

/// The lowest bit of a stub's word.
const STUB: usize = 1;

/// The target of a branch, which may be changed. Owns the stub.
#[derive(Default)]
pub struct TargetCell {
    word: Word,
    owns: PhantomData<BranchStub>,
}

impl TargetCell {
    /// Gives the target. No reference to a stub may outlive the next change.
    pub fn get(&self) -> Option<BranchTarget<'_>> {
        let word = self.word.get();
        if word & STUB != 0 {
            // SAFETY: set_stub has made it of a Box
            return Some(BranchTarget::Stub(unsafe { &*((word - STUB) as *const BranchStub) }));
        }
        NonNull::new(word as *mut super::Block).map(BranchTarget::Block)
    }

    pub fn set_block(&self, block: BlockRef) {
        self.set_word(block.as_ptr() as usize);
    }

    pub fn set_stub(&self, stub: BranchStub) {
        self.set_word(Box::into_raw(Box::new(stub)) as usize | STUB);
    }

    pub fn clear(&self) {
        self.set_word(0);
    }

    fn set_word(&self, word: usize) {
        let old = self.word.get();
        self.word.set(word);
        if old & STUB != 0 {
            // SAFETY: set_stub has made it of a Box
            drop(unsafe { Box::from_raw((old - STUB) as *mut BranchStub) });
        }
    }
}

impl Drop for TargetCell {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A length that stands in the table.
const LONG: u16 = u16::MAX;

/// By the address of the BranchSize.
static mut LONG_SIZES: Option<HashMap<usize, usize>> = None;

/// The length of a branch's code. It must not be moved once it is set.
#[derive(Default)]
pub struct BranchSize(Cell<u16>);

impl BranchSize {
    fn table() -> &'static mut HashMap<usize, usize> {
        unsafe { LONG_SIZES.get_or_insert_with(HashMap::new) }
    }

    fn key(&self) -> usize {
        self as *const Self as usize
    }

    pub fn get(&self) -> usize {
        match self.0.get() {
            LONG => Self::table()[&self.key()],
            size => size.into(),
        }
    }

    pub fn set(&self, start: CodePtr, end: CodePtr) {
        let size = usize::try_from(end.as_offset() - start.as_offset()).expect("a branch ends after it begins");
        if self.0.get() != LONG && size == self.0.get().into() {
            return; // not even written: the OS would copy the page in a forked child
        }
        self.forget();
        match u16::try_from(size) {
            Ok(short) if short != LONG => self.0.set(short),
            _ => {
                self.0.set(LONG);
                Self::table().insert(self.key(), size);
            }
        }
    }

    fn forget(&self) {
        if self.0.get() == LONG {
            Self::table().remove(&self.key());
        }
    }
}

impl Drop for BranchSize {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asm::CodeBlock;

    #[test]
    fn short_and_long_branches() {
        let start = CodeBlock::new_dummy(64).get_write_ptr();
        let sizes: Vec<Box<BranchSize>> = (0..4).map(|_| Box::default()).collect();
        let want = [0, 65_534, 65_535, 10_000_000];
        for (size, &bytes) in sizes.iter().zip(&want) {
            size.set(start, start.add_bytes(bytes));
        }
        assert_eq!(sizes.iter().map(|size| size.get()).collect::<Vec<_>>(), want);
        let long = BranchSize::table().len();
        sizes[2].set(start, start.add_bytes(5));
        assert_eq!((sizes[2].get(), BranchSize::table().len()), (5, long - 1));
        drop(sizes);
        assert_eq!(BranchSize::table().len(), long - 2);
    }
}
