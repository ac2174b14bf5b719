// SPDX-License-Identifier: BSD-2-Clause
//! yjit_map: RubyVM::YJIT.memory, what YJIT holds, by structure, and how much of it is inherited.
//!
//! Who writes this memory after a fork: nobody.

use super::*;
use crate::fork;
use crate::memory::Sum;

/// What the blocks of all iseqs hold.
#[derive(Default)]
struct Map {
    payloads: Sum,
    versions: Sum,
    pages: Sum,
    entries: Sum,
    blocks: Sum,
    dead_blocks: Sum,
    incoming: Sum,
    outgoing: Sum,
    references: Sum,
    branches: Sum,
    stubs: Sum,
    links: usize,
}

impl Map {
    fn add_payload(&mut self, payload: &IseqPayload) {
        self.payloads.add(payload, mem::size_of::<IseqPayload>());
        payload.version_map.add_to(&mut self.versions);
        payload.pages.add_to(&mut self.pages);
        for entry in payload.entries.iter() {
            self.entries.add(entry.as_ptr(), mem::size_of::<Entry>());
        }
        for block in payload.version_map.iter() {
            self.blocks.add(block.as_ptr(), mem::size_of::<Block>());
            // SAFETY: blocks in the version_map are initialized
            self.add_block(unsafe { block.as_ref() });
        }
        for block in payload.dead_blocks.iter() {
            self.dead_blocks.add(block.as_ptr(), mem::size_of::<Block>());
            // SAFETY: dead blocks were in a version_map
            self.add_block(unsafe { block.as_ref() });
        }
    }

    fn add_block(&mut self, block: &Block) {
        block.incoming.add_to(&mut self.incoming);
        block.outgoing.add_to(&mut self.outgoing);
        block.gc_obj_offsets.add_to(&mut self.references);
        block.cme_dependencies.add_to(&mut self.references);
        // SAFETY: the list is not modified
        unsafe { block.outgoing.for_each_in_place(|branch| self.add_branch(branch.as_ref())) };
    }

    fn add_branch(&mut self, branch: &Branch) {
        self.branches.add(branch, mem::size_of::<Branch>());
        for target in branch.targets.iter() {
            match target.get() {
                Some(BranchTarget::Stub(stub)) => self.stubs.add(stub, mem::size_of::<BranchStub>()),
                Some(BranchTarget::Block(_)) => self.links += 1,
                None => {}
            }
        }
    }
}

/// RubyVM::YJIT.memory. Gives a hash of hashes; nil if YJIT is not enabled.
#[no_mangle]
pub extern "C" fn rb_yjit_memory(_ruby_self: VALUE) -> VALUE {
    if !crate::yjit::yjit_enabled_p() {
        return Qnil;
    }
    with_vm_lock(src_loc!(), || {
        let inherited = fork::inherited();
        let mut map = Map::default();
        for_each_iseq(|iseq| {
            if let Some(payload) = get_iseq_payload(iseq) {
                map.add_payload(payload);
            }
        });
        let mut kinds = vec![
            ("payloads", map.payloads), ("versions", map.versions), ("pages", map.pages),
            ("entries", map.entries), ("blocks", map.blocks), ("dead_blocks", map.dead_blocks),
            ("incoming", map.incoming), ("outgoing", map.outgoing), ("references", map.references),
            ("branches", map.branches), ("stubs", map.stubs),
            ("invariants", Invariants::sum()), ("globals", CodegenGlobals::sum()),
            ("changed_words", crate::word::sum()),
        ];
        let known: usize = kinds.iter().map(|(_, sum)| sum.bytes).sum();
        let known_inherited: usize = kinds.iter().map(|(_, sum)| sum.inherited_bytes).sum();
        kinds.push(("other", Sum {
            count: 0,
            bytes: yjit_alloc_size().saturating_sub(known),
            inherited_bytes: inherited.alloc_size.saturating_sub(known_inherited),
        }));

        let cb = CodegenGlobals::get_inline_cb();
        let ocb = CodegenGlobals::get_outlined_cb().unwrap();
        kinds.push(("inline_code", Sum { count: 0, bytes: cb.code_size(), inherited_bytes: inherited.inline_code }));
        kinds.push(("outlined_code", Sum { count: 0, bytes: ocb.code_size(), inherited_bytes: inherited.outlined_code }));
        kinds.push(("mapped_code", Sum {
            count: 0, bytes: cb.mapped_region_size(), inherited_bytes: inherited.mapped_code,
        }));

        let hash = unsafe { rb_hash_new() };
        for (name, sum) in kinds {
            let entry = unsafe { rb_hash_new() };
            let set = |key: &str, value: usize| {
                unsafe { rb_hash_aset(entry, rust_str_to_sym(key), VALUE::fixnum_from_usize(value)) };
            };
            if sum.count > 0 {
                set("count", sum.count);
            }
            set("bytes", sum.bytes);
            set("inherited_bytes", sum.inherited_bytes);
            if name == "branches" {
                set("link_count", map.links);
            }
            unsafe { rb_hash_aset(hash, rust_str_to_sym(name), entry) };
        }
        hash
    })
}
