package task

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"
)

// Meter measures this process between Start and Stop.
type Meter struct {
	begun   time.Time
	user    time.Duration
	system  time.Duration
	mem     runtime.MemStats
	profile *os.File
}

// Start begins to measure. It first collects the warm-up's garbage, so that no client pays for
// another client's garbage.
func (m *Meter) Start(t Task) error {
	runtime.GC()
	if t.Profile != "" {
		f, err := os.Create(filepath.Join(t.Profile, t.Do+".cpu.prof"))
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		m.profile = f
		if err := writeAllocs(t, ".before"); err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	runtime.ReadMemStats(&m.mem)
	m.begun = time.Now()
	m.user, m.system = processTime()
	return nil
}

// Stop ends measuring.
func (m *Meter) Stop(t Task) (Result, error) {
	user, system := processTime()
	user, system = user-m.user, system-m.system
	r := Result{Records: t.Records, Wall: time.Since(m.begun), CPU: user + system, System: system}
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	r.Mallocs, r.Bytes = now.Mallocs-m.mem.Mallocs, now.TotalAlloc-m.mem.TotalAlloc
	if m.profile == nil {
		return r, nil
	}
	pprof.StopCPUProfile()
	return r, m.writeProfiles(t)
}

func (m *Meter) writeProfiles(t Task) error {
	return errors.Join(writeAllocs(t, ""), m.profile.Close())
}

// writeAllocs writes all allocations since the process began. The allocations before the meter's
// start go into another file, for pprof's -base.
func writeAllocs(t Task, when string) error {
	runtime.GC() // allocations are in the profile only after a collection
	f, err := os.Create(filepath.Join(t.Profile, t.Do+when+".alloc.prof"))
	if err == nil {
		err = errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
	}
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// WriteHeap writes a profile of the live memory, if the task wants profiles.
func WriteHeap(t Task) error {
	if t.Profile == "" {
		return nil
	}
	return writeAllocs(t, ".heap")
}

// processTime returns the CPU time of this process, in user mode and in the kernel.
func processTime() (user, system time.Duration) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}
