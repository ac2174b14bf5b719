/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_SETTING_VALUES_H
#define COW_SETTING_VALUES_H

/*
 * setting_values: how the text of a setting is read, from the environment or from Ruby.
 *
 * A text that is NULL or empty stands for the default. For an invalid text a function gives false and leaves
 * the setting as it was; the caller warns.
 *
 * Entry points: cow_setting_name, cow_setting_switch, cow_setting_number. All are pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "assertion.h"

/* Reads one of +count+ names. Writes its index to +index+, or nothing if the text stands for the default. */
static inline bool
cow_setting_name(const char *text, const char *const names[], int count, int *index)
{
    COW_ASSERT(count > 0);
    if (text == NULL || text[0] == '\0') return true;
    for (int i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* Reads a switch, 0 or 1. */
static inline bool
cow_setting_switch(const char *text, bool *on)
{
    static const char *const names[] = { "0", "1" };
    int index = *on;

    if (!cow_setting_name(text, names, 2, &index)) return false;
    *on = index == 1;
    return true;
}

/* Reads a number, as strtod does, with nothing after it. What it may be the caller asks. */
static inline bool
cow_setting_number(const char *text, double *number)
{
    if (text == NULL || text[0] == '\0') return true;

    char *end;
    double found = strtod(text, &end);

    if (end == text || *end != '\0') return false;
    *number = found == 0 ? 0 : found; /* not -0 */
    return true;
}

#endif /* COW_SETTING_VALUES_H */
