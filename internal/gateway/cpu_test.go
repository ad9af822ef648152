//go:build unix

package gateway

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is the time that this process has used on all cores. It is more exact than a clock if
// other processes use the same cores.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
