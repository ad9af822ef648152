// Command stages are the first two stages of a pipeline: `stages clean` and `stages split`. Each
// reads a dataset and makes another, by the contract of a run. The event of the commit starts the
// next stage.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, variable func(string) string, log io.Writer) error {
	in, out := variable("TIDEMILL_IN"), variable("TIDEMILL_OUT")
	if in == "" || out == "" {
		return errors.New("find TIDEMILL_IN and TIDEMILL_OUT: set them to folders, or let tidemill do it")
	}
	switch strings.Join(args, " ") {
	case "clean":
		return cleanChats(in, out, log)
	case "split":
		return splitMessages(in, out, log)
	}
	return fmt.Errorf("there is no stage %q: say clean or split", strings.Join(args, " "))
}

// message is the text of a customer, and its intent.
type message struct{ text, intent string }

// listFiles returns the files below a folder with an ending, in the order of their names.
func listFiles(folder, ending string) (paths []string, err error) {
	err = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && filepath.Ext(path) == ending {
			paths = append(paths, path)
		}
		return err
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("there are no files %s below %s", ending, folder)
	}
	slices.Sort(paths)
	return paths, err
}

// baseName returns the name of a file without its folder and its ending.
func baseName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}
