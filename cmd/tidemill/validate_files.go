package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"tidemill.dev/config"
)

// maxMissing bounds the lines about files; thousands of triggers may name one
// folder that is not mounted here.
const maxMissing = 20

// missingFiles are lines about the credentials that triggers name and that
// cannot be read here. The config is valid all the same: where it is used there
// may be what is not here. They do not repeat the paths, for where somebody gave
// a secret in place of its file, the path is the secret.
func missingFiles(c *config.Config) []string {
	var lines []string
	left := 0
	for _, t := range c.Triggers {
		files := t.To.Credentials.Files()
		for _, key := range slices.Sorted(maps.Keys(files)) {
			why := unreadable(files[key])
			switch {
			case why == "":
			case len(lines) == maxMissing:
				left++
			default:
				lines = append(lines, fmt.Sprintf("triggers.%s.to.%s: the file %s; whoever delivers must be able to read it", t.Name, key, why))
			}
		}
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", left))
	}
	return lines
}

func unreadable(file string) string {
	f, err := os.Open(file)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "is not here"
		}
		return fmt.Sprintf("cannot be read here (%v)", errors.Unwrap(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return "is not one"
	}
	return ""
}
