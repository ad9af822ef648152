package task

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// Weigh returns the memory that this process uses after a garbage collection.
func Weigh() Result {
	debug.FreeOSMemory() // collects garbage first
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return Result{Heap: now.HeapAlloc, Resident: residentMemory()}
}

// residentMemory reads the resident memory from /proc/self/statm.
func residentMemory() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	var size, pages uint64
	if _, bad := fmt.Sscan(string(text), &size, &pages); err != nil || bad != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
