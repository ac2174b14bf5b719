/* cc -I../../gc test_locate_alignoff.c -lcmocka */
#define LOCATE_BY LOCATE_ALIGNOFF
#include "locate_cases.h"
