// SPDX-License-Identifier: BSD-2-Clause
//! yjit_memory: where YJIT's data stand.
//!
//! Job: upstream's data stand between all that malloc gives. A forked child that compiles would copy an OS page
//! for each few words of them that it writes. Here they stand in regions of their own (vm_words.h), where blocks
//! of one size, which are mostly of one type, lie side by side, and in which a child has a part of its own.
//!
//! Blocks of more than 256 KB, and all where the system gives no region or before YJIT is enabled, are malloc's.
//!
//! Who writes this memory after a fork: a child that compiles.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

/// The regions give memory that is aligned to 8 bytes, and to 16 if the size is a multiple of it.
const ALIGN: usize = 8;
const MOST_ALIGN: usize = 16;

/// Gives the size that a region is asked for. Those of large blocks, which share a stream, are multiples of 16.
fn region_size(layout: Layout) -> usize {
    let align = if layout.align() > ALIGN || layout.size() > 256 { MOST_ALIGN } else { ALIGN };
    (layout.size() + align - 1) / align * align
}

/// Is YJIT enabled? Others need no region.
static mut ENABLED: bool = false;

/// Called when YJIT is enabled.
pub fn init() {
    unsafe { ENABLED = true; }
}

/// Asks a region for a block. Gives null if it is to be malloc's.
unsafe fn region_alloc(layout: Layout) -> *mut u8 {
    if !ENABLED || layout.align() > MOST_ALIGN {
        return ptr::null_mut();
    }
    region::rb_gc_yjit_alloc(region_size(layout))
}

/// What gc/vm_words.c gives. Cargo's tests have no interpreter: there all is malloc's.
#[cfg(not(test))]
mod region {
    extern "C" {
        pub fn rb_gc_yjit_alloc(size: usize) -> *mut u8;
        pub fn rb_gc_yjit_free(block: *mut u8, size: usize) -> bool;
        pub fn rb_gc_yjit_has(block: *const u8) -> bool;
        pub fn rb_gc_yjit_fits(size: usize, new_size: usize) -> bool;
        pub fn rb_gc_yjit_inherited_p(block: *const u8) -> bool;
    }
}

#[cfg(test)]
#[allow(clippy::missing_safety_doc)]
mod region {
    pub unsafe fn rb_gc_yjit_alloc(_size: usize) -> *mut u8 { std::ptr::null_mut() }
    pub unsafe fn rb_gc_yjit_free(_block: *mut u8, _size: usize) -> bool { false }
    pub unsafe fn rb_gc_yjit_has(_block: *const u8) -> bool { false }
    pub unsafe fn rb_gc_yjit_fits(_size: usize, _new_size: usize) -> bool { false }
    pub unsafe fn rb_gc_yjit_inherited_p(_block: *const u8) -> bool { false }
}

/// Was the block there when this process was forked? With the VM lock. Blocks of malloc's are not.
pub fn inherited<T>(block: *const T) -> bool {
    unsafe { region::rb_gc_yjit_inherited_p(block.cast()) }
}

/// What GlobalAlloc::alloc does.
pub unsafe fn alloc(layout: Layout) -> *mut u8 {
    let block = region_alloc(layout);
    if block.is_null() { System.alloc(layout) } else { block }
}

/// What GlobalAlloc::alloc_zeroed does.
pub unsafe fn alloc_zeroed(layout: Layout) -> *mut u8 {
    let block = region_alloc(layout);
    if block.is_null() {
        return System.alloc_zeroed(layout);
    }
    ptr::write_bytes(block, 0, layout.size());
    block
}

/// What GlobalAlloc::dealloc does.
pub unsafe fn dealloc(block: *mut u8, layout: Layout) {
    if !region::rb_gc_yjit_free(block, region_size(layout)) {
        System.dealloc(block, layout);
    }
}

/// What GlobalAlloc::realloc does.
pub unsafe fn realloc(block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let new_layout = Layout::from_size_align_unchecked(size, layout.align());
    if !region::rb_gc_yjit_has(block) {
        return System.realloc(block, layout, size);
    }
    if region::rb_gc_yjit_fits(region_size(layout), region_size(new_layout)) {
        return block;
    }
    let copy = alloc(new_layout);
    if !copy.is_null() {
        ptr::copy_nonoverlapping(block, copy, layout.size().min(size));
        dealloc(block, layout);
    }
    copy
}

/// What there is of one kind: RubyVM::YJIT.memory.
#[derive(Default, Clone, Copy)]
pub struct Sum {
    pub count: usize,
    pub bytes: usize,
    pub inherited_bytes: usize,
}

impl Sum {
    /// Adds something at an address; nothing if it has no bytes.
    pub fn add<T>(&mut self, address: *const T, bytes: usize) {
        if bytes > 0 {
            self.count += 1;
            self.bytes += bytes;
            if inherited(address) {
                self.inherited_bytes += bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_regions_are_asked_for() {
        let size = |size, align| region_size(Layout::from_size_align(size, align).unwrap());
        assert_eq!([size(1, 1), size(24, 8), size(24, 16), size(256, 8), size(257, 8), size(264, 1)],
                   [8, 24, 32, 256, 272, 272]);
    }
}
