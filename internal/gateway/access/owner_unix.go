//go:build unix

package access

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a file the owner of another file, so that the gateway can still read a file that
// root has changed.
func keepOwner(f *os.File, of fs.FileInfo) error {
	owner, ok := of.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() && int(owner.Gid) == os.Getegid() {
		return nil
	}
	if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("give it to its owner: %w; run this as user %d", err, owner.Uid)
	}
	return nil
}
