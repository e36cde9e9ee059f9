/* Functions, some of which the linker removes: each is larger than the addresses where a program's code begins. */
#define LARGE __asm__ volatile(".skip 0x9000, 0x90")

__attribute__((noinline)) int dead_function(int x) {
    LARGE;
    return x + 1;
}

__attribute__((cold, noinline)) void dead_end(void) {
    LARGE;
    __builtin_trap();
}

/* Has code in two places. */
int dead_in_parts(int x) {
    LARGE;
    if (__builtin_expect(x > 1000, 0))
        dead_end();
    return x + 2;
}

/* Called, from another unit. */
__attribute__((noinline)) int live_beside(int x) {
    __asm__ volatile("" : "+r"(x));
    return x + 3;
}
