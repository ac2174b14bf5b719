/*
 * When a heap is sealed, and which pages are: cc -I../../gc test_seal.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "seal.h"

static void
test_mode(void **state)
{
    static const struct { const char *text; bool good; enum seal_mode mode; } rows[] = {
        { NULL, true, SEAL_WARMUP }, { "", true, SEAL_WARMUP },
        { "off", true, SEAL_OFF }, { "warmup", true, SEAL_WARMUP }, { "auto", true, SEAL_AUTO },
        { "0", false, SEAL_WARMUP }, { "Auto", false, SEAL_WARMUP }, { "auto ", false, SEAL_WARMUP },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum seal_mode mode = SEAL_WARMUP; /* is left alone where the text says nothing */
        assert_int_equal(seal_mode_read(rows[i].text, &mode), rows[i].good);
        assert_int_equal(mode, rows[i].mode);
    }
}

static void
test_due(void **state)
{
    static const struct { size_t survivors, then, least; bool due; } rows[] = {
        { 999, 0, 1000, false }, { 1000, 0, 1000, true },
        /* a fork in a row: nothing is new */
        { 1000, 1000, 1000, false }, { 1124, 1000, 1000, false }, { 1125, 1000, 1000, true },
        /* objects have died since */
        { 1000, 2000, 1000, false },
        /* rounding never makes it due when nothing is new */
        { 7, 7, 0, false }, { 8, 7, 0, true }, { 0, 0, 0, false },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(seal_due(rows[i].survivors, rows[i].then, rows[i].least), rows[i].due);
    }
}

static void
test_survivors(void **state)
{
    assert_int_equal(seal_survivors(1000, 1000), 1000);
    assert_int_equal(seal_survivors(1000, 1800), 1000); /* the heap has grown as it does */
    assert_int_equal(seal_survivors(1000, 8000), 2000); /* no collection for long */
    assert_int_equal(seal_survivors(0, 8000), 2000);
    assert_int_equal(seal_survivors(0, 0), 0);
}

static void
test_room(void **state)
{
    assert_int_equal(seal_room(0), SEAL_ROOM_LEAST);
    assert_int_equal(seal_room(1000), SEAL_ROOM_LEAST + 2000 * sizeof(void *));
    assert_true(seal_room(SIZE_MAX) > SIZE_MAX / 4); /* and does not wrap */
}

static void
test_floor(void **state)
{
    size_t spare = 0;

    assert_int_equal(seal_floor(0, 0, &spare), 0);
    assert_int_equal(seal_floor(0, 800, &spare), 0);
    assert_int_equal(seal_floor(99, 800, &spare), 0);
    assert_int_equal(seal_floor(100, 800, &spare), 100);
    assert_int_equal(seal_floor(800, 800, &spare), 100);
    assert_int_equal(seal_floor(1, 1, &spare), 1);
    assert_int_equal(seal_floor(100, 801, &spare), 0);
    assert_int_equal(seal_floor(101, 801, &spare), 101);
}

/* Emptier pages, as long as there is something to spare. */
static void
test_spare(void **state)
{
    size_t spare = seal_spare(4000, 0);

    assert_int_equal(spare, 1000);
    assert_int_equal(seal_floor(0, 800, &spare), 0);
    assert_int_equal(seal_floor(400, 800, &spare), 100);
    assert_int_equal(spare, 1000);
    assert_int_equal(seal_floor(99, 800, &spare), 50);
    assert_int_equal(spare, 299);
    assert_int_equal(seal_floor(1, 301, &spare), 0);
    assert_int_equal(seal_floor(1, 300, &spare), 1);
    assert_int_equal(spare, 0);

    assert_int_equal(seal_spare(4000, 400), 600);
    assert_int_equal(seal_spare(4000, 1000), 0);
    assert_int_equal(seal_spare(4000, 5000), 0);
    assert_int_equal(seal_spare(3, 0), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mode),
        cmocka_unit_test(test_due),
        cmocka_unit_test(test_survivors),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_spare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
