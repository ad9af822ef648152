package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"tidemill.dev/api"
)

// Scan lists the files below a folder, by path, with their digests. A link to
// what lies in the folder is followed; one that leads out of it, and what is no
// file, are errors that name it.
func Scan(ctx context.Context, dir string, count Count) ([]api.File, error) {
	return scan(ctx, dir, count, func(s *scanning) error { return s.folder(".", false) })
}

// ScanFile is Scan of one file of a folder.
func ScanFile(ctx context.Context, dir, name string, count Count) ([]api.File, error) {
	return scan(ctx, dir, count, func(s *scanning) error { return s.link(name, true) })
}

// scanning is a folder on its way into a list.
type scanning struct {
	root  *os.Root
	crew  *crew
	tally tally
	files []*api.File

	buffers sync.Pool // of *[readSize]byte
}

func scan(ctx context.Context, dir string, count Count, walk func(*scanning) error) ([]api.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder: %w", err)
	}
	defer root.Close()
	s := &scanning{root: root, crew: newCrew(ctx, min(runtime.GOMAXPROCS(0), 8)), tally: tally{count: count}}
	if err := s.crew.wait(walk(s)); err != nil {
		return nil, err
	}
	all := make([]api.File, len(s.files))
	for i, f := range s.files {
		all[i] = *f
	}
	slices.SortFunc(all, func(a, b api.File) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

// folder goes through a folder. Linked says that a link led to it: another link
// to a folder below it may well lead back, and is refused.
func (s *scanning) folder(name string, linked bool) error {
	d, err := s.root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		some, err := d.ReadDir(1000)
		for _, e := range some {
			if err := s.one(path.Join(name, e.Name()), e.Type(), linked); err != nil {
				return err
			}
		}
		if len(some) == 0 {
			return ended(err)
		}
	}
}

func (s *scanning) one(name string, kind fs.FileMode, linked bool) error {
	switch {
	case !utf8.ValidString(name):
		return fmt.Errorf("the name %q is not UTF-8: rename the file", name)
	case strings.HasPrefix(path.Base(name), draftName):
		return nil
	case kind.IsDir():
		return s.folder(name, linked)
	case kind&fs.ModeSymlink != 0:
		return s.link(name, linked)
	}
	return s.entry(name, kind)
}

// link follows a link. The root refuses to follow it out of the folder.
func (s *scanning) link(name string, linked bool) error {
	info, err := s.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is a link to nothing: remove it", name)
	case err != nil:
		return fmt.Errorf("%s is a link that leads out of the folder, or cannot be followed: put what it means in its place (%w)", name, err)
	case info.IsDir() && linked:
		return fmt.Errorf("%s is a link to a folder, below another such link: put what it means in its place", name)
	case info.IsDir():
		return s.folder(name, true)
	}
	return s.entry(name, info.Mode().Type())
}

// entry has a file read, but opens nothing that is none: to open a pipe waits.
func (s *scanning) entry(name string, kind fs.FileMode) error {
	if !kind.IsRegular() {
		return fmt.Errorf("%s is %s, and only files can be kept: remove it", name, kindOf(kind))
	}
	f := &api.File{Path: name}
	s.files = append(s.files, f)
	s.crew.do(func(ctx context.Context) error { return s.read(ctx, f) })
	return context.Cause(s.crew.ctx)
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsDir():
		return "a folder"
	}
	return "no file"
}
