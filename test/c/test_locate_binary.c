/* cc -I../../gc test_locate_binary.c -lcmocka */
#define LOCATE_BY LOCATE_BINARY
#include "locate_cases.h"
