// A Go library for programs in other languages. Its exported function calls C again, on the stack of its own caller.
package main

/*
#include <stdlib.h>

static void *volatile kept;

__attribute__((noipa)) static int in_c(int depth)
{
	kept = malloc(1000 + depth);
	return *(volatile char *)kept + depth;
}

__attribute__((noipa)) static int leak(int depth)
{
	return depth > 1 ? leak(depth - 1) + 1 : in_c(depth);
}
*/
import "C"

//export Enter
func Enter(depth int) int {
	if depth > 1 {
		return Enter(depth-1) + 1
	}
	return int(C.leak(3))
}

func main() {}
