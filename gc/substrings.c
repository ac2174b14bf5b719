/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * substrings: slices from the middle of a string that share its bytes; included by string.c.
 *
 * Job: makes them, and terminates them where somebody wants a C string. A slice that shares is followed by
 * more of its parent's bytes, so it is unterminated; a NUL that stands there is the parent's and may
 * change. Which slices share says substring_policy.h.
 *
 * The flags, all of strings that are not embedded: STR_SHARES_MIDDLE with STR_SHARED is of a slice, without
 * it of the root whose bytes are shared. STR_CHANGED is of a string that was changed after others had
 * shared its bytes, or whose bytes were exposed: given to C code outside of the interpreter, which may keep
 * the address and write there without rb_str_modify() (Fiddle, ffi), or read by a system call (a locked
 * string). A root takes it from the string that it is made of; String#freeze ends it. What has it is not
 * sliced. Of an inherited string it also says that its bytes were replaced, with STR_SHARED as well: they are
 * not inherited then. Of a root without a class the same bit is upstream's STR_BORROWED.
 *
 * Invariants: a string is unterminated from when it is made, or never: so whoever keeps one may rely on
 * what was seen of it. Only functions that give it to Ruby at once make them (rb_str_slice); C code outside
 * of the interpreter that calls one of these reads what it gets by RSTRING_PTR of our headers, or is foreign
 * (foreign.h) and gets copies. What would share with one terminates it first. A frozen string is terminated,
 * and so is a locked one, and so is all that a foreign function can see. Only the main Ractor makes them,
 * and only while there is no other. Termination moves the bytes, at any moment at which other code may run:
 * so whoever keeps their address over such a moment terminates first (rb_str_terminated), as a match, a
 * block, a conversion with a fallback. A root's bytes stay where they are, and no root shares with another
 * one.
 *
 * To terminate is to copy, with malloc alone: no object is made, no Ruby runs and no collection begins, so
 * it is allowed wherever the string may be read, but for the collector itself.
 *
 * After: Feature #19315 of CRuby, "Ruby の文字列データの複製について" (the fourth seed).
 *
 * Entry points: cow_substring_new, cow_substring_root, cow_str_kept and cow_str_end_sharing, for string.c;
 * rb_str_terminate; rb_unterminated_terminate and rb_unterminated_terminate_or_exit, for foreign.c;
 * rb_str_expose, for the headers; rb_unterminated_marked and rb_unterminated_moved, for the collector, and
 * rb_substring_consistent and rb_unterminated_consistent; rb_substrings_set_params.
 *
 * Who writes this memory after a fork: a process that makes such a slice, in the list of them; one that
 * terminates it, in its slot.
 */

#include "internal/thread.h"
#include "rjit.h"
#include "ruby/thread.h"
#include "substring_policy.h"
#include "foreign.h"

/* The strings that may be unterminated, weakly. */
size_t rb_unterminated_count;
static struct {
    VALUE *strings;
    size_t room;
} cow_substrings;
/* Bytes of the shortest slice that may share. */
static long cow_substring_least = LONG_MAX;

/* What stands behind a slice in the mode for tests: a little of all that a parser could take for more of
 * it. */
static const char cow_substring_poison[] = "9_e7%:;'\"\\Z=}>\xE3\x81\x82/.,\n 0x1A*-+#&";
/* Bytes of the shortest slice that shares in that mode. */
#define COW_SUBSTRING_POISON_LEAST 16
/* Strings in the list that are looked through for those of one root. */
#define COW_SUBSTRING_SEARCHED 1000
/* What is found where a string stood before it was terminated. */
#define COW_SUBSTRING_GONE 0xdb

/* Puts the string on the list; false where there is no memory for that. */
static bool
cow_unterminated_add(VALUE str)
{
    if (rb_unterminated_count == cow_substrings.room) {
        const size_t room = cow_substrings.room ? cow_substrings.room * 2 : 64;
        VALUE *strings = realloc(cow_substrings.strings, room * sizeof(VALUE));
        if (!strings) return false;
        cow_substrings.strings = strings;
        cow_substrings.room = room;
    }
    cow_substrings.strings[rb_unterminated_count++] = str;
    return true;
}

/* The string has got other memory than it had. The bytes of an inherited one are not inherited then. */
static void
cow_str_replaced(VALUE str)
{
    if (!STR_EMBED_P(str) && rb_gc_obj_inherited_p(str)) FL_SET_RAW(str, STR_CHANGED);
}

/* Gives the string bytes of its own, with a terminator. False: there is no memory for them, and nothing is
 * changed. */
static bool
cow_unterminated_copy(VALUE str)
{
    const long len = RSTRING_LEN(str);
    char *bytes = RSTRING(str)->as.heap.ptr;

    RUBY_ASSERT(STR_UNTERMINATED_P(str) && STR_SHARED_P(str));
    VALUE root = RSTRING(str)->as.heap.aux.shared;
    char *own = malloc((size_t)len + 1);
    if (!own) return false;
    memcpy(own, bytes, len);
    own[len] = '\0';
    /* Nobody else shares such a root. */
    if (rb_foreign_poison) memset(bytes, COW_SUBSTRING_GONE, len);
    RSTRING(str)->as.heap.ptr = own;
    RSTRING(str)->as.heap.aux.capa = len;
    STR_SET_NOEMBED(str);
    cow_str_replaced(str);
    rb_gc_adjust_memory_usage(len + 1);
    RB_GC_GUARD(root);
    return true;
}

/* The same. Raises NoMemoryError. In a collection the string stays as it is. */
void
rb_str_terminate(VALUE str)
{
    if (!rb_during_gc() && !cow_unterminated_copy(str)) rb_memerror();
}

/* Terminates all strings. False: there is no memory for some. */
static bool
cow_unterminated_copy_all(void)
{
    while (rb_unterminated_count) {
        VALUE str = cow_substrings.strings[rb_unterminated_count - 1];
        if (STR_UNTERMINATED_P(str) && !cow_unterminated_copy(str)) return false;
        rb_unterminated_count--;
    }
    return true;
}

/* Terminates a slice, or all slices of the root whose bytes the string shares. False: there is no memory. */
static bool
cow_str_expose(VALUE str)
{
    if (rb_during_gc()) return true;
    if (STR_UNTERMINATED_P(str)) return cow_unterminated_copy(str);
    /* With more Ractors than one there is no slice, and the root's flags are not ours alone. */
    if (!STR_SHARED_P(str) || rb_multi_ractor_p()) return true;
    const VALUE root = RSTRING(str)->as.heap.aux.shared;
    if (!FL_ALL_RAW(root, STR_NOEMBED | STR_SHARES_MIDDLE)) return true;
    /* To look through a long list for each of many strings would take longer than to have none. */
    if (rb_unterminated_count > COW_SUBSTRING_SEARCHED) {
        if (!cow_unterminated_copy_all()) return false;
    }
    for (size_t i = 0; i < rb_unterminated_count; i++) {
        VALUE slice = cow_substrings.strings[i];
        if (!STR_UNTERMINATED_P(slice) || RSTRING(slice)->as.heap.aux.shared != root) continue;
        if (!cow_unterminated_copy(slice)) return false;
    }
    FL_UNSET_RAW(root, STR_SHARES_MIDDLE);
    FL_SET_RAW(root, STR_CHANGED);
    return true;
}

/* What cannot be copied stays: nothing can be raised where the GVL is not held. */
static void *
cow_str_expose_without_gvl(void *str)
{
    cow_str_expose((VALUE)str);
    return NULL;
}

/* The headers call this before C code gets the address of the string's bytes. A slice is terminated. Of
 * another string that shares, the root's slices are, and that root is sliced no more. Raises NoMemoryError.
 * In a collection all stays as it is. */
void
rb_str_expose(VALUE str)
{
    if (ruby_thread_has_gvl_p()) {
        if (!cow_str_expose(str)) rb_memerror();
    }
    else if (ruby_native_thread_p()) {
        rb_foreign_call_with_gvl(cow_str_expose_without_gvl, (void *)str);
    }
}

/* C code has got addresses that nobody noted: beside Ractors, or where it has no GVL, that would need a lock.
 * Then nothing shares any more. A child inherits it. */
static bool cow_substring_unnoted;

/* C code may keep the address of the string's bytes: as rb_str_expose, and no slice shares with it from now
 * on. */
static void
cow_str_kept(VALUE str)
{
    if (STR_EMBED_P(str) || FL_ANY_RAW(str, FL_FREEZE | STR_FAKESTR)) return;
    if (STR_SHARED_P(str)) rb_str_expose(str);
    const VALUE owner = STR_SHARED_P(str) ? RSTRING(str)->as.heap.aux.shared : str;
    /* Of one with less room no slice ever shares. */
    if (STR_EMBED_P(owner) || RSTRING(owner)->as.heap.aux.capa < COW_SUBSTRING_LEAST) return;
    if (rb_multi_ractor_p() || !ruby_thread_has_gvl_p()) {
        __atomic_store_n(&cow_substring_unnoted, true, __ATOMIC_RELAXED);
        return;
    }
    if (!FL_TEST_RAW(owner, STR_CHANGED)) FL_SET_RAW(owner, STR_CHANGED);
}

/* A new root takes the bytes of a string with these flags. */
static void
cow_substring_root(VALUE root, VALUE flags)
{
    if (RBASIC_CLASS(root) != 0 && flags & (STR_CHANGED | STR_TMPLOCK)) FL_SET_RAW(root, STR_CHANGED);
}

/* rb_str_set_len() of a string that shares, perhaps only because of a slice, which C code does not know of:
 * gives it bytes of its own, so many of what C code may have written. False: it is for another reason that
 * it shares. */
static bool
cow_str_end_sharing(VALUE str, long len)
{
    const VALUE root = RSTRING(str)->as.heap.aux.shared;

    if (STR_EMBED_P(root) || RBASIC_CLASS(root) == 0) return false;
    if (!FL_ANY_RAW(root, STR_SHARES_MIDDLE | STR_CHANGED)) return false;
    if (len > RSTRING_LEN(str)) {
        if (RSTRING(str)->as.heap.ptr != RSTRING(root)->as.heap.ptr) return false;
        if (len > RSTRING(root)->as.heap.aux.capa) return false;
        STR_SET_LEN(str, len);
        ENC_CODERANGE_CLEAR(str);
    }
    str_make_independent(str);
    return true;
}

/* Terminates all strings. Raises NoMemoryError. In a collection they stay as they are. */
void
rb_unterminated_terminate(void)
{
    if (!rb_during_gc() && !cow_unterminated_copy_all()) rb_memerror();
}

/* The same where nothing can be raised, as between two threads: without memory the process ends, as CRuby
 * ends it in a collection. */
void
rb_unterminated_terminate_or_exit(void)
{
    if (rb_during_gc() || cow_unterminated_copy_all()) return;
    fputs("[FATAL] failed to allocate memory\n", stderr);
    exit(EXIT_FAILURE);
}

/* At the end of marking: forgets those that are dead, and those that were terminated. +live_p+ says whether
 * an object was marked; +objspace+ is its first argument. */
void
rb_unterminated_marked(bool (*live_p)(void *objspace, VALUE obj), void *objspace)
{
    size_t kept = 0;

    for (size_t i = 0; i < rb_unterminated_count; i++) {
        VALUE str = cow_substrings.strings[i];
        if (live_p(objspace, str) && STR_UNTERMINATED_P(str)) cow_substrings.strings[kept++] = str;
    }
    rb_unterminated_count = kept;
}

/* After a compaction. */
void
rb_unterminated_moved(void)
{
    for (size_t i = 0; i < rb_unterminated_count; i++) {
        cow_substrings.strings[i] = rb_gc_location(cow_substrings.strings[i]);
    }
}

/* A string that shares so many bytes of +root+, from +bytes+ on; as UTF-8 or whatever the caller sets. */
static VALUE
cow_substring_of(VALUE str2, VALUE root, char *bytes, long len)
{
    FL_SET_RAW(str2, STR_NOEMBED);
    RSTRING(str2)->as.heap.ptr = bytes;
    STR_SET_LEN(str2, len);
    STR_SET_SHARED(str2, root);
    FL_SET_RAW(str2, STR_SHARES_MIDDLE);
    if (!FL_TEST_RAW(root, STR_SHARES_MIDDLE)) FL_SET_RAW(root, STR_SHARES_MIDDLE);
    if (!cow_unterminated_add(str2)) rb_str_terminate(str2);
    return str2;
}

/* The same for tests: of a root of its own, in which hostile bytes follow. */
static VALUE
cow_substring_poisoned(VALUE str, long beg, long len)
{
    VALUE root = str_alloc_heap(0);
    char *bytes = ALLOC_N(char, len + sizeof(cow_substring_poison));

    memcpy(bytes, RSTRING_PTR(str) + beg, len);
    /* The first of them is another one each time. */
    const size_t turn = (size_t)len % (sizeof(cow_substring_poison) - 1);
    for (size_t i = 0; i < sizeof(cow_substring_poison) - 1; i++) {
        bytes[len + i] = cow_substring_poison[(i + turn) % (sizeof(cow_substring_poison) - 1)];
    }
    bytes[len + sizeof(cow_substring_poison) - 1] = '\0';
    RSTRING(root)->as.heap.ptr = bytes;
    RSTRING(root)->as.heap.aux.capa = len + sizeof(cow_substring_poison) - 1;
    STR_SET_LEN(root, RSTRING(root)->as.heap.aux.capa);
    STR_SET_NOEMBED(root);
    OBJ_FREEZE(root);
    VALUE str2 = cow_substring_of(str_alloc_heap(rb_cString), root, bytes, len);
    RB_GC_GUARD(root);
    return str2;
}

/* A slice of +str+ that shares its bytes, or 0 where it is to be a copy. It has no encoding yet. Raises
 * NoMemoryError. */
static VALUE
cow_substring_new(VALUE str, long beg, long len)
{
    const VALUE flags = RBASIC(str)->flags;

    if (flags & (STR_TMPLOCK | STR_FAKESTR) || TERM_LEN(str) != 1) return 0;
    if (rb_foreign_running() || rb_multi_ractor_p()) return 0;
    if (__atomic_load_n(&cow_substring_unnoted, __ATOMIC_RELAXED)) return 0;
    if (rb_rjit_enabled) return 0; /* it calls foreign functions by itself */
    if (rb_foreign_poison) return cow_substring_poisoned(str, beg, len);
    /* An end is terminated. */
    if (beg + len == RSTRING_LEN(str) && !STR_UNTERMINATED_P(str)) return 0;
    if (!(flags & STR_NOEMBED)) return 0;

    VALUE root = flags & STR_SHARED ? RSTRING(str)->as.heap.aux.shared : str;
    if (STR_EMBED_P(root) || RBASIC_CLASS(root) == 0) return 0;
    /* The bytes of an inherited string are inherited, too, if it has not got others since. */
    const bool inherited =
        rb_gc_obj_inherited_p(root) || (!FL_TEST_RAW(str, STR_CHANGED) && rb_gc_obj_inherited_p(str));
    const struct cow_substring_parent parent = {
        .length = RSTRING_LEN(str),
        .room = flags & (STR_SHARED | STR_NOFREE) ? 0 : RSTRING(str)->as.heap.aux.capa - RSTRING_LEN(str),
        .root = RSTRING_LEN(root),
        .frozen = flags & FL_FREEZE,
        .shared = flags & STR_SHARED,
        .changed = FL_TEST_RAW(root, STR_CHANGED),
        .inherited = inherited,
    };
    if (!cow_substring_shares(&parent, len)) return 0;
    /* A hook for new objects may have the string terminated; the root keeps its bytes. */
    char *bytes = RSTRING_PTR(str) + beg;
    if (!(flags & STR_SHARED)) {
        root = rb_str_new_frozen(str);
        RUBY_ASSERT(!STR_EMBED_P(root));
        bytes = RSTRING_PTR(root) + beg;
    }
    VALUE str2 = str_alloc_heap(rb_cString);
    cow_substring_of(str2, root, bytes, len);
    RB_GC_GUARD(root);
    return str2;
}

/* Reads RUBY_STRING_SHARE_MIDDLE. */
void
rb_substrings_set_params(void)
{
    const char *given = getenv("RUBY_STRING_SHARE_MIDDLE");

    if (given && strcmp(given, "0") == 0) return;
    if (rb_foreign_own_program) {
        cow_substring_least = rb_foreign_poison ? COW_SUBSTRING_POISON_LEAST : COW_SUBSTRING_LEAST;
    }
    if (!given || !*given) return;
    if (strcmp(given, "1") != 0 && strcmp(given, "poison") != 0) {
        rb_warn("RUBY_STRING_SHARE_MIDDLE=%s is ignored: it must be 0, 1 or poison", given);
    }
    else if (!rb_foreign_own_program) {
        rb_warn("RUBY_STRING_SHARE_MIDDLE=%s is ignored: this ruby cannot share the middle of strings",
                given);
    }
}

/* Checks what the invariants say of a string that shares its middle. Writes a difference to +out+; false:
 * there is one. */
static bool
cow_substring_consistent(VALUE str, FILE *out)
{
    const VALUE flags = RBASIC(str)->flags;
    const char *field = NULL, *expected = "", *found = "";

    if (!STR_SHARED_P(str)) {
        if (!OBJ_FROZEN_RAW(str) || !FL_TEST_RAW(str, STR_SHARED_ROOT)) {
            field = "flags", expected = "those of a frozen root, or STR_SHARED", found = "others";
        }
    }
    else if (flags & (FL_FREEZE | STR_TMPLOCK)) {
        field = "flags", expected = "neither FL_FREEZE nor STR_TMPLOCK", found = "one";
    }
    else {
        const VALUE root = RSTRING(str)->as.heap.aux.shared;
        const char *bytes = RSTRING(str)->as.heap.ptr;

        if (!RB_TYPE_P(root, T_STRING) || !FL_TEST_RAW(root, STR_SHARES_MIDDLE) || STR_SHARED_P(root)) {
            field = "as.heap.aux.shared";
            expected = "a root with STR_SHARES_MIDDLE", found = "another object";
        }
        else if (bytes < RSTRING(root)->as.heap.ptr ||
                 bytes + RSTRING_LEN(str) > RSTRING(root)->as.heap.ptr + RSTRING_LEN(root)) {
            field = "as.heap.ptr", expected = "bytes of its root", found = "others";
        }
    }
    if (!field) return true;
    fprintf(out, "string %p that shares its middle, .%s: expected %s, found %s\n",
            (void *)str, field, expected, found);
    return false;
}

/* For a walk over the heap: the same for any object. */
bool
rb_substring_consistent(VALUE obj, FILE *out)
{
    if (!RB_TYPE_P(obj, T_STRING) || !FL_ALL_RAW(obj, STR_NOEMBED | STR_SHARES_MIDDLE)) return true;
    return cow_substring_consistent(obj, out);
}

/* Checks that strings stand in the list, and no more than it has room for. */
bool
rb_unterminated_consistent(FILE *out)
{
    if (rb_unterminated_count > cow_substrings.room) {
        fprintf(out, "cow_substrings.room: expected at least %" PRIuSIZE ", found %" PRIuSIZE "\n",
                rb_unterminated_count, cow_substrings.room);
        return false;
    }
    for (size_t i = 0; i < rb_unterminated_count; i++) {
        const VALUE str = cow_substrings.strings[i];

        if (!RB_TYPE_P(str, T_STRING)) {
            fprintf(out, "cow_substrings.strings[%" PRIuSIZE "]: expected a string, found %s\n",
                    i, rb_obj_info(str));
            return false;
        }
        if (!rb_substring_consistent(str, out)) return false;
    }
    return true;
}
