package task

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// Weigh is how much memory this process uses when it has thrown its garbage
// away.
func Weigh() Result {
	debug.FreeOSMemory() // collects first
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return Result{Heap: now.HeapAlloc, Resident: resident()}
}

// resident asks where Linux tells it.
func resident() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	var size, pages uint64
	if _, bad := fmt.Sscan(string(text), &size, &pages); err != nil || bad != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
