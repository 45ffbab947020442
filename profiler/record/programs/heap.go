// A service that gives its memory back after each batch of work, as programs do that want to look small:
// debug.FreeOSMemory after each batch, or, with the word "keep", never. With the word "collect" it collects garbage where it
// would give memory back, which is the half of that call that is none of the kernel's.
//
// go build -o heap heap.go
// heap SECONDS [keep|collect]: prints how many batches, and the CPU time in seconds.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"
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
	seconds := 2
	if len(os.Args) > 1 {
		seconds, _ = strconv.Atoi(os.Args[1])
	}
	how := "give back"
	if len(os.Args) > 2 {
		how = os.Args[2]
	}
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	batches := 0
	for time.Now().Before(until) {
		var group sync.WaitGroup
		for worker := range kept {
			group.Add(1)
			go func() { defer group.Done(); work(worker) }()
		}
		group.Wait()
		switch how {
		case "give back":
			giveBack()
		case "collect":
			runtime.GC()
		}
		batches++
	}
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	cpu := float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	fmt.Printf("%d %.3f\n", batches, cpu)
}
