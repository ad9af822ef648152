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

// maxProblems bounds the number of problems that a hostile file can cause.
const maxProblems = 100

// Problem is one error in a file. A problem prints as one line, `file:line: path: message`.
type Problem struct {
	File    string
	Line    int    // counted from 1; 0 means the whole file
	Path    string // such as streams.messages.partitions; empty if the file was not parsed that far
	Message string // the error and the correction
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

// Error lists everything that is wrong with a config, in the order of files and lines. A config
// with one problem is refused as a whole.
type Error struct{ Problems []Problem }

// Error returns one problem per line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the problems for errors.As.
func (e *Error) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = p
	}
	return errs
}

// report collects problems, so that all are reported at once.
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

// count returns the number of problems so far.
func (r *report) count() int { return len(r.problems) + r.left }

// err returns nil if there is no problem.
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
			Message: fmt.Sprintf("and %d more; correct these first", r.left)})
	}
	return &Error{Problems: problems}
}

// maxShown bounds how many characters of the file's text a problem repeats.
const maxShown = 60

// show returns a text of the file as a problem prints it: quoted, shortened, and with secrets
// redacted.
func show(s string) string {
	if secretIn(s) != "" {
		return redacted
	}
	if r := []rune(s); len(r) > maxShown {
		return fmt.Sprintf("%+q", string(r[:maxShown])+"...")
	}
	return fmt.Sprintf("%q", s)
}

// describe names the kind of a node, for a problem that expected another kind.
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

// isBooleanElsewhere reports whether a word is a boolean in YAML 1.1 and a text here. In Helm's
// values a key `on:` becomes `true:`.
func isBooleanElsewhere(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && isPlain(n) && yaml11Boolean.MatchString(n.Value)
}

func isPlain(n *yaml.Node) bool {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return n.Style&quoted == 0
}

// unknownKey suggests the key that an unknown key may have been meant as.
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
		return "unknown key; secrets must not be in the config: put it into a file, and name that file with bearerFile, basicFile or headerFile"
	case secretWord.MatchString(key):
		return "unknown key; secrets must not be in the config: put it into a file and name that file by flag or environment"
	case addressWord.MatchString(key):
		return fmt.Sprintf("unknown key; addresses must not be in the config: give them by flag or as %s, %s, %s",
			envKafka, envRedis, envStore)
	}
	return "unknown key; known here: " + strings.Join(known, ", ")
}

// otherWords maps the names that other systems use for a key to our key and to the advice.
var otherWords = map[string]struct{ key, next string }{
	"retries":    {"attempts", "write attempts, which counts the first one too"},
	"retry":      {"attempts", "write attempts, which counts the first one too"},
	"maxretries": {"attempts", "write attempts, which counts the first one too"},
	"schedule":   {"where", "a schedule's tick is an event: write type: schedule-tick and where: \"schedule = 'NAME'\""},
	"filter":     {"where", "write where, with an expression such as \"subject LIKE 'bot-%'\""},
	"filters":    {"where", "write where, with an expression such as \"subject LIKE 'bot-%'\""},
	"timeout":    {"deadline", "write deadline, which bounds one attempt"},
	"args":       {"command", "write command, a list with the program and its arguments"},
	"gpu":        {"gpus", "write gpus"},
	"workdir":    {"dir", "write dir, the folder that the command runs in"},
}

var (
	secretWord  = regexp.MustCompile(`(?i)passw|secret|token|credential|api_?key`)
	loginWord   = regexp.MustCompile(`(?i)^(bearer|basic|basic_?auth|auth|authorization|user(name)?)$`)
	addressWord = regexp.MustCompile(`(?i)^(kafka|redis|store|brokers?|bootstrap.*|address(es)?)$`)
)
