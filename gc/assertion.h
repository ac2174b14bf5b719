/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_ASSERTION_H
#define COW_ASSERTION_H

/*
 * assertion: COW_ASSERT, by which a function states what its caller must have ensured.
 *
 * In the tree it is RUBY_ASSERT: builds with CRuby's assertions (make debug) check it, and in other builds it
 * is no code. The unit tests in test/c always check it.
 *
 * A precondition that needs a lock is not asserted; the function's comment says "with the VM lock".
 */

#ifdef RUBY_ASSERT
# define COW_ASSERT(condition) RUBY_ASSERT(condition)
#else
# include <assert.h>
# define COW_ASSERT(condition) assert(condition)
#endif

#endif /* COW_ASSERTION_H */
