//go:build unix

package transfer

import "syscall"

const nonBlocking = syscall.O_NONBLOCK
