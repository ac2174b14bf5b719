// SPDX-License-Identifier: BSD-2-Clause
//! yjit_stub: the code of branch stubs and of side exits, as short as can be, and stubs used again.
//!
//! Job: a stub says which branch it belongs to and which of the two targets it is, and goes on to code that is the
//! same for all (the trampoline). Upstream saves registers in each stub, and has two arguments: twice as many
//! bytes. Here the trampoline saves them, and a word says both.
//!
//! A side exit says likewise which instruction the interpreter goes on with, and sets the stack pointer; the rest is
//! the same for all.
//!
//! When the block that a stub waited for is compiled, the branch goes there, and nobody comes to the stub any more.
//! On x86-64 the stub of another branch then takes its place: only the word differs. Not used again are stubs to
//! which a frame may return (JITReturn), those that save values of the stack, and those that lie on two code pages.
//!
//! Who writes this memory after a fork: a child the stubs that it has made; it leaves inherited ones as they are.

use crate::asm::{CodeBlock, OutlinedCb};
use crate::backend::ir::{Assembler, Opnd, Reg, CFP, EC, SP};
use crate::codegen::CodegenGlobals;
use crate::core::{get_or_create_iseq_payload, Context};
use crate::cruby::{IseqPtr, Qundef, RUBY_OFFSET_CFP_PC, RUBY_OFFSET_CFP_SP, SIZEOF_VALUE, VALUE};
use crate::virtualmem::CodePtr;
use std::os::raw::c_void;

/// The register in which the word comes to the trampoline. Neither values of the stack nor arguments lie in it.
#[cfg(target_arch = "x86_64")]
const REGISTER: Reg = crate::asm::x86_64::R11_REG;
#[cfg(target_arch = "aarch64")]
const REGISTER: Reg = crate::asm::arm64::X17_REG;

pub const WORD_OPND: Opnd = Opnd::Reg(REGISTER);

/// movabs $word, %r11; jmp trampoline
const SIZE: usize = 15;
const MOVABS_R11: [u8; WORD_AT] = [0x49, 0xbb];
const WORD_AT: usize = 2;
const JMP: u8 = 0xe9;
const JMP_AT: usize = 10;

/// Gives the word for a target of a branch.
pub fn word(branch: usize, target: u32) -> usize {
    assert!(branch % 2 == 0 && target < 2);
    branch | target as usize
}

/// Gives the branch and the number of its target.
pub fn branch_and_target(word: usize) -> (*const c_void, u32) {
    ((word & !1) as *const c_void, (word & 1) as u32)
}

/// Generates the end of a side exit. Values of the stack are in memory.
pub fn gen_exit(exit_pc: *mut VALUE, asm: &mut Assembler) {
    let offset = asm.ctx.get_sp_offset() as isize * SIZEOF_VALUE as isize;
    let bytes = Opnd::UImm(offset.unsigned_abs() as u64);
    if offset != 0 {
        let sp = if offset > 0 { asm.add(SP, bytes) } else { asm.sub(SP, bytes) };
        asm.mov(SP, sp);
    }
    asm.mov(WORD_OPND, Opnd::const_ptr(exit_pc as *const u8));
    asm.jmp(CodegenGlobals::get_exit_trampoline().as_side_exit());
}

/// Generates what all side exits end with.
pub fn gen_exit_trampoline(ocb: &mut OutlinedCb) -> Option<CodePtr> {
    let mut asm = Assembler::new_without_iseq();
    asm.mov(Opnd::mem(64, CFP, RUBY_OFFSET_CFP_SP), SP);
    asm.mov(Opnd::mem(64, CFP, RUBY_OFFSET_CFP_PC), WORD_OPND);
    asm.cpop_into(SP);
    asm.cpop_into(EC);
    asm.cpop_into(CFP);
    asm.frame_teardown();
    asm.cret(Qundef.into());
    asm.compile(ocb.unwrap(), None).map(|(code_ptr, _)| code_ptr)
}

/// The stubs to which nobody comes any more.
static mut FREE: Vec<CodePtr> = Vec::new();
/// Outlined code below is inherited. After a code GC new code may be there, too.
static mut INHERITED_END: Option<CodePtr> = None;

/// Is the stub no more than a word and a jump to the trampoline?
fn is_plain(address: CodePtr, cb: &CodeBlock) -> bool {
    let trampoline = CodegenGlobals::get_branch_stub_hit_trampoline();
    let distance = trampoline.as_offset() - address.as_offset() - SIZE as i64;
    let offset = address.as_offset() as usize;
    if !cfg!(target_arch = "x86_64") || offset / cb.page_size() != (offset + SIZE - 1) / cb.page_size() {
        return false;
    }
    // SAFETY: it lies in one page, which is mapped
    let bytes = unsafe { std::slice::from_raw_parts(address.raw_ptr(cb), SIZE) };
    bytes[..WORD_AT] == MOVABS_R11 && bytes[JMP_AT] == JMP && bytes[JMP_AT + 1..] == (distance as i32).to_le_bytes()
}

/// Notes that the stub is not needed any more, as its branch leads to a block now.
pub fn free(stub: CodePtr, ocb: &mut OutlinedCb) {
    let ocb = ocb.unwrap();
    let is_own = unsafe { INHERITED_END }.map_or(true, |end| stub >= end);
    if is_own && is_plain(stub, ocb) {
        unsafe { FREE.push(stub) };
    }
}

/// Gives a stub for a target of a branch in the code of +iseq+, in the place of one that is not needed any more.
pub fn reuse(ctx: u32, iseq: IseqPtr, ocb: &mut OutlinedCb, branch: usize, target: u32) -> Option<CodePtr> {
    if unsafe { FREE.is_empty() } {
        return None;
    }
    let ctx = Context::decode(ctx);
    if ctx.is_return_landing() || ctx.get_reg_mapping() != Default::default() {
        return None;
    }
    let ocb = ocb.unwrap();
    let address = unsafe { FREE.pop() }?;
    for (index, byte) in word(branch, target).to_le_bytes().iter().enumerate() {
        ocb.write_mem(address.add_bytes(WORD_AT + index), *byte).ok()?;
    }
    let payload = get_or_create_iseq_payload(iseq);
    for page in ocb.addrs_to_pages(address, address.add_bytes(SIZE)) {
        payload.pages.insert(page);
    }
    Some(address)
}

/// Forgets the stubs that could be used again. Called before a code GC.
pub fn forget() {
    unsafe { FREE = Vec::new() };
}

/// Called in the child of a fork.
pub fn inherit() {
    forget();
    unsafe { INHERITED_END = Some(CodegenGlobals::get_outlined_cb().unwrap().get_write_ptr()) };
}
