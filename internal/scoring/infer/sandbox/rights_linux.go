package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// giveUpRights gives up what ONNX Runtime does not need once its library is loaded: opening files and
// sockets, starting processes, and reaching other processes. It returns the protections that the
// system does not have.
func giveUpRights() (weaker []string) {
	// The kernel ends this process first if the machine has no memory left.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	for name, limit := range map[string]int{"core files": unix.RLIMIT_CORE, "files": unix.RLIMIT_FSIZE} {
		if err := unix.Setrlimit(limit, &unix.Rlimit{}); err != nil {
			weaker = append(weaker, fmt.Sprintf("no limit of %s: %v", name, err))
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		weaker = append(weaker, fmt.Sprintf("other processes may read its memory: %v", err))
	}
	if err := filterCalls(); err != nil {
		weaker = append(weaker, fmt.Sprintf("no filter of system calls: %v", err))
	}
	return weaker
}

// filterCalls sets no_new_privs, and a filter of system calls, on all threads. Setting the filter on
// all threads sets no_new_privs on them too.
func filterCalls() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	filter := callFilter(uint32(os.Getpid()))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	thread, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	switch {
	case errno != 0:
		return errno
	case thread != 0:
		return fmt.Errorf("thread %d has another filter", thread)
	}
	return nil
}

// Offsets in the kernel's struct seccomp_data.
const (
	callNumber = 0
	callArch   = 4
	firstArg   = 16 // low half, on little-endian machines
)

// firstNew is the first system call that has the same number on all machines. The C library does without
// those from there on, if they answer ENOSYS: with clone in place of clone3, for one.
const firstNew = unix.SYS_PIDFD_SEND_SIGNAL

// callFilter allows the system calls in allowedCalls, new threads, and signals to this process. Others
// answer EPERM, so that a call that a library could use one day ends no child.
func callFilter(self uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		bits   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
	)
	f := []unix.SockFilter{
		{Code: load, K: callArch},
		{Code: equal, K: auditArch, Jt: 1},
		{Code: answer, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: callNumber},
	}
	for _, number := range allowedCalls {
		f = append(f, unix.SockFilter{Code: equal, K: number, Jf: 1}, unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW})
	}
	return append(f,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 2},
		unix.SockFilter{Code: load, K: firstArg},
		unix.SockFilter{Code: bits, K: unix.CLONE_THREAD, Jt: 4, Jf: 5},
		unix.SockFilter{Code: equal, K: unix.SYS_TGKILL, Jf: 2},
		unix.SockFilter{Code: load, K: firstArg},
		unix.SockFilter{Code: equal, K: self, Jt: 1, Jf: 2},
		unix.SockFilter{Code: least, K: firstNew, Jt: 2, Jf: 1},
		unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: answer, K: uint32(unix.SECCOMP_RET_ERRNO | unix.EPERM)},
		unix.SockFilter{Code: answer, K: uint32(unix.SECCOMP_RET_ERRNO | unix.ENOSYS)},
	)
}

// allowedCalls are the calls that the Go runtime, the C library and ONNX Runtime need once the library is
// loaded. The calls of each batch come first.
var allowedCalls = [...]uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_FUTEX,
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_BRK,
	unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETCPU, unix.SYS_GETRANDOM, unix.SYS_GETRUSAGE, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SYSINFO, unix.SYS_UNAME,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_SET_TID_ADDRESS, unix.SYS_RSEQ, unix.SYS_MEMBARRIER, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK, unix.SYS_WRITEV,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2,
}

// dataOf reads the size of the data from /proc/PID/status.
func dataOf(status string) uint64 {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmData:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
