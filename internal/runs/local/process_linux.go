package local

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// prepareChild has the kernel kill a child with this process.
func prepareChild(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// sweep kills the processes that bear a cookie, but for those of attempts that
// are spared, and says how many there were.
func sweep(cookie string, spare func(run string, attempt int) bool) (killed int) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0 // without it there is nothing to go by
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || variable(env, cookieName) != cookie {
			continue // it has ended, or is somebody else's
		}
		number, _ := strconv.Atoi(variable(env, "TIDEMILL_ATTEMPT")) // 0 is none of ours
		if !spare(variable(env, "TIDEMILL_RUN"), number) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// variable is one of a process's.
func variable(env []byte, name string) string {
	for pair := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(pair, []byte(name+"=")); ok {
			return string(v)
		}
	}
	return ""
}
