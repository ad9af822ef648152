package node

import "runtime"

// multiarch is Debian's name of this machine's architecture, which is a folder of libraries.
func multiarch() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}
