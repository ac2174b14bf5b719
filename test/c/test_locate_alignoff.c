/* SPDX-License-Identifier: BSD-2-Clause */
/* cc -I../../gc test_locate_alignoff.c -lcmocka */
#define COW_LOCATE_BY COW_LOCATE_ALIGNOFF
#include "locate_cases.h"
