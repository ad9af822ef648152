package main

import (
	"os"
	"runtime"
	"strings"
)

// machine describes the machine on which the figures were measured.
type machine struct {
	System    string `json:"system"`
	Processor string `json:"processor,omitempty"`
	Cores     int    `json:"cores"`
	Go        string `json:"go"`
}

func thisMachine() machine {
	return machine{System: runtime.GOOS + "/" + runtime.GOARCH, Processor: processor(), Cores: runtime.NumCPU(), Go: runtime.Version()}
}

// processor returns the processor's name from /proc/cpuinfo, or an empty string.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
