/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vm_words: the parts of vm_words.h that need the interpreter: its lock, and malloc where there is no region.
 *
 * Entry points: rb_gc_vm_words_alloc, rb_gc_vm_words_free, which the VM calls.
 */

#include "vm_words.h"

static struct cow_vm_words cow_vm_words;

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
