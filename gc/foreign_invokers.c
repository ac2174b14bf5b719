/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * foreign_invokers: how a method whose function is foreign (foreign.h) is called; included by vm_method.c.
 *
 * Job: a method of C code is called through its invoker, one for each number of arguments. That of a
 * foreign function brackets the call, so the others cost nothing.
 *
 * Entry points: cow_foreign_invoker, for setup_method_cfunc_struct. YJIT calls functions by itself and has
 * its own brackets.
 *
 * Who writes this memory after a fork: nobody; there is none.
 */

typedef VALUE (*cow_invoker)(VALUE recv, int argc, const VALUE *argv, VALUE (*func)(ANYARGS));

/* In the mode for tests functions of the interpreter may be called so: then all strings are terminated
 * before. */
#define COW_INVOKER(invoker) \
    static VALUE \
    cow_foreign_##invoker(VALUE recv, int argc, const VALUE *argv, VALUE (*func)(ANYARGS)) \
    { \
        if (UNLIKELY(rb_foreign_poison) && !rb_foreign_function_p((const void *)func)) { \
            rb_unterminated_terminate(); \
            return invoker(recv, argc, argv, func); \
        } \
        rb_foreign_begin(); \
        VALUE value = invoker(recv, argc, argv, func); \
        rb_foreign_end(); \
        return value; \
    }

#include "foreign_invoker_list.h"
#undef COW_INVOKER

/* What is to call the function in place of the invoker of the interpreter: itself, unless the function is
 * foreign. */
static cow_invoker
cow_foreign_invoker(cow_invoker invoker, const void *function)
{
#define COW_INVOKER(invoker) { invoker, cow_foreign_##invoker },
    static const struct { cow_invoker plain, foreign; } pairs[] = {
#include "foreign_invoker_list.h"
    };
#undef COW_INVOKER

    if (!rb_foreign_bracketed_p(function)) return invoker;
    for (size_t i = 0; i < numberof(pairs); i++) {
        if (pairs[i].plain == invoker) return pairs[i].foreign;
    }
    rb_bug("invoker %p: expected one of foreign_invoker_list.h, found another", (void *)invoker);
}
