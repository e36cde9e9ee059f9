// Grows the heap of Go's own allocator, from one function in two goroutines, and produces garbage as well.
package main

import (
	"bufio"
	"fmt"
	"os"
)

var kept [][]byte

//go:noinline
func grow(bytes int) {
	for have := 0; have < bytes; have += 64 << 10 {
		block := make([]byte, 64<<10)
		for at := range block {
			block[at] = byte(at)
		}
		kept = append(kept, block)
	}
}

func main() {
	input := bufio.NewReader(os.Stdin)
	rendezvous := func(line string) {
		fmt.Println(line)
		input.ReadString('\n')
	}
	rendezvous("ready")
	grow(64 << 20)
	grown := make(chan bool)
	go func() {
		grow(64 << 20)
		grown <- true
	}()
	<-grown
	rendezvous("done")
	fmt.Println(len(kept))
}
