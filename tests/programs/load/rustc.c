/*
 * rustc without the allocator that its own main program brings along: COMPILER_MAIN is what that program calls,
 * in the library that is all the rest of it.
 */
unsigned char COMPILER_MAIN(void);

int main(void)
{
	return COMPILER_MAIN();
}
