// A C server whose allocation functions check for failure: sessions that are opened until there is no more room
// and then replace each other, buffers that grow by realloc and are freed, words that are read at the start, and an
// error path that forgets a copy of the request one time in fifty: the leak, in `reject`.
//
// Says "ready" and waits for a line, or the end of its input, before it allocates. Runs until it is killed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "paced.h"

#define ROOM 2048

__attribute__((noinline)) static void *xmalloc(size_t size)
{
    void *block = malloc(size);
    if (!block)
        abort();
    return block;
}

__attribute__((noinline)) static char *xstrdup(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(xmalloc(size), text, size);
}

struct session {
    char *user;
    char state[240];
};

static struct session *sessions[ROOM];
static char *volatile words[4000];
static char *volatile seen;

__attribute__((noinline)) static void read_words(void)
{
    for (int word = 0; word < 4000; word++)
        words[word] = xstrdup("a word of the language that requests are in");
}

__attribute__((noinline)) static struct session *open_session(long number)
{
    char name[64];
    snprintf(name, sizeof name, "user number %ld of this server", number);
    struct session *session = xmalloc(sizeof *session);
    session->user = xstrdup(name);
    return session;
}

__attribute__((noinline)) static void close_session(struct session *session)
{
    free(session->user);
    free(session);
}

__attribute__((noinline)) static void reject(const char *request)
{
    seen = xstrdup(request);
}

__attribute__((noinline)) static void parse(long number)
{
    char *buffer = NULL;
    for (size_t size = 64; size <= 1024; size *= 2)
        buffer = realloc(buffer, size);
    snprintf(buffer, 1024, "request %ld, which is not understood at all, and is kept in whole for the log", number);
    if (number % 50 == 0)
        reject(buffer);
    free(buffer);
}

static void serve(long number)
{
    struct session **slot = &sessions[number % ROOM];
    if (*slot)
        close_session(*slot);
    *slot = open_session(number);
    parse(number);
}

int main(void)
{
    puts("ready");
    fflush(stdout);
    getchar();
    read_words();
    at_rate(1500, serve);
}
