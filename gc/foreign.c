/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * foreign: see foreign.h; included by vm.c.
 *
 * Entry points: those of foreign.h.
 *
 * Who writes this memory after a fork: a process that loads an extension.
 */

#include "foreign.h"
#include "ruby/thread.h"

#if COW_SHARED_MIDDLE && defined(HAVE_DLOPEN) && defined(HAVE_DL_ITERATE_PHDR)
# include <dlfcn.h>
# include <link.h>
# define COW_FOREIGN_KNOWN 1
#else
# define COW_FOREIGN_KNOWN 0
#endif

#if USE_YJIT && !(defined(USE_VM_CLOCK) && USE_VM_CLOCK)
/* yjit/src/cruby.rs knows where this stands. */
STATIC_ASSERT(cow_foreign_context, offsetof(rb_execution_context_t, thread_ptr) == 48);
#endif

bool rb_foreign_own_program, rb_foreign_poison;
uintptr_t rb_foreign_own_code;
/* Until it is known what is the interpreter's, nothing is foreign, and no slice shares. */
size_t rb_foreign_own_bytes = SIZE_MAX;

/* Does this execution context run a foreign function, or Ruby that one has called? */
bool
rb_foreign_running(void)
{
    return GET_EC()->foreign > 0;
}

/* Are strings terminated before the function of this new method is called? In the mode for tests they are
 * before some of the interpreter's, at random: so strings meet terminations wherever Ruby is called. */
bool
rb_foreign_bracketed_p(const void *function)
{
    return rb_foreign_function_p(function) || (rb_foreign_poison && ((uintptr_t)function >> 4) % 3 == 0);
}

/* For YJIT, which brackets no others in the mode for tests. */
bool
rb_cfunc_foreign_p(const rb_method_cfunc_t *cfunc)
{
    return rb_foreign_function_p((const void *)cfunc->func);
}

/* A foreign function is called. */
void
rb_foreign_begin(void)
{
    GET_EC()->foreign++;
    if (rb_unterminated_count) rb_unterminated_terminate();
}

/* It has returned. */
void
rb_foreign_end(void)
{
    GET_EC()->foreign--;
}

/* Calls the function with the GVL, from a thread of Ruby that has released it. No interrupt is served there,
 * as C code without the GVL expects of no function that it is left by an exception. */
void
rb_foreign_call_with_gvl(void *(*function)(void *), void *argument)
{
    rb_execution_context_t *ec = GET_EC();
    const rb_atomic_t mask = ec->interrupt_mask;

    ec->interrupt_mask = ~(rb_atomic_t)0;
    rb_thread_call_with_gvl(function, argument);
    ec->interrupt_mask = mask;
}

/* The context goes on where it stood; others have run. Nothing is raised here. */
void
rb_foreign_resume(rb_execution_context_t *ec)
{
    if (ec->foreign && rb_unterminated_count) rb_unterminated_terminate_or_exit();
}

#if COW_FOREIGN_KNOWN

/* The addresses of a program or library. */
struct cow_foreign_range {
    uintptr_t start;
    size_t bytes;
};

/* Those of the libraries that have the mark, in ascending order. Other Ractors may search a table at any
 * time, so it is not changed or freed: a library makes a new one. */
struct cow_foreign_table {
    size_t count;
    struct cow_foreign_range marked[];
};
static struct cow_foreign_table *cow_foreign;

static bool
cow_foreign_within(const struct cow_foreign_range *range, const void *address)
{
    return (uintptr_t)address - range->start < range->bytes;
}

/* What cow_foreign_find looks for, and finds. */
struct cow_foreign_search {
    const void *address;
    struct cow_foreign_range range;
};

/* For dl_iterate_phdr: is the address in this program or library? */
static int
cow_foreign_find(struct dl_phdr_info *info, size_t size, void *data)
{
    struct cow_foreign_search *search = data;
    uintptr_t start = UINTPTR_MAX, end = 0;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD) continue;
        const uintptr_t from = info->dlpi_addr + part->p_vaddr;
        if (from < start) start = from;
        if (from + part->p_memsz > end) end = from + part->p_memsz;
    }
    if (end <= start) return 0;
    search->range = (struct cow_foreign_range){ .start = start, .bytes = end - start };
    return cow_foreign_within(&search->range, search->address);
}

/* Of a function outside of the interpreter: is it of no library with the mark? What belongs to no library,
 * as code that was made by libffi, is foreign. */
bool
rb_foreign_address_p(const void *function)
{
    const struct cow_foreign_table *table = RUBY_ATOMIC_PTR_LOAD(cow_foreign);
    size_t low = 0, high = table ? table->count : 0;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        const struct cow_foreign_range *range = &table->marked[middle];
        if (cow_foreign_within(range, function)) return false;
        if ((uintptr_t)function < range->start) high = middle;
        else low = middle + 1;
    }
    return true;
}

/* Notes the library; where there is no memory for that it stays foreign. */
static void
cow_foreign_add(struct cow_foreign_range range)
{
    const struct cow_foreign_table *old = cow_foreign;
    size_t count = old ? old->count : 0, i = 0;
    struct cow_foreign_table *table = malloc(sizeof(*table) + (count + 1) * sizeof(range));

    if (!table) return;
    for (; i < count && old->marked[i].start < range.start; i++) table->marked[i] = old->marked[i];
    table->marked[i] = range;
    for (; i < count; i++) table->marked[i + 1] = old->marked[i];
    table->count = count + 1;
    RUBY_ATOMIC_PTR_EXCHANGE(cow_foreign, table);
}

/* The program's main function is ours: no other code calls the interpreter from outside. */
void
rb_foreign_main(void)
{
    struct cow_foreign_search own = { .address = (const void *)&cow_foreign_find };
    const char *mode = getenv("RUBY_STRING_SHARE_MIDDLE");

    rb_foreign_poison = mode && strcmp(mode, "poison") == 0;
    if (!dl_iterate_phdr(cow_foreign_find, &own)) return;
    rb_foreign_own_code = own.range.start;
    rb_foreign_own_bytes = own.range.bytes;
    rb_foreign_own_program = true;
}

/* An extension was opened, whose function +init+ is called next. */
void
rb_foreign_library_opened(void *handle, const char *init)
{
    const void *function = dlsym(handle, init), *mark = dlsym(handle, COW_FOREIGN_MARK);

    if (!function || !mark) return;
    struct cow_foreign_search library = { .address = mark };
    /* dlsym looks into what the library is linked with as well. */
    if (dl_iterate_phdr(cow_foreign_find, &library) && cow_foreign_within(&library.range, function)) {
        cow_foreign_add(library.range);
    }
}

#else

bool
rb_foreign_address_p(const void *function)
{
    return true;
}

void
rb_foreign_main(void)
{
}

void
rb_foreign_library_opened(void *handle, const char *init)
{
}

#endif
