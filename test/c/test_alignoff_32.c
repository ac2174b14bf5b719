/* SPDX-License-Identifier: BSD-2-Clause */
/* Slots and page headers with pointers of 4 bytes: cc -I../../gc test_alignoff_32.c -lcmocka */
#define COW_WORD_SIZE ((size_t)4)
#define WORDS_OF_ANOTHER_SIZE
#include "test_alignoff.c"
