int plain(int);
int live_beside(int);

__attribute__((noinline)) int live(int x) {
    __asm__ volatile("" : "+r"(x));
    return x + 5;
}

int main(void) {
    return plain(1) + live(2) + live_beside(3) - 18;
}
