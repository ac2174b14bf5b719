/* SPDX-License-Identifier: BSD-2-Clause */
/* cc -I../../gc test_locate_arena.c -lcmocka */
#define COW_LOCATE_BY COW_LOCATE_ARENA
#include "locate_cases.h"
