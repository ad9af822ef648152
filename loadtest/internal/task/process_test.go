package task

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// A process that works has CPU time, and it is about the time that the process itself measures.
func TestReadProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	memory := make([]byte, 64<<20)
	for user, system := processTime(); user+system < 200*time.Millisecond; user, system = processTime() {
		for i := range memory {
			memory[i]++
		}
	}
	p, err := ReadProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	user, system := processTime()
	if off := user + system - p.CPU; p.CPU < 150*time.Millisecond || off < -2*userTick || p.Resident < uint64(len(memory)) {
		t.Errorf("%+v, and the process itself says %s", p, user+system)
	}
	runtime.KeepAlive(memory)
}

func TestReadProcessThatHasEnded(t *testing.T) {
	if p, err := ReadProcess(1 << 30); err == nil {
		t.Errorf("no error, but %+v", p)
	}
}
