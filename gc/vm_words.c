/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vm_words: the parts of vm_words.h that need the interpreter: its lock, and malloc where there is no region.
 *
 * Entry points: rb_gc_vm_words_alloc, rb_gc_vm_words_free, rb_gc_vm_words_inherited_p, which the VM calls;
 * rb_gc_yjit_alloc, rb_gc_yjit_free, rb_gc_yjit_fits, rb_gc_yjit_has, rb_gc_yjit_inherited_p, which YJIT
 * calls.
 */

#include "vm_words.h"

static struct cow_vm_words cow_vm_words = { .sign = COW_VM_WORDS_SIGN, .name = "Ruby:VM words" };
static struct cow_vm_words cow_yjit_words = { .sign = COW_VM_WORDS_YJIT_SIGN, .name = "Ruby:YJIT data",
                                              .sized_streams = COW_VM_WORDS_YJIT_LARGE };

/* Gives +size+ bytes that are 0, for words of +stream+ that the VM writes while it runs. NULL if +size+ is 0.
 * Raises NoMemoryError. May collect. */
void *
rb_gc_vm_words_alloc(enum cow_vm_words_stream stream, size_t size)
{
    if (size == 0) return NULL;
    unsigned int level = rb_gc_vm_lock();
    void *block = cow_vm_words_alloc(&cow_vm_words, stream, size);
    rb_gc_vm_unlock(level);

    if (block == NULL) return ruby_xcalloc(1, size);
    rb_gc_adjust_memory_usage((ssize_t)size);
    return block;
}

/* Frees what rb_gc_vm_words_alloc gave for the same stream and size. */
void
rb_gc_vm_words_free(enum cow_vm_words_stream stream, void *block, size_t size)
{
    if (block == NULL) return;
    unsigned int level = rb_gc_vm_lock();
    const bool ours = cow_vm_words_has(&cow_vm_words, block);
    if (ours) cow_vm_words_free(&cow_vm_words, stream, block, size);
    rb_gc_vm_unlock(level);

    if (ours) rb_gc_adjust_memory_usage(-(ssize_t)size);
    else ruby_xfree(block);
}

/* Is the word in a block of the VM's, and is that inherited? Without the VM lock: another Ractor that takes
 * memory meanwhile may make the answer wrong. */
bool
rb_gc_vm_words_inherited_p(const void *word)
{
    return cow_vm_words_inherited(&cow_vm_words, word);
}

/* Gives the stream for blocks of YJIT's of +size+ bytes. */
static enum cow_vm_words_stream
cow_yjit_stream(size_t size)
{
    const size_t units = (size - 1) / COW_VM_WORDS_UNIT;

    return units < COW_VM_WORDS_YJIT_LARGE ? (enum cow_vm_words_stream)units : COW_VM_WORDS_YJIT_LARGE;
}

/* Gives +size+ bytes for YJIT, whatever is in them, aligned to 8, to 16 if +size+ is a multiple of it; NULL
 * if there is no region or if the block is too large: then it is to be malloc's. */
void *
rb_gc_yjit_alloc(size_t size)
{
    unsigned int level = rb_gc_vm_lock();
    const enum cow_vm_words_stream stream = cow_yjit_stream(size);
    void *block = cow_vm_words_take(&cow_yjit_words, stream, size, false);

    rb_gc_vm_unlock(level);
    return block;
}

/* Frees a block of YJIT's of +size+ bytes. Gives false if it is malloc's: then it takes no lock, as there may
 * be no VM any more (RUBY_FREE_AT_EXIT). */
bool
rb_gc_yjit_free(void *block, size_t size)
{
    if (!rb_gc_yjit_has(block)) return false;
    unsigned int level = rb_gc_vm_lock();

    cow_vm_words_free(&cow_yjit_words, cow_yjit_stream(size), block, size);
    rb_gc_vm_unlock(level);
    return true;
}

/* Is the block of YJIT's not malloc's? */
bool
rb_gc_yjit_has(const void *block)
{
    return cow_vm_words_has(&cow_yjit_words, block);
}

/* Has a block of YJIT's that was asked for with +size+ room for +new_size+ bytes, and would another be no
 * smaller? */
bool
rb_gc_yjit_fits(size_t size, size_t new_size)
{
    if (new_size > COW_VM_WORDS_LARGEST || cow_yjit_stream(size) != cow_yjit_stream(new_size)) return false;
    return cow_vm_words_list(&size) == cow_vm_words_list(&new_size);
}

/* Is the block of YJIT's inherited? Not if it is malloc's. With the VM lock. */
bool
rb_gc_yjit_inherited_p(const void *block)
{
    return cow_vm_words_inherited(&cow_yjit_words, block);
}
