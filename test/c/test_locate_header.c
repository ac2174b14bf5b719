/* cc -I../../gc test_locate_header.c -lcmocka */
#define LOCATE_BY LOCATE_HEADER
#include "locate_cases.h"
