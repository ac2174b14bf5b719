#ifndef COW_SETTING_H
#define COW_SETTING_H

/*
 * setting: how the text of a knob is read, wherever it comes from.
 *
 * Unset (NULL) and empty mean the default. What is no value gives false, and what the
 * knob was before is left alone: who asked says so and goes on.
 *
 * Entry points: cow_setting_name, cow_setting_switch. Both are pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Reads one of +count+ names; +place+ gets which of them it is, from 0 on. */
static inline bool
cow_setting_name(const char *text, const char *const names[], int count, int *place)
{
    if (text == NULL || text[0] == '\0') return true;
    for (int i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *place = i;
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
    int place = *on;

    if (!cow_setting_name(text, names, 2, &place)) return false;
    *on = place == 1;
    return true;
}

#endif
