/* SPDX-License-Identifier: BSD-2-Clause */
/* cc -I../../gc test_locate_header.c -lcmocka */
#define COW_LOCATE_BY COW_LOCATE_HEADER
#include "locate_cases.h"
