/* A function of one file with the name of C's free, and another meaning. */
static int free_calls;

__attribute__((noinline, used)) static int free(int number)
{
	return free_calls += number;
}

__attribute__((constructor)) static void use(void)
{
	free(1);
}
