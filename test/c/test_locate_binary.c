/* SPDX-License-Identifier: BSD-2-Clause */
/* cc -I../../gc test_locate_binary.c -lcmocka */
#define COW_LOCATE_BY COW_LOCATE_BINARY
#include "locate_cases.h"
