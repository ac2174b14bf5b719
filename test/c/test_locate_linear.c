/* cc -I../../gc test_locate_linear.c -lcmocka */
#define LOCATE_BY LOCATE_LINEAR
#include "locate_cases.h"
