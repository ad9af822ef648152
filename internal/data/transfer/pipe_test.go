//go:build unix

package transfer

import "syscall"

func mkfifo(at string) error { return syscall.Mkfifo(at, 0o600) }
