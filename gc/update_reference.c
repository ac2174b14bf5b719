/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * update_reference: updates one reference after compaction; included by gc.c.
 *
 * Job: a store copies the OS page of a forked child even if it does not change the value. So this writes only
 * if the object has moved.
 *
 * Entry point: rb_gc_update_reference, for the core's dcompact functions. Extensions store what
 * rb_gc_location gives, as upstream's do: this function is not exported.
 *
 * Who writes this memory after a fork: a process that compacts writes references to objects that have moved.
 */

/* Updates the reference at +reference+: the address of a VALUE, or of a pointer to an object. Its bytes are
 * copied, because the core keeps some references as typed pointers. */
void
rb_gc_update_reference(void *reference)
{
    VALUE from, to;

    memcpy(&from, reference, sizeof(VALUE));
    to = rb_gc_location(from);
    if (to != from) memcpy(reference, &to, sizeof(VALUE));
}
