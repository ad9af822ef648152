//go:build unix

package config

import (
	"io/fs"
	"syscall"
)

// isForeign reports whether a file belongs to another user than uid and root.
func isForeign(info fs.FileInfo, uid int) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && owner.Uid != 0 && int(owner.Uid) != uid
}
