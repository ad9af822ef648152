//go:build unix

package parcel

import "syscall"

const nonBlocking = syscall.O_NONBLOCK
