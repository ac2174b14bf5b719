// SPDX-License-Identifier: BSD-2-Clause
//! yjit_target: where a branch goes, in a word.
//!
//! Job: upstream allocates 16 bytes for each target of a branch, to say whether it is a block or a stub, and
//! another 24 for a stub. The word here is the block's address, or the stub's with the lowest bit set; 0: none.
//!
//! Who writes this memory after a fork: a child in which an inherited stub is compiled.

use super::{BlockId, BlockRef, IseqIdx};
use crate::cruby::IseqPtr;
use crate::virtualmem::CodePtr;
use std::cell::Cell;
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
    word: Cell<usize>,
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
        let old = self.word.replace(word);
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
