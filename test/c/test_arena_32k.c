/* SPDX-License-Identifier: BSD-2-Clause */
/* Heap pages of 32 KB: cc -I../../gc test_arena_32k.c -lcmocka */
#define HEAP_PAGE_ALIGN_LOG 15
#include "test_arena.c"
