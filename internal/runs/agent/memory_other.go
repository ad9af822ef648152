//go:build !linux

package agent

const rssUnit = 1 // unit of ru_maxrss in bytes

// LimitsMemory reports whether the agent can measure, and so limit, the memory of a command.
const LimitsMemory = false

func peakNow(int) int64 { return 0 }

func groupMemory(int) (int64, []int) { return 0, nil }

func killAll([]int) {}
