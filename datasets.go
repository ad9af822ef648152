package tidemill

import (
	"errors"
	"fmt"
	"strings"
)

const maxDataset = 200 // letters

// CheckDataset returns an error if a text is not a valid name of a dataset or a model. A
// name is a path of segments. It is used in folders and URLs unchanged: no character is
// escaped or replaced, so two names never become the same path.
func CheckDataset(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if len(name) > maxDataset {
		return fmt.Errorf("is longer than %d letters", maxDataset)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if err := checkSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

func checkSegment(s string) error {
	switch {
	case s == "":
		return errors.New("has a '/' without a name before and after it")
	case s[0] == '.':
		return fmt.Errorf("has %q, which begins with a dot", s)
	case s == "_":
		return errors.New("has the segment \"_\", which is reserved")
	}
	for _, c := range s {
		if !inSegment(c) {
			return fmt.Errorf("has %q; use letters, digits, '.', '_', '-', '@', '+', '=', ':' and, between segments, '/'", c)
		}
	}
	return nil
}

func inSegment(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-@+=:", c)
}
