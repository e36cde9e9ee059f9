// Grows while it is watched: each ten milliseconds it keeps one large block and many tiny ones, and allocates more than
// that and frees it at once. Each time it writes to standard output, which may remain unread.
//
// usage: growing NAME TIMES
//
// Calls itself NAME. After TIMES times it ends with status 7; with TIMES 0, it does not end. Without frame pointers.
#include <cstdlib>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *volatile kept;

[[gnu::noipa]] static void keep_large() { kept = new char[4096]; }

[[gnu::noipa]] static void keep_many()
{
    for (int block = 0; block < 20; block++)
        kept = malloc(16);
}

[[gnu::noipa]] static void come_and_go()
{
    for (int block = 0; block < 100; block++) {
        kept = malloc(640);
        free(kept);
    }
}

int main(int, char **argv)
{
    prctl(PR_SET_NAME, argv[1]);
    // A pipe without a reader does not stop it.
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
    long times = atol(argv[2]);
    for (long time = 0; times == 0 || time < times; time++) {
        keep_large();
        keep_many();
        come_and_go();
        [[maybe_unused]] ssize_t written = write(STDOUT_FILENO, "noise\n", 6);
        usleep(10000);
    }
    return 7;
}
