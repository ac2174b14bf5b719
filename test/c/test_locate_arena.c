/* cc -I../../gc test_locate_arena.c -lcmocka */
#define LOCATE_BY LOCATE_ARENA
#include "locate_cases.h"
