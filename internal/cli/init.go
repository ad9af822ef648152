package cli

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

//go:embed all:initial
var initial embed.FS

// initialFiles is the folder of what init writes.
const initialFiles = "initial"

func initCommand() command {
	return command{
		name:    "init",
		args:    "[DIR]",
		summary: "write a config and a trainer to start from",
		about: `It writes tidemill.yaml with one recipe, a trainer that needs only Python, and a
little data to train with. A file that is there already is never overwritten: then
nothing is written at all.`,
		examples: []example{
			{"tidemill init", "in this folder"},
			{"tidemill init first-model", "in a new one"},
		},
		make: func() program { return &initialise{} },
	}
}

type initialise struct{ dir string }

func (i *initialise) flags(*flagSet) {}

func (i *initialise) accept(positional []string) error {
	if len(positional) > 0 {
		i.dir, positional = positional[0], positional[1:]
	}
	i.dir = cmp.Or(i.dir, ".")
	return wants(positional)
}

func (i *initialise) run(_ context.Context, s *session, _ []string) error {
	files, err := i.files()
	if err == nil {
		err = i.free(files)
	}
	if err != nil {
		return fmt.Errorf("init %s: %w", i.dir, err)
	}
	for _, name := range files {
		if err := i.write(name); err != nil {
			return fmt.Errorf("init %s: %w", i.dir, err)
		}
		fmt.Fprintf(s.stdout, "wrote %s\n", filepath.Join(i.dir, name))
	}
	change := ""
	if filepath.Clean(i.dir) != "." {
		change = "  cd " + i.dir + "\n"
	}
	fmt.Fprintf(s.stdout, `
Next:
%s  tidemill up
and in another terminal, from the same folder:
  tidemill data put bots/bot-42 data/bot-42
  tidemill runs --watch
trainer/README.md says more.
`, change)
	return nil
}

// files are the names of what is to be written.
func (i *initialise) files() ([]string, error) {
	var names []string
	err := fs.WalkDir(initial, initialFiles, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, filepath.FromSlash(strings.TrimPrefix(name, initialFiles+"/")))
		}
		return err
	})
	return names, err
}

// free looks before anything is written, so that nobody is left with half of it.
func (i *initialise) free(files []string) error {
	var taken []string
	for _, name := range files {
		_, err := os.Lstat(filepath.Join(i.dir, name))
		switch {
		case err == nil:
			taken = append(taken, name)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("there is %s already, and nothing is overwritten: name a new folder, or move that away", strings.Join(taken, ", "))
	}
	return nil
}

// write writes one file, which must not have come meanwhile.
func (i *initialise) write(name string) error {
	text, err := initial.ReadFile(initialFiles + "/" + filepath.ToSlash(name))
	if err != nil {
		return err
	}
	to := filepath.Join(i.dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
