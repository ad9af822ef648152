package local

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// prepareChild makes the kernel kill a child together with this process.
func prepareChild(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// sweep kills the processes with a cookie, except those of spared attempts, and returns the number
// of killed processes.
func sweep(cookie string, spare func(run string, attempt int) bool) (killed int) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0 // processes cannot be listed
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || variable(env, cookieName) != cookie {
			continue // the process has ended or is not ours
		}
		number, _ := strconv.Atoi(variable(env, "TIDEMILL_ATTEMPT")) // 0 is no attempt's number
		if !spare(variable(env, "TIDEMILL_RUN"), number) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// variable returns the value of one environment variable of a process.
func variable(env []byte, name string) string {
	for pair := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(pair, []byte(name+"=")); ok {
			return string(v)
		}
	}
	return ""
}
