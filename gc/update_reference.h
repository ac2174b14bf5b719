#ifndef COW_UPDATE_REFERENCE_H
#define COW_UPDATE_REFERENCE_H
/*
 * Follows one reference after compaction.
 *
 * Who writes: nobody, unless the object moved. A store of the value that
 * stands there already would copy the OS page of a forked child as well.
 *
 * Entry point: rb_gc_update_reference, for the core's dcompact functions.
 * Extensions keep storing what rb_gc_location says: this is not exported.
 */
#include <string.h>
#include "ruby/ruby.h"

/* +reference+ is the address of a VALUE or of a pointer to an object; it is
 * read as bytes because the core keeps some references as typed pointers. Not inlined: vm.c
 * would grow by so much that the compiler no longer inlines what calls of blocks need. */
MAYBE_UNUSED(NOINLINE(static void rb_gc_update_reference(void *reference)));

static void
rb_gc_update_reference(void *reference)
{
    VALUE from, to;

    memcpy(&from, reference, sizeof(VALUE));
    to = rb_gc_location(from);
    if (to != from) memcpy(reference, &to, sizeof(VALUE));
}

#endif /* COW_UPDATE_REFERENCE_H */
