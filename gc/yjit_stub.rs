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
//! On x86-64 the stub of another branch that saves the same values then takes its place: only the word differs. Not
//! used again are stubs to which a frame may return (JITReturn), those that lie on two OS pages or whose word has 32
//! bits, and in a child those that it has inherited. A code GC forgets those that wait.
//!
//! Who writes this memory after a fork: a child the stubs that it has made; it leaves inherited ones as they are.

use crate::asm::{CodeBlock, OutlinedCb};
use crate::backend::ir::{Assembler, Opnd, Reg, CFP, EC, SP};
use crate::codegen::CodegenGlobals;
use crate::core::{get_or_create_iseq_payload, Context, RegMapping};
use crate::cruby::{get_iseq_body_local_table_size, IseqPtr, Qundef, RUBY_OFFSET_CFP_PC, RUBY_OFFSET_CFP_SP};
use crate::cruby::{SIZEOF_VALUE, VALUE};
use crate::virtualmem::CodePtr;
use std::collections::HashMap;
use std::os::raw::c_void;

/// The register in which the word comes to the trampoline. Neither values of the stack nor arguments lie in it.
#[cfg(target_arch = "x86_64")]
const REGISTER: Reg = crate::asm::x86_64::R11_REG;
#[cfg(target_arch = "aarch64")]
const REGISTER: Reg = crate::asm::arm64::X17_REG;

pub const WORD_OPND: Opnd = Opnd::Reg(REGISTER);

/// What stands behind the values that a stub saves: movabs $word, %r11; jmp trampoline
const END_SIZE: usize = 15;
const MOVABS_R11: [u8; WORD_AT] = [0x49, 0xbb];
const WORD_AT: usize = 2;
const JMP: u8 = 0xe9;
const JMP_AT: usize = 10;
/// A stub that saves more is not used again.
const MOST_SAVED: usize = 48;
/// Bytes of the smallest OS page.
const OS_PAGE: usize = 4096;

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

/// What the code of a stub depends on beside the word: which values it saves, and where.
#[derive(PartialEq, Eq, Hash)]
struct Shape(RegMapping, u8, i8, u32);

/// A stub to which nobody comes any more, and how many bytes of it save values.
#[derive(Clone, Copy)]
struct FreeStub(CodePtr, u8);

static mut FREE: Option<HashMap<Shape, Vec<FreeStub>>> = None;
/// Outlined code below is inherited.
static mut INHERITED_END: Option<CodePtr> = None;

/// Gives the shape of a stub for +iseq+; none if it is one to which a frame returns.
fn shape(ctx: &Context, iseq: IseqPtr) -> Option<Shape> {
    let locals = unsafe { get_iseq_body_local_table_size(iseq) };
    (!ctx.is_return_landing()).then(|| {
        Shape(ctx.get_reg_mapping(), ctx.get_stack_size(), ctx.get_sp_offset(), locals)
    })
}

/// Are +bytes+ nothing but moves of registers to the VM's stack (mov %reg, disp(%rbx))?
fn only_saves(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [0x48 | 0x4c, 0x89, modrm, rest @ ..] => match (modrm & 0xc7, rest.len()) {
            (0x03, _) => only_saves(rest),
            (0x43, 1..) => only_saves(&rest[1..]),
            (0x83, 4..) => only_saves(&rest[4..]),
            _ => false,
        },
        _ => false,
    }
}

/// Gives how many bytes a stub has in front of its end; none if that is not found in the same OS page.
fn saved_size(stub: CodePtr, word: usize, cb: &CodeBlock) -> Option<usize> {
    let trampoline = CodegenGlobals::get_branch_stub_hit_trampoline().as_offset();
    let start = stub.as_offset();
    let room = OS_PAGE - stub.raw_addr(cb) % OS_PAGE;
    // SAFETY: code is mapped by whole OS pages
    let bytes = unsafe { std::slice::from_raw_parts(stub.raw_ptr(cb), room.min(MOST_SAVED + END_SIZE)) };
    bytes.windows(END_SIZE).enumerate().find_map(|(saved, end)| {
        let distance = (trampoline - start - (saved + END_SIZE) as i64) as i32;
        (end[..WORD_AT] == MOVABS_R11 && end[WORD_AT..JMP_AT] == word.to_le_bytes() &&
            end[JMP_AT] == JMP && end[JMP_AT + 1..] == distance.to_le_bytes()).then(|| saved)
    }).filter(|&saved| only_saves(&bytes[..saved]))
}

/// Notes that the stub of a target of a branch is not needed any more, as the branch leads to a block now.
pub fn free(stub: CodePtr, ctx: &Context, iseq: IseqPtr, ocb: &mut OutlinedCb, branch: usize, target: u32) {
    if !cfg!(target_arch = "x86_64") || unsafe { INHERITED_END }.map_or(false, |end| stub < end) {
        return;
    }
    if let Some(shape) = shape(ctx, iseq) {
        if let Some(saved) = saved_size(stub, word(branch, target), ocb.unwrap()) {
            let free = unsafe { FREE.get_or_insert_with(HashMap::new) };
            free.entry(shape).or_insert_with(Vec::new).push(FreeStub(stub, saved as u8));
        }
    }
}

/// Gives a stub for a target of a branch in the code of +iseq+, in the place of one that is not needed any more.
pub fn reuse(ctx: u32, iseq: IseqPtr, ocb: &mut OutlinedCb, branch: usize, target: u32) -> Option<CodePtr> {
    let free = unsafe { FREE.as_mut() }?;
    let FreeStub(stub, saved) = free.get_mut(&shape(&Context::decode(ctx), iseq)?)?.pop()?;
    let ocb = ocb.unwrap();
    for (index, byte) in word(branch, target).to_le_bytes().iter().enumerate() {
        ocb.write_mem(stub.add_bytes(usize::from(saved) + WORD_AT + index), *byte).ok()?;
    }
    let payload = get_or_create_iseq_payload(iseq);
    for page in ocb.addrs_to_pages(stub, stub.add_bytes(usize::from(saved) + END_SIZE)) {
        payload.pages.insert(page);
    }
    Some(stub)
}

/// Forgets the stubs that could be used again, and which are inherited. Called before a code GC.
pub fn forget() {
    unsafe {
        FREE = None;
        INHERITED_END = None;
    }
}

/// Called in the child of a fork.
pub fn inherit() {
    unsafe {
        FREE = None;
        INHERITED_END = Some(CodegenGlobals::get_outlined_cb().unwrap().get_write_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_saves() {
        let rbx_rsi = [0x48, 0x89, 0x73, 0x08]; // mov %rsi, 8(%rbx)
        let rbx_r8 = [0x4c, 0x89, 0x83, 0x00, 0x01, 0x00, 0x00]; // mov %r8, 256(%rbx)
        let rbx_rdi = [0x48, 0x89, 0x3b]; // mov %rdi, (%rbx)
        assert!(only_saves(&[]) && only_saves(&[&rbx_rsi[..], &rbx_r8, &rbx_rdi].concat()));
        assert!(!only_saves(&rbx_rsi[..3]) && !only_saves(&rbx_r8[..6]) && !only_saves(&[0xe9]));
        assert!(!only_saves(&[0x48, 0x89, 0xf3])); // mov %rsi, %rbx
        assert!(!only_saves(&[0x48, 0x8b, 0x73, 0x08])); // mov 8(%rbx), %rsi
    }

    #[test]
    fn a_word_says_branch_and_target() {
        for target in [0, 1] {
            assert_eq!(branch_and_target(word(0x7fff_1234_5670, target)), (0x7fff_1234_5670 as *const c_void, target));
        }
    }
}
