// SPDX-License-Identifier: BSD-2-Clause
//! yjit_policy: when YJIT compiles in a forked process.
//!
//! Job: what a worker compiles it has for itself, data and machine code, and each of its siblings compiles the
//! same once more. And where it links new code to inherited code it copies the pages of both. So a forked process
//! waits longer than others before it compiles: until the calls that it has seen would have paid for it.
//!
//! A method is compiled after about CALLS calls: each has a threshold of its own, so that the methods of one request
//! are not all compiled in its course (iseq_jit.h). One that is compiled, but has no entry for the interpreter, as
//! compiled code has called it only, gets that after as many calls as in other processes. A stub of inherited code is
//! compiled when it is hit for the STUB_HITS-th time; until then a hit goes on in the interpreter, or, if the block
//! that it wants is there, in that block, without a link to it. Stubs of the process's own code are compiled at once:
//! a method that is called so often is worth all of the ways that it goes, and each hit of a stub leaves compiled
//! code until the method is called again.
//!
//! Hits are counted in a table of the process's own, by the address of the branch. Branches that share an entry of
//! it are compiled earlier or later than others. Calls are counted in a table as well (iseq_jit.h): most methods
//! that a worker calls it calls a few times only, and their own counters would be copied with the page.
//!
//! The numbers were measured with a Rails application (doc/yjit.md). Processes are left alone that inherit no
//! application (fewer than LEAST_ISEQS iseqs), for they may be masters to come; what Process.daemon leaves of a
//! program, which has no siblings; and those whose user has given a threshold or RUBY_YJIT_FORK_POLICY=off.
//!
//! Who writes this memory after a fork: a child, the table of hits, and that of calls.

use crate::fork::inherited;
use crate::options::*;
use crate::stats::rb_yjit_live_iseq_count;
use crate::virtualmem::CodePtr;
use crate::yjit::yjit_enabled_p;
use std::os::raw::{c_char, c_uint};

/// After about so many calls a method is compiled. To compile one takes 0.6 ms in a Rails application, and a call of it
/// then takes half a microsecond less: 1,200 calls pay for it. Who knew nothing of the calls to come would wait for
/// them (ski rental); but what is called so often by a worker that is young is called for all of its life. With 500
/// a Rails worker takes 3 per cent less time than with 2,000, up to 10,000 requests of four workers, and has 75 MB
/// and not 70, a rehearsed one 26.6 and not 26.2. With 250 and 120 it takes 1 and 2 per cent less than that (by hand).
const CALLS: u64 = 500;
/// After so many hits a stub of inherited code is compiled. With 30 and 60 a rehearsed worker took 4 per cent more
/// time and as much memory (by hand).
const STUB_HITS: u8 = 10;
/// A process that has fewer iseqs when it is forked has no application yet.
const LEAST_ISEQS: u64 = 10_000;
/// Bits of an index into the table of hits.
const HITS_BITS: u32 = 15;

/// After so many calls a method that is compiled gets an entry for the interpreter; 0: as others. See vm.c.
#[no_mangle]
pub static mut rb_yjit_entry_threshold: u64 = 0;

/// Does this process wait?
static mut WAITS: bool = false;
/// How many iseqs there were at the fork; 0 in a process that was not forked.
static mut INHERITED_ISEQS: u64 = 0;
/// Has the user switched the waiting off? None: not asked yet.
static mut SWITCHED_OFF: Option<bool> = None;
static mut HITS: [u8; 1 << HITS_BITS] = [0; 1 << HITS_BITS];

extern "C" {
    static rb_gc_fork_depth: c_uint;
    static mut rb_iseq_jit_calls: *mut u16;
    static mut rb_iseq_jit_call_table: u16; // the first of many
    fn rb_warn(format: *const c_char, ...);
}

/// Reads RUBY_YJIT_FORK_POLICY, once. Warns of a value that is not understood; a warning may run Ruby, so a caller
/// that will hold the VM lock reads before it takes that.
pub fn read_setting() {
    unsafe {
        if SWITCHED_OFF.is_none() {
            SWITCHED_OFF = Some(switched_off());
        }
    }
}

fn switched_off() -> bool {
    match std::env::var("RUBY_YJIT_FORK_POLICY").as_deref() {
        Ok("off") => true,
        Ok("") | Ok("auto") | Err(std::env::VarError::NotPresent) => false,
        _ => {
            let text = b"RUBY_YJIT_FORK_POLICY is ignored: it must be auto or off\0";
            unsafe { rb_warn(text.as_ptr() as *const c_char) };
            false
        }
    }
}

/// Called when YJIT is enabled.
pub fn init() {
    read_setting();
    wait_if_an_application_is_inherited();
}

fn wait_if_an_application_is_inherited() {
    unsafe {
        if SWITCHED_OFF == Some(true) || get_option!(thresholds_given) || INHERITED_ISEQS < LEAST_ISEQS {
            return;
        }
        if !WAITS {
            rb_yjit_entry_threshold = rb_yjit_call_threshold;
        }
        WAITS = true;
        rb_iseq_jit_calls = std::ptr::addr_of_mut!(rb_iseq_jit_call_table);
        rb_yjit_call_threshold = CALLS;
    }
}

/// Called in the child of a fork. Makes it wait, unless its user or its size speaks against it. A child without
/// YJIT may enable it later.
#[no_mangle]
pub extern "C" fn rb_yjit_begin_to_wait() {
    unsafe { INHERITED_ISEQS = rb_yjit_live_iseq_count };
    if yjit_enabled_p() {
        wait_if_an_application_is_inherited();
    }
}

/// Called when Process.daemon has put this process in the place of its parent.
#[no_mangle]
pub extern "C" fn rb_yjit_daemonized() {
    unsafe {
        if rb_gc_fork_depth > 1 {
            return; // the parent was a worker
        }
        INHERITED_ISEQS = 0;
        if WAITS {
            WAITS = false;
            rb_iseq_jit_calls = std::ptr::null_mut();
            rb_yjit_call_threshold = rb_yjit_entry_threshold;
            rb_yjit_entry_threshold = 0;
        }
    }
}

/// Counts a hit of a stub. +address+ and +index+ say which one it is, +code+ is where its branch is. Gives true if
/// the process shall go on without it being compiled.
pub fn stub_is_cold(address: usize, index: usize, code: CodePtr) -> bool {
    if unsafe { !WAITS } || !inherited().code_end.map_or(false, |end| code < end) {
        return false;
    }
    let place = crate::word::hash(address ^ index) >> (64 - HITS_BITS);
    let hits = unsafe { &mut HITS[place as usize] };
    *hits += 1;
    if *hits < STUB_HITS {
        return true;
    }
    *hits = 0;
    false
}
