/* SPDX-License-Identifier: BSD-2-Clause */
/* The chatroom of seed 002's evaluation, written anew: servers and clients that talk over TCP.
 *
 * Each pair of processes is a server and a client with rooms of users. A user has a connection and four
 * threads: the client's sender and receiver, the server's receiver and sender. What a user sends, the server
 * sends to all users of the room. So with 20 users a room has 80 threads, and each message of 100 bytes is
 * delivered 20 times.
 *
 * usage: chatroom [processes [rooms [users [messages]]]]   (2, 1, 20, 100: rooms a pair, messages a user)
 * Prints one line of JSON: what it was asked for, messages delivered, and ms from the first message to the
 * last. Status 1 and a line on standard error where the system refuses something.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES 100
#define STACK 65536
#define ROOM 64 /* messages that wait for a server's sender; when they are so many, receivers wait */

static int rooms = 1, users = 20, messages = 100;

static void __attribute__((noreturn))
fail(const char *what)
{
    fprintf(stderr, "chatroom: error: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void
check(int error, const char *what)
{
    if (!error) return;
    errno = error;
    fail(what);
}

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    int count, next;
    char ring[ROOM][BYTES];
};

struct user {
    int socket, room;
    struct queue queue;
};

static struct user *all;

static void
transfer(int socket, char *bytes, int writes)
{
    for (int done = 0; done < BYTES;) {
        ssize_t n = writes ? write(socket, bytes + done, BYTES - done)
                           : read(socket, bytes + done, BYTES - done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) {
            errno = ECONNRESET;
            n = -1;
        }
        if (n < 0) fail(writes ? "write" : "read");
        done += n;
    }
}

static void *
server_receiver(void *argument)
{
    struct user *me = argument;
    char bytes[BYTES];

    for (int i = 0; i < messages; i++) {
        transfer(me->socket, bytes, 0);
        for (int j = me->room * users; j < (me->room + 1) * users; j++) {
            struct queue *queue = &all[j].queue;
            pthread_mutex_lock(&queue->lock);
            while (queue->count == ROOM) pthread_cond_wait(&queue->emptied, &queue->lock);
            memcpy(queue->ring[(queue->next + queue->count++) % ROOM], bytes, BYTES);
            pthread_cond_signal(&queue->filled);
            pthread_mutex_unlock(&queue->lock);
        }
    }
    return NULL;
}

static void *
server_sender(void *argument)
{
    struct user *me = argument;
    struct queue *queue = &me->queue;
    char bytes[BYTES];

    for (int i = 0; i < messages * users; i++) {
        pthread_mutex_lock(&queue->lock);
        while (queue->count == 0) pthread_cond_wait(&queue->filled, &queue->lock);
        memcpy(bytes, queue->ring[queue->next], BYTES);
        queue->next = (queue->next + 1) % ROOM;
        queue->count--;
        pthread_cond_signal(&queue->emptied);
        pthread_mutex_unlock(&queue->lock);
        transfer(me->socket, bytes, 1);
    }
    return NULL;
}

static void *
client_sender(void *argument)
{
    struct user *me = argument;
    char bytes[BYTES];

    memset(bytes, 'm', BYTES);
    for (int i = 0; i < messages; i++) transfer(me->socket, bytes, 1);
    return NULL;
}

static void *
client_receiver(void *argument)
{
    struct user *me = argument;
    char bytes[BYTES];

    for (int i = 0; i < messages * users; i++) transfer(me->socket, bytes, 0);
    return NULL;
}

/* Says that this process is ready, and waits until all are. */
static void
wait_for_all(int ready, const int *go)
{
    char byte = 0;
    close(go[1]);
    if (write(ready, &byte, 1) != 1) fail("pipe");
    if (read(go[0], &byte, 1) < 0) fail("pipe");
}

static void
run(void *(*receiver)(void *), void *(*sender)(void *), int ready, const int *go)
{
    int count = rooms * users;
    pthread_t *threads = calloc(count * 2, sizeof *threads);
    pthread_attr_t attributes;

    if (!threads) fail("memory");
    wait_for_all(ready, go);
    pthread_attr_init(&attributes);
    check(pthread_attr_setstacksize(&attributes, STACK), "stack");
    for (int i = 0; i < count; i++) {
        check(pthread_create(&threads[i * 2], &attributes, receiver, &all[i]), "thread");
        check(pthread_create(&threads[i * 2 + 1], &attributes, sender, &all[i]), "thread");
    }
    for (int i = 0; i < count * 2; i++) pthread_join(threads[i], NULL);
    exit(0);
}

static void
prepare(int index, int socket)
{
    int on = 1;
    struct user *user = &all[index];
    user->socket = socket;
    user->room = index / users;
    pthread_mutex_init(&user->queue.lock, NULL);
    pthread_cond_init(&user->queue.filled, NULL);
    pthread_cond_init(&user->queue.emptied, NULL);
    if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("socket option");
}

/* Connections are made one by one, so that both sides number users alike. */
static void
start_pair(int ready, const int *go)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), count = rooms * users;

    if (listener < 0 || bind(listener, (void *)&address, length) || listen(listener, 128) ||
        getsockname(listener, (void *)&address, &length)) fail("listen");
    all = calloc(count, sizeof *all);
    if (!all) fail("memory");
    fflush(stdout);
    pid_t server = fork();
    if (server < 0) fail("fork");
    if (server == 0) {
        for (int i = 0; i < count; i++) {
            int socket = accept(listener, NULL, NULL);
            if (socket < 0) fail("accept");
            prepare(i, socket);
        }
        run(server_receiver, server_sender, ready, go);
    }
    pid_t client = fork();
    if (client < 0) fail("fork");
    if (client == 0) {
        close(listener);
        for (int i = 0; i < count; i++) {
            int connection = socket(AF_INET, SOCK_STREAM, 0);
            if (connection < 0 || connect(connection, (void *)&address, length)) fail("connect");
            prepare(i, connection);
        }
        run(client_receiver, client_sender, ready, go);
    }
    close(listener);
    free(all);
}

static double
ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int
main(int argc, char **argv)
{
    int processes = argc > 1 ? atoi(argv[1]) : 2, ready[2], go[2], status, failed = 0;
    char byte;

    if (argc > 2) rooms = atoi(argv[2]);
    if (argc > 3) users = atoi(argv[3]);
    if (argc > 4) messages = atoi(argv[4]);
    if (argc > 5 || processes < 2 || processes % 2 || rooms < 1 || users < 1 || messages < 1) {
        fputs("usage: chatroom [processes [rooms [users [messages]]]]; processes are even\n", stderr);
        return 2;
    }
    if (pipe(ready) || pipe(go)) fail("pipe");
    for (int i = 0; i < processes / 2; i++) start_pair(ready[1], go);
    close(ready[1]);
    for (int i = 0; i < processes; i++) {
        if (read(ready[0], &byte, 1) != 1) {
            fputs("chatroom: error: a process has ended before it was ready\n", stderr);
            return 1;
        }
    }
    double start = ms();
    close(go[0]);
    close(go[1]); /* all others have closed it: the end of the pipe lets all go */
    while (wait(&status) > 0) failed |= status;
    double time = ms() - start;
    printf("{\"processes\": %d, \"rooms\": %d, \"users\": %d, \"sent\": %d, \"messages\": %ld, "
           "\"ms\": %.1f}\n",
           processes, processes / 2 * rooms, users, messages,
           (long)processes / 2 * rooms * users * users * messages, time);
    return failed ? 1 : 0;
}
