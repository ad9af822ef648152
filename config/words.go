package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/internal/spelling"
)

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
	if near, ok := nearest(key, known); ok {
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

// nearest finds the known key that the given one may be a slip of the hand of:
// at most a third of its letters differ.
func nearest(key string, known []string) (string, bool) {
	best, least := "", 1+max(1, min(len(key), maxShown)/3)
	for _, k := range known {
		if len(key)-len(k) >= least || len(k)-len(key) >= least {
			continue
		}
		if d := spelling.Distance(strings.ToLower(key), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}
