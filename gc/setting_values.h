/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_SETTING_VALUES_H
#define COW_SETTING_VALUES_H

/*
 * setting_values: how the text of a setting is read, from the environment or from Ruby.
 *
 * A text that is NULL or empty stands for the default. For an invalid text a function gives false and leaves
 * the setting as it was; the caller warns.
 *
 * Entry points: cow_setting_name, cow_setting_switch, cow_setting_number, cow_setting_bytes. All are pure but
 * for errno.
 */

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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

/* Reads a number of bytes, 0 and more, in decimal, with nothing after it but k, m or g, also as capitals.
 * Blanks may stand around it, as in upstream's settings. */
static inline bool
cow_setting_bytes(const char *text, size_t *bytes)
{
    if (text == NULL || text[0] == '\0') return true;

    char *end;
    while (isspace((unsigned char)*text)) text++;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    const unsigned long long found = strtoull(text, &end, 10);
    unsigned int shift = 0;

    switch (*end) {
      case 'k': case 'K': shift = 10; break;
      case 'm': case 'M': shift = 20; break;
      case 'g': case 'G': shift = 30; break;
    }
    if (shift > 0) end++;
    while (isspace((unsigned char)*end)) end++;
    /* As many as fit into a ssize_t, which GC.config takes. */
    if (errno != 0 || *end != '\0' || found > (unsigned long long)(SIZE_MAX / 2) >> shift) return false;
    *bytes = (size_t)found << shift;
    return true;
}

#endif /* COW_SETTING_VALUES_H */
