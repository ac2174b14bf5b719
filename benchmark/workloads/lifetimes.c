/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * lifetimes: an extension that counts, by type, size and place of allocation, how many objects a program
 * makes and how many of them die before they have survived a collection.
 *
 * Lifetimes.begin starts to count. Lifetimes.groups gives [[type, bytes of the slot, place, made, young],
 * ...], where a place is a number and young says how many died at once. Objects of which that is not known
 * yet are not counted.
 *
 * Its tables are calloc's: the hooks run while objects are made and freed, where nothing may be allocated
 * that the collector knows. A table that is full ends the process.
 */
#include <ruby.h>
#include <ruby/debug.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

size_t rb_obj_memsize_of(VALUE object);

enum { PLACES = 1 << 16, GROUPS = 1 << 17, OBJECTS = 1 << 24 };

struct group { uint32_t place; uint16_t size; uint8_t type, used; size_t made, young; };
struct object { VALUE address; uint32_t group, born; }; /* .address 0: no object */

static struct { VALUE path; int line; } *places;
static struct group *groups;
static struct object *objects;
static size_t object_count, place_count, group_count;

static void
full(const char *what)
{
    fprintf(stderr, "lifetimes: the table of %s is full\n", what);
    _exit(1);
}

static size_t
hash(uint64_t key, size_t size)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (size - 1);
}

static uint32_t
place_of(rb_trace_arg_t *event)
{
    const VALUE path = rb_tracearg_path(event);
    const int line = NIL_P(path) ? 0 : FIX2INT(rb_tracearg_lineno(event));
    size_t i = hash(path ^ (uint64_t)line << 40, PLACES);

    while (places[i].path && (places[i].path != path || places[i].line != line)) i = (i + 1) & (PLACES - 1);
    if (places[i].path == 0) {
        if (++place_count > PLACES / 4 * 3) full("places");
        places[i].path = path;
        places[i].line = line;
    }
    return (uint32_t)i;
}

static uint32_t
group_of(uint32_t place, size_t size, int type)
{
    size_t i = hash((uint64_t)place << 32 | (uint64_t)size << 8 | (uint64_t)type, GROUPS);

    while (groups[i].used &&
           (groups[i].place != place || groups[i].size != size || groups[i].type != type)) {
        i = (i + 1) & (GROUPS - 1);
    }
    if (!groups[i].used) {
        if (++group_count > GROUPS / 4 * 3) full("groups");
        groups[i] = (struct group){ place, (uint16_t)size, (uint8_t)type, 1, 0, 0 };
    }
    return (uint32_t)i;
}

/* Gives where the object stands, or would. */
static size_t
find(VALUE address)
{
    size_t i = hash(address >> 3, OBJECTS);

    while (objects[i].address && objects[i].address != address) i = (i + 1) & (OBJECTS - 1);
    return i;
}

/* Takes the object at +i+ out, and moves others up to where they are looked for. */
static void
take_out(size_t i)
{
    size_t next = i;

    object_count--;
    for (;;) {
        next = (next + 1) & (OBJECTS - 1);
        if (objects[next].address == 0) break;
        const size_t home = hash(objects[next].address >> 3, OBJECTS);
        if (((next - home) & (OBJECTS - 1)) < ((next - i) & (OBJECTS - 1))) continue;
        objects[i] = objects[next];
        i = next;
    }
    objects[i].address = 0;
}

static void
made(VALUE event_value, void *data)
{
    rb_trace_arg_t *event = rb_tracearg_from_tracepoint(event_value);
    const VALUE object = rb_tracearg_object(event);
    const size_t i = find(object);

    if (objects[i].address == 0 && ++object_count > OBJECTS / 4 * 3) full("objects");
    const uint32_t group = group_of(place_of(event), rb_obj_memsize_of(object), RB_BUILTIN_TYPE(object));
    objects[i] = (struct object){ object, group, (uint32_t)rb_gc_count() };
}

static void
freed(VALUE event_value, void *data)
{
    const size_t i = find(rb_tracearg_object(rb_tracearg_from_tracepoint(event_value)));

    if (objects[i].address == 0) return;
    struct group *group = &groups[objects[i].group];
    group->made++;
    if (rb_gc_count() - objects[i].born <= 1) group->young++;
    take_out(i);
}

static VALUE made_hook, freed_hook;

static VALUE
lifetimes_begin(VALUE module)
{
    rb_tracepoint_enable(freed_hook);
    rb_tracepoint_enable(made_hook);
    return Qnil;
}

static VALUE
lifetimes_groups(VALUE module)
{
    rb_tracepoint_disable(made_hook);
    rb_tracepoint_disable(freed_hook);
    for (size_t i = 0; i < OBJECTS; i++) {
        if (objects[i].address && rb_gc_count() > objects[i].born) groups[objects[i].group].made++;
    }

    VALUE all = rb_ary_new();
    for (size_t i = 0; i < GROUPS; i++) {
        const struct group *group = &groups[i];
        if (!group->used || group->made == 0) continue;
        rb_ary_push(all, rb_ary_new_from_args(5, INT2FIX(group->type), INT2FIX(group->size),
                                              UINT2NUM(group->place), SIZET2NUM(group->made),
                                              SIZET2NUM(group->young)));
    }
    return all;
}

void
Init_lifetimes(void)
{
    const VALUE module = rb_define_module("Lifetimes");

    places = calloc(PLACES, sizeof(*places));
    groups = calloc(GROUPS, sizeof(*groups));
    objects = calloc(OBJECTS, sizeof(*objects));
    if (!places || !groups || !objects) rb_raise(rb_eNoMemError, "no memory for the tables");
    made_hook = rb_tracepoint_new(0, RUBY_INTERNAL_EVENT_NEWOBJ, made, NULL);
    freed_hook = rb_tracepoint_new(0, RUBY_INTERNAL_EVENT_FREEOBJ, freed, NULL);
    rb_gc_register_mark_object(made_hook);
    rb_gc_register_mark_object(freed_hook);
    rb_define_module_function(module, "begin", lifetimes_begin, 0);
    rb_define_module_function(module, "groups", lifetimes_groups, 0);
}
