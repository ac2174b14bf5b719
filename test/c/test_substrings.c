/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which slices of a string share its bytes: cc -I../../gc test_substrings.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "substring_policy.h"

#define KB 1024
#define MB (1024 * 1024)

/* A string that nobody has sliced, with no room to grow. */
static struct cow_substring_parent
parent_of(size_t length)
{
    return (struct cow_substring_parent){ .length = length, .root = length };
}

static void
test_short_slices_are_copies(void **state)
{
    struct cow_substring_parent parent = parent_of(8 * KB);

    assert_false(cow_substring_shares(&parent, 0));
    assert_false(cow_substring_shares(&parent, 1023));
    assert_true(cow_substring_shares(&parent, 1024));
    parent.frozen = parent.inherited = true;
    assert_false(cow_substring_shares(&parent, 1023));
}

/* What slices keep alive together is at most sixteen times what they have themselves. */
static void
test_small_parts_keep_no_long_string(void **state)
{
    struct cow_substring_parent parent = parent_of(MB);

    for (int frozen = 0; frozen <= 1; frozen++) {
        parent.frozen = frozen;
        assert_false(cow_substring_shares(&parent, KB));
        assert_false(cow_substring_shares(&parent, MB / 16 - 1));
        assert_true(cow_substring_shares(&parent, MB / 16));
    }
    /* The part that counts is that of the root. */
    parent.length = 64 * KB;
    assert_false(cow_substring_shares(&parent, 32 * KB));
    parent.inherited = true;
    assert_true(cow_substring_shares(&parent, KB));
}

static void
test_strings_that_grow(void **state)
{
    struct cow_substring_parent parent = parent_of(16 * KB);

    parent.room = 2 * KB - 1;
    assert_true(cow_substring_shares(&parent, 8 * KB));
    parent.room = 2 * KB;
    assert_false(cow_substring_shares(&parent, 8 * KB));
    parent.frozen = true;
    assert_true(cow_substring_shares(&parent, 8 * KB));
    parent.frozen = false;
    parent.shared = true;
    assert_true(cow_substring_shares(&parent, 8 * KB));
}

static void
test_strings_that_change(void **state)
{
    struct cow_substring_parent parent = parent_of(16 * KB);

    parent.changed = true;
    assert_false(cow_substring_shares(&parent, 8 * KB));
    parent.shared = true;
    assert_false(cow_substring_shares(&parent, 8 * KB));
    parent.frozen = true;
    assert_false(cow_substring_shares(&parent, 8 * KB));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_slices_are_copies),
        cmocka_unit_test(test_small_parts_keep_no_long_string),
        cmocka_unit_test(test_strings_that_grow),
        cmocka_unit_test(test_strings_that_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
