/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_VM_WORDS_STREAMS_H
#define COW_VM_WORDS_STREAMS_H

/*
 * vm_words_streams: what the VM calls to get memory for words that it writes while it runs (vm_words.h).
 */

#include <stdbool.h>
#include <stddef.h>

/* Bytes of a region. */
#ifndef COW_VM_WORDS_REGION
# define COW_VM_WORDS_REGION ((size_t)64 << 20)
#endif

/* What lies apart from what: words of one stream are written at about the same time, or by the same kind of
 * code, and are about equally old when they are freed. */
enum cow_vm_words_stream {
    COW_VM_WORDS_RUN, /* of methods and blocks */
    COW_VM_WORDS_ONCE, /* of what runs once: files, bodies of classes, eval */
    COW_VM_WORDS_JIT,
    COW_VM_WORDS_MUTEX,
    /* YJIT's data, in regions of its own, have a stream for each size of blocks up to 256 bytes, and one for
     * larger ones: what has a size in common is mostly of one type, and written at the same times. */
    COW_VM_WORDS_YJIT_LARGE = 32,
    COW_VM_WORDS_STREAMS
};

void *rb_gc_vm_words_alloc(enum cow_vm_words_stream stream, size_t size);
void rb_gc_vm_words_free(enum cow_vm_words_stream stream, void *block, size_t size);
bool rb_gc_vm_words_inherited_p(const void *word);
void *rb_gc_yjit_alloc(size_t size);
bool rb_gc_yjit_free(void *block, size_t size);
bool rb_gc_yjit_has(const void *block);
bool rb_gc_yjit_fits(size_t size, size_t new_size);
bool rb_gc_yjit_inherited_p(const void *block);

#endif /* COW_VM_WORDS_STREAMS_H */
