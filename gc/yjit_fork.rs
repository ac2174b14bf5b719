// SPDX-License-Identifier: BSD-2-Clause
//! yjit_fork: what YJIT does before the process seals its heap, and in the child of a fork.
//!
//! Job: a child notes what it has inherited, and begins the part of its own of each table that grows
//! (yjit_young.rs); one that seals its heap makes one table of both parts, as its children share that.
//!
//! Who writes this memory after a fork: a child, once.

use crate::codegen::CodegenGlobals;
use crate::invariants::Invariants;
use crate::stats::yjit_alloc_size;
use crate::stub;
use crate::virtualmem::CodePtr;
use crate::word;

/// What there was at the fork; all 0 in a process that was not forked.
#[derive(Clone, Copy)]
pub struct Inherited {
    /// Bytes of code
    pub inline_code: usize,
    pub outlined_code: usize,
    pub mapped_code: usize,
    /// Bytes that Rust had allocated
    pub alloc_size: usize,
    /// Inline code below is inherited.
    pub code_end: Option<CodePtr>,
}

static mut INHERITED: Inherited =
    Inherited { inline_code: 0, outlined_code: 0, mapped_code: 0, alloc_size: 0, code_end: None };

/// Gives what this process has inherited.
pub fn inherited() -> &'static Inherited {
    unsafe { &INHERITED }
}

/// Called in the child of a fork, in which no other thread runs.
#[no_mangle]
pub extern "C" fn rb_yjit_postfork_child() {
    CodegenGlobals::inherit();
    Invariants::inherit();
    stub::inherit();
    let cb = CodegenGlobals::get_inline_cb();
    let inherited = Inherited {
        inline_code: cb.code_size(),
        outlined_code: CodegenGlobals::get_outlined_cb().unwrap().code_size(),
        mapped_code: cb.mapped_region_size(),
        alloc_size: yjit_alloc_size(),
        code_end: Some(cb.get_write_ptr()),
    };
    unsafe { INHERITED = inherited };
}

/// Called before a code GC: nothing that is inherited is entered any more, and new code takes its place.
pub fn forget_code() {
    unsafe { INHERITED.code_end = None };
}

/// Called before a process seals its heap, with the VM lock. Gives false if there is no memory for it; what has two
/// parts keeps them then.
#[no_mangle]
pub extern "C" fn rb_yjit_before_seal() -> bool {
    if !(CodegenGlobals::try_reserve() && Invariants::try_reserve()) {
        return false;
    }
    CodegenGlobals::merge();
    Invariants::merge();
    word::merge();
    true
}
