/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fork_malloc: allocators alone under fork. A parent boots: it allocates blocks of many sizes and frees a
 * part of them, so that holes are left. Then it forks children, one after the other, that work (blocks that
 * live a short time), keep blocks, and free some that they inherited. Prints, after each step, what a child
 * has for itself and how much of the parent's memory it shares, in KB, as the kernel says.
 *
 * fork_malloc MODE MEGABYTES: "plain", or "cow" with what gc/allocator.c does.
 */

#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>
#include "allocator.c"
#include "os.c"

enum { REQUESTS = 40, KEPT_BYTES = 18 << 20, REQUEST_BYTES = 9 << 20 };

struct block { void *memory; unsigned size; };

static bool cow;
static uint64_t state = 88172645463325252u;

static unsigned
next_random(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 11) % limit;
}

/* Sizes as Ruby asks for them: most are short, a few are long. */
static unsigned
next_size(void)
{
    unsigned kind = next_random(100);

    if (kind < 60) return 24 + next_random(104);
    if (kind < 90) return 128 + next_random(512);
    if (kind < 99) return 640 + next_random(4096);
    return 5000 + next_random(60000);
}

static void
release(void *memory)
{
    if (cow) cow_allocator_free(memory);
    else free(memory);
}

static struct block
take(void)
{
    struct block block = { NULL, next_size() };

    block.memory = malloc(block.size);
    if (block.memory == NULL) abort();
    memset(block.memory, 1, block.size);
    return block;
}

/* Allocates and frees +bytes+; what is alive at a time is a window. */
static void
work(size_t bytes)
{
    enum { WINDOW = 2000 };
    static struct block window[WINDOW];

    for (size_t done = 0; done < bytes; ) {
        struct block *block = &window[next_random(WINDOW)];

        if (block->memory) release(block->memory);
        *block = take();
        done += block->size;
    }
    for (int i = 0; i < WINDOW; i++) {
        if (window[i].memory) release(window[i].memory);
        window[i].memory = NULL;
    }
}

/* Prints private and shared dirty memory of this process, in KB. */
static void
look(const char *step)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    unsigned long dirty = 0, shared = 0, value;

    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "Private_Dirty: %lu", &value) == 1) dirty = value;
        if (sscanf(line, "Shared_Dirty: %lu", &value) == 1) shared = value;
    }
    if (file) fclose(file);
    printf("%s private %lu shared %lu\n", step, dirty, shared);
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s plain|cow MEGABYTES\n", argv[0]);
        return 2;
    }
    cow = strcmp(argv[1], "cow") == 0;
    if (cow) cow_allocator_find(true, COW_ALLOCATOR_LEAVE_LIMIT);
    size_t most = (size_t)atoi(argv[2]) << 20, bytes = 0, count = 0;
    struct block *blocks = cow_os_alloc((most / 64 * sizeof(*blocks) + 4095) & ~(size_t)4095);

    while (bytes < most) {
        blocks[count] = take();
        bytes += blocks[count++].size;
    }
    for (size_t i = 0; i < count; i++) {
        if (next_random(100) < 25) {
            free(blocks[i].memory);
            blocks[i].memory = NULL;
        }
    }
    printf("allocator %s\n", cow ? cow_allocator_name() : "plain");
    if (cow) cow_allocator_trim();
    for (int child = 0; child < 2; child++) {
        if (cow) cow_allocator_prefork(1, 0, 1);
        look("parent");
        pid_t pid = fork();

        if (pid == 0) {
            if (cow) cow_allocator_inherit();
            look("begin");
            for (int i = 0; i < REQUESTS; i++) work(REQUEST_BYTES);
            look("worked");
            for (size_t kept = 0; kept < KEPT_BYTES; ) kept += take().size;
            look("kept");
            for (size_t i = 0; i < count; i++) {
                if (blocks[i].memory && next_random(100) < 2) release(blocks[i].memory);
            }
            look("freed");
            for (int i = 0; i < REQUESTS; i++) work(REQUEST_BYTES);
            look("end");
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    return 0;
}
