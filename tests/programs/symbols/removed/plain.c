/* Compiled without debug information, like a library that was built long ago. */
__attribute__((noinline)) int plain(int x) {
    __asm__ volatile("" : "+r"(x));
    return x + 4;
}
