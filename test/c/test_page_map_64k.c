/* SPDX-License-Identifier: BSD-2-Clause */
/* The page map of heap pages of 64 KB, the largest: cc -I../../gc test_page_map_64k.c -lcmocka */
#define HEAP_PAGE_ALIGN_LOG 16
#include "test_page_map.c"
