// Calls C from goroutines, each from a different depth; C allocates, on the stack that Go's runtime keeps for it.
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

import (
	"bufio"
	"fmt"
	"os"
	"sync"
)

//go:noinline
func dive(depth int) int {
	if depth > 1 {
		return dive(depth-1) + 1
	}
	return int(C.leak(3))
}

func main() {
	input := bufio.NewReader(os.Stdin)
	rendezvous := func(line string) {
		fmt.Println(line)
		input.ReadString('\n')
	}
	rendezvous("ready")
	var running sync.WaitGroup
	for goroutine := 0; goroutine < 50; goroutine++ {
		running.Add(1)
		go func(depth int) {
			defer running.Done()
			for round := 0; round < 20; round++ {
				dive(depth)
			}
		}(goroutine % 7)
	}
	running.Wait()
	rendezvous("done")
}
