/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_FOREIGN_H
#define COW_FOREIGN_H

/*
 * foreign: which code was compiled with headers that know nothing of slices without a terminator.
 *
 * Job: RSTRING_PTR of CRuby's headers is inlined into an extension. It gives the bytes as they are, and
 * many an extension reads on until a NUL. The headers of this ruby terminate there. So an extension that
 * was compiled with them says so by a symbol that they define (COW_FOREIGN_MARK), and all other code is
 * foreign.
 *
 * Invariant: while a foreign function runs, no string of its Ractor is unterminated, but where the collector
 * runs it (dmark, dfree, dsize, hooks of internal events): there strings stay as they are, and a function
 * that reads one there takes its length, as the string may be dead. Whatever calls one
 * brackets the call with rb_foreign_begin and rb_foreign_end: the first terminates all strings, and between
 * the two the execution context makes no slice that shares (rb_foreign_running). Where another thread or
 * fiber has run meanwhile, rb_foreign_resume does the same once more. An exception takes the count of its
 * tag (EC_PUSH_TAG).
 *
 * Entry points: rb_foreign_function_p; rb_foreign_begin, rb_foreign_end, COW_FOREIGN_CALL,
 * rb_foreign_resume; for dln.c rb_foreign_library_opened; for main.c rb_foreign_main; foreign_invokers.c.
 *
 * Who writes this memory after a fork: a process that loads an extension, or calls a foreign function; the
 * count lies in the execution context, whose page each thread writes anyway.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ruby/internal/config.h"
#include "ruby/internal/dllexport.h"

/* 0: substrings from the middle are copies, as in CRuby (configure --disable-shared-middle). */
#ifndef COW_SHARED_MIDDLE
# define COW_SHARED_MIDDLE 1
#endif

#define COW_FOREIGN_MARK "cowruby_terminates_strings"

struct rb_execution_context_struct;

/* How many strings may lack a terminator (substrings.c). */
extern size_t rb_unterminated_count;
void rb_unterminated_terminate(void);
void rb_unterminated_terminate_or_exit(void);
void rb_substrings_set_params(void);

/* Is all that calls the interpreter from outside known? Not where another program has loaded it. */
extern bool rb_foreign_own_program;
/* RUBY_STRING_SHARE_MIDDLE=poison. */
extern bool rb_foreign_poison;
/* The interpreter: from where on, and how many bytes. */
extern uintptr_t rb_foreign_own_code;
extern size_t rb_foreign_own_bytes;
bool rb_foreign_address_p(const void *function);
bool rb_foreign_running(void);
struct rb_method_cfunc_struct;
bool rb_cfunc_foreign_p(const struct rb_method_cfunc_struct *cfunc);
void rb_unterminated_moved(void);
void rb_foreign_begin(void);
void rb_foreign_end(void);
void rb_foreign_library_opened(void *handle, const char *init);
void rb_foreign_call_with_gvl(void *(*function)(void *), void *argument);
/* The program calls it, which may be another file than the interpreter (--enable-shared). */
RUBY_FUNC_EXPORTED void rb_foreign_main(void);

/* Is the function foreign? */
static inline bool
rb_foreign_function_p(const void *function)
{
    return (uintptr_t)function - rb_foreign_own_code >= rb_foreign_own_bytes &&
           rb_foreign_address_p(function);
}

bool rb_foreign_bracketed_p(const void *function);
/* The context goes on where it stood; others have run. */
void rb_foreign_resume(struct rb_execution_context_struct *ec);

/* Evaluates +call+, which calls +function+. */
#define COW_FOREIGN_CALL(function, call) do { \
    const bool cow_foreign_call = rb_foreign_function_p((const void *)(function)); \
    if (RB_UNLIKELY(cow_foreign_call)) rb_foreign_begin(); \
    call; \
    if (RB_UNLIKELY(cow_foreign_call)) rb_foreign_end(); \
} while (0)

#endif /* COW_FOREIGN_H */
