/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How the text of a setting is read: cc -I../../gc test_setting.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "sweep_modes.h"

static void
test_name(void **state)
{
    static const char *const names[] = { "low", "high", "" };
    static const struct { const char *text; bool good; int index; } cases[] = {
        { NULL, true, 7 }, { "", true, 7 }, { "low", true, 0 }, { "high", true, 1 },
        { "hig", false, 7 }, { "highe", false, 7 }, { "High", false, 7 }, { " high", false, 7 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int index = 7; /* stays where the text gives no value */
        assert_int_equal(cow_setting_name(cases[i].text, names, 3, &index), cases[i].good);
        assert_int_equal(index, cases[i].index);
    }
    int index = 7;
    assert_false(cow_setting_name("high", names, 1, &index));
    assert_int_equal(index, 7);
}

static void
test_switch(void **state)
{
    static const struct { const char *text; bool good, on; } cases[] = {
        { NULL, true, true }, { "", true, true }, { "1", true, true }, { "0", true, false },
        { "2", false, true }, { "00", false, true }, { "no", false, true }, { "0 ", false, true },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool on = true;
        assert_int_equal(cow_setting_switch(cases[i].text, &on), cases[i].good);
        assert_int_equal(on, cases[i].on);
    }
}

static void
test_number(void **state)
{
    static const struct { const char *text; bool good; double number; } cases[] = {
        { NULL, true, 5 }, { "", true, 5 }, { "0", true, 0 }, { "-0", true, 0 }, { "7", true, 7 },
        { "0.5", true, 0.5 }, { "-1", true, -1 }, { "1e400", true, HUGE_VAL },
        { "5%", false, 5 }, { "much", false, 5 }, { " ", false, 5 }, { "5 ", false, 5 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double number = 5;
        assert_int_equal(cow_setting_number(cases[i].text, &number), cases[i].good);
        assert_true(number == cases[i].number && (number < 0 || !signbit(number)));
    }
}

static void
test_sweep_mode(void **state)
{
    static const struct { const char *text; bool good; enum cow_sweep_mode mode; } cases[] = {
        { NULL, true, COW_SWEEP_DISCARD },
        { "keep", true, COW_SWEEP_KEEP },
        { "discard", true, COW_SWEEP_DISCARD },
        { "visit-all", true, COW_SWEEP_VISIT_ALL },
        { "proposed", true, COW_SWEEP_KEEP },
        { "normalsweep", true, COW_SWEEP_VISIT_ALL },
        { "normal", false, COW_SWEEP_DISCARD },
        { "0", false, COW_SWEEP_DISCARD },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum cow_sweep_mode mode = COW_SWEEP_DISCARD;
        assert_int_equal(cow_sweep_mode_read(cases[i].text, &mode), cases[i].good);
        assert_int_equal(mode, cases[i].mode);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_number),
        cmocka_unit_test(test_sweep_mode),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
