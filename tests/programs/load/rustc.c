/*
 * rustc without the allocator that its own main program contains: COMPILER_MAIN is the function that this program calls
 * in the library with the rest of the compiler.
 */
unsigned char COMPILER_MAIN(void);

int main(void)
{
	return COMPILER_MAIN();
}
