// A service that gives its memory back after each batch of work (debug.FreeOSMemory) to keep its footprint small.
//
// heap BATCHES [keep]: with the word, it never does.
package main

import (
	"os"
	"runtime/debug"
	"strconv"
	"sync"
)

var kept [4][]byte

//go:noinline
func work(worker int) {
	for i := 0; i < 64; i++ {
		buffer := make([]byte, 256<<10)
		for at := 0; at < len(buffer); at += 4096 {
			buffer[at] = 1
		}
		kept[worker] = buffer
	}
}

//go:noinline
func giveBack() {
	debug.FreeOSMemory()
}

func main() {
	batches, _ := strconv.Atoi(os.Args[1])
	for range batches {
		var group sync.WaitGroup
		for worker := range kept {
			group.Add(1)
			go func() { defer group.Done(); work(worker) }()
		}
		group.Wait()
		if len(os.Args) == 2 {
			giveBack()
		}
	}
}
