package agent

import (
	"bytes"
	"os"
	"strconv"
)

const rssUnit = 1 << 10 // unit of ru_maxrss in bytes

// peakNow returns the peak memory of a running process until now.
func peakNow(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(text, []byte("\nVmHWM:"))
	if fields := bytes.Fields(rest); len(fields) > 0 {
		n, _ := strconv.ParseInt(string(fields[0]), 10, 64) // 0 if not a number
		return n << 10
	}
	return 0
}
