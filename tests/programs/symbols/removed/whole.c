/* A unit in one section for all functions: the linker removes all of it. */
int dead_first(int x) {
    __asm__ volatile(".skip 0x300, 0x90");
    return x + 1;
}

int dead_second(int x) {
    __asm__ volatile(".skip 0x9000, 0x90");
    return x + 2;
}
