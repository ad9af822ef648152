package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/config/spelling"
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

// maxShown bounds how much of a file's own text a problem repeats.
const maxShown = 60

// show is a text of the file as a problem prints it: quoted, cut, and never a
// secret.
func show(s string) string {
	if secretIn(s) != "" {
		return redacted
	}
	if r := []rune(s); len(r) > maxShown {
		return fmt.Sprintf("%+q", string(r[:maxShown])+"...")
	}
	return fmt.Sprintf("%q", s)
}

// describe names what stands at a node, for a reader who meant another thing.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "keys and values"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case isNull(n):
		return "nothing"
	case isBooleanElsewhere(n):
		return "the word " + show(n.Value) + ", which other YAML readers (Helm's among them) take for a boolean"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + show(n.Value)
	case "!!bool":
		return "the boolean " + show(n.Value)
	case "!!timestamp":
		return "the date " + show(n.Value)
	}
	return "the text " + show(n.Value)
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

var yaml11Boolean = regexp.MustCompile(`^(?i:y|yes|n|no|on|off)$`)

// isBooleanElsewhere finds the words that YAML 1.1 reads as booleans and we as
// text. In Helm's values a key `on:` arrives as `true:`.
func isBooleanElsewhere(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && isPlain(n) && yaml11Boolean.MatchString(n.Value)
}

func isPlain(n *yaml.Node) bool {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return n.Style&quoted == 0
}

// unknownKey says what a key could have been.
func unknownKey(key string, known []string) string {
	if other, ok := otherWords[strings.ToLower(key)]; ok && slices.Contains(known, other.key) {
		return fmt.Sprintf("unknown key; %s", other.next)
	}
	if near, ok := spelling.Nearest(key, known); ok {
		return fmt.Sprintf("unknown key; did you mean %q?", near)
	}
	switch {
	case secretWord.MatchString(key) && slices.Contains(known, "hash"):
		return "unknown key; the file holds the hash of a token, never the token: `tidemill token new` writes it"
	case slices.Contains(known, "bearerFile") && (secretWord.MatchString(key) || loginWord.MatchString(key)):
		return "unknown key; secrets never stand in the config: put it into a file, and name that file with bearerFile, basicFile or headerFile"
	case secretWord.MatchString(key):
		return "unknown key; secrets never stand in the config: put it into a file and name that file by flag or environment"
	case addressWord.MatchString(key):
		return fmt.Sprintf("unknown key; addresses never stand in the config: give them by flag or as %s, %s, %s",
			envKafka, envRedis, envStore)
	}
	return "unknown key; known here: " + strings.Join(known, ", ")
}

// otherWords are what a key is called elsewhere, with the key that is known
// here and what to do.
var otherWords = map[string]struct{ key, next string }{
	"retries":    {"attempts", "write attempts, which counts the first one too"},
	"retry":      {"attempts", "write attempts, which counts the first one too"},
	"maxretries": {"attempts", "write attempts, which counts the first one too"},
	"schedule":   {"where", "a schedule's tick is an event: write type: schedule-tick and where: \"schedule = 'NAME'\""},
	"filter":     {"where", "write where, with an expression such as \"subject LIKE 'bot-%'\""},
	"filters":    {"where", "write where, with an expression such as \"subject LIKE 'bot-%'\""},
	"timeout":    {"deadline", "write deadline, which bounds one attempt"},
	"args":       {"command", "write command, a list with the arguments behind the program"},
	"gpu":        {"gpus", "write gpus"},
	"workdir":    {"dir", "write dir, the folder that the command runs in"},
}

var (
	secretWord  = regexp.MustCompile(`(?i)passw|secret|token|credential|api_?key`)
	loginWord   = regexp.MustCompile(`(?i)^(bearer|basic|basic_?auth|auth|authorization|user(name)?)$`)
	addressWord = regexp.MustCompile(`(?i)^(kafka|redis|store|brokers?|bootstrap.*|address(es)?)$`)
)
