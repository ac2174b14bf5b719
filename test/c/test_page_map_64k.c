/* The page map where heap pages are of 64 KB, the longest there are. */
#define HEAP_PAGE_ALIGN_LOG 16
#include "test_page_map.c"
