/* SPDX-License-Identifier: BSD-2-Clause */
/* cc -I../../gc test_locate_linear.c -lcmocka */
#define COW_LOCATE_BY COW_LOCATE_LINEAR
#include "locate_cases.h"
