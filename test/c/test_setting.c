/*
 * How a knob's text is read: cc -I../../gc test_setting.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "sweep.h"

static void
test_name(void **state)
{
    static const char *const names[] = { "low", "high", "" };
    static const struct { const char *text; bool good; int place; } rows[] = {
        { NULL, true, 7 }, { "", true, 7 }, { "low", true, 0 }, { "high", true, 1 },
        { "hig", false, 7 }, { "highe", false, 7 }, { "High", false, 7 }, { " high", false, 7 },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int place = 7; /* is left alone where the text says nothing */
        assert_int_equal(cow_setting_name(rows[i].text, names, 3, &place), rows[i].good);
        assert_int_equal(place, rows[i].place);
    }
    int place = 7;
    assert_false(cow_setting_name("high", names, 1, &place));
    assert_int_equal(place, 7);
}

static void
test_switch(void **state)
{
    static const struct { const char *text; bool good, on; } rows[] = {
        { NULL, true, true }, { "", true, true }, { "1", true, true }, { "0", true, false },
        { "2", false, true }, { "00", false, true }, { "no", false, true }, { "0 ", false, true },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool on = true;
        assert_int_equal(cow_setting_switch(rows[i].text, &on), rows[i].good);
        assert_int_equal(on, rows[i].on);
    }
}

static void
test_sweep_mode(void **state)
{
    static const struct { const char *text; bool good; enum cow_sweep_mode mode; } rows[] = {
        { NULL, true, COW_SWEEP_DISCARD }, { "proposed", true, COW_SWEEP_PROPOSED }, { "discard", true, COW_SWEEP_DISCARD },
        { "normalsweep", true, COW_SWEEP_NORMAL }, { "normal", false, COW_SWEEP_DISCARD }, { "0", false, COW_SWEEP_DISCARD },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum cow_sweep_mode mode = COW_SWEEP_DISCARD;
        assert_int_equal(cow_sweep_mode_read(rows[i].text, &mode), rows[i].good);
        assert_int_equal(mode, rows[i].mode);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_sweep_mode),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
