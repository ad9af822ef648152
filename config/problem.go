package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxProblems bounds what a hostile file makes us say.
const maxProblems = 100

// Problem is one thing that is wrong in a file. It prints as one line,
// `file:line: path: message`.
type Problem struct {
	File    string
	Line    int    // from 1; 0 if the whole file is meant
	Path    string // streams.messages.partitions; empty if the file is not that far
	Message string // what is wrong and what to write instead
}

// Error prints the problem on one line.
func (p Problem) Error() string {
	s := p.at()
	if p.Path != "" {
		s += ": " + p.Path
	}
	return s + ": " + p.Message
}

func (p Problem) at() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Error is all that is wrong with a config, in the order of its files and
// lines; a config is refused as a whole.
type Error struct{ Problems []Problem }

// Error prints a problem a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives each problem to errors.As.
func (e *Error) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = p
	}
	return errs
}

// report gathers problems, so that all are told in one go.
type report struct {
	problems []Problem
	left     int // problems beyond the bound
}

func (r *report) add(p Problem) {
	if len(r.problems) == maxProblems {
		r.left++
		return
	}
	r.problems = append(r.problems, p)
}

// count is how many there are so far.
func (r *report) count() int { return len(r.problems) + r.left }

// err is nil if nothing is wrong.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	problems := r.problems
	if r.left > 0 {
		last := problems[len(problems)-1]
		problems = append(problems, Problem{File: last.File, Line: last.Line,
			Message: fmt.Sprintf("and %d more; mend these first", r.left)})
	}
	return &Error{Problems: problems}
}
