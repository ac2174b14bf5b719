/* SPDX-License-Identifier: BSD-2-Clause */
/* Heap pages of 64 KB: cc -I../../gc test_arena_64k.c -lcmocka */
#define HEAP_PAGE_ALIGN_LOG 16
#include "test_arena.c"
