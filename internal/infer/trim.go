package infer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kept is a file in the folder.
type kept struct {
	path string
	size int64
	used time.Time
}

// trim removes what was used longest ago until there is room, and what dead
// processes left. What others remove meanwhile is gone, which is well.
func (d *disk) trim() error {
	all, err := d.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range surplus(all, d.most-trimRoom*d.most/trimShare) {
		errs = append(errs, gone(os.Remove(k.path)))
	}
	return errors.Join(errs...)
}

// surplus are those that have to go so that no more than so many bytes stay.
func surplus(all []kept, most int64) []kept {
	slices.SortFunc(all, func(a, b kept) int { return b.used.Compare(a.used) })
	sum := int64(0)
	for i, k := range all {
		if sum += k.size; sum > most {
			return all[i:]
		}
	}
	return nil
}

func (d *disk) list() (all []kept, err error) {
	err = filepath.WalkDir(d.dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return gone(err)
		}
		temp := strings.HasSuffix(at, tempEnd)
		if !temp && !strings.HasSuffix(at, fileEnd) {
			return nil // not ours
		}
		i, err := e.Info()
		switch {
		case err != nil:
			return gone(err)
		case !temp:
			all = append(all, kept{at, i.Size(), i.ModTime()})
		case d.now().Sub(i.ModTime()) > tempFor:
			return gone(os.Remove(at))
		}
		return nil
	})
	return all, err
}
