/*
 * update_reference: follows one reference after compaction; included by gc.c.
 *
 * Job: a store of the value that is there already would copy the OS page of a forked child as well. So
 * nothing is written unless the object has moved.
 *
 * Entry point: rb_gc_update_reference, for the core's dcompact functions. Extensions store what
 * rb_gc_location gives, as before: this is not exported.
 *
 * Who writes this memory after a fork: a process that compacts, references to what has moved.
 */

/* +reference+ is the address of a VALUE, or of a pointer to an object: its bytes are copied, because the core
 * keeps some references as typed pointers. */
void
rb_gc_update_reference(void *reference)
{
    VALUE from, to;

    memcpy(&from, reference, sizeof(VALUE));
    to = rb_gc_location(from);
    if (to != from) memcpy(reference, &to, sizeof(VALUE));
}
