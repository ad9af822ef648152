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

// callFilter refuses the system calls in refusedCalls with EPERM, new processes, and signals to other
// processes. Everything else is allowed, because the Go runtime and the C library need much.
func callFilter(self uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		bits   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
	)
	refuse := uint32(unix.SECCOMP_RET_ERRNO | unix.EPERM)
	f := []unix.SockFilter{
		{Code: load, K: callArch},
		{Code: equal, K: auditArch, Jt: 1},
		{Code: answer, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: callNumber},
		{Code: least, K: 1 << 30, Jf: 1}, // another table of calls on amd64
		{Code: answer, K: refuse},
		{Code: equal, K: unix.SYS_CLONE3, Jf: 1},
		{Code: answer, K: uint32(unix.SECCOMP_RET_ERRNO | unix.ENOSYS)}, // its flags cannot be seen; the C library then uses clone
	}
	for _, number := range refusedCalls() {
		f = append(f, unix.SockFilter{Code: equal, K: uint32(number), Jf: 1}, unix.SockFilter{Code: answer, K: refuse})
	}
	return append(f,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 3},
		unix.SockFilter{Code: load, K: firstArg},
		unix.SockFilter{Code: bits, K: unix.CLONE_THREAD, Jt: 4},
		unix.SockFilter{Code: answer, K: refuse},
		unix.SockFilter{Code: equal, K: unix.SYS_TGKILL, Jf: 2},
		unix.SockFilter{Code: load, K: firstArg},
		unix.SockFilter{Code: equal, K: self, Jf: 1},
		unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: answer, K: refuse},
	)
}

// refusedCalls returns the numbers of the refused system calls.
func refusedCalls() []int {
	return append(olderCalls(),
		unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_MEMFD_CREATE,
		unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4,
		unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMSG, unix.SYS_RECVMMSG,
		unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_PRLIMIT64, unix.SYS_SETRLIMIT, unix.SYS_PRCTL, unix.SYS_SECCOMP, unix.SYS_PERSONALITY,
		unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
		unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT,
		unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_CAPSET, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
		unix.SYS_IO_URING_SETUP, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_SHMGET, unix.SYS_MSGGET,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT)
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
