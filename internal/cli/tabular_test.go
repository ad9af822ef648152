package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// The speed of a newcomer who follows the documents.
const (
	readPerMinute  = 200 // words
	typedPerMinute = 40  // words of five characters
	tabularMinutes = 10  // the promise of README
	installMinutes = 1   // for the packages, as init says; the rest of the machine's work passes while the newcomer reads
)

var shellComment = regexp.MustCompile(`\s+#.*`)

// pathToTabular returns what a newcomer with a table reads: README up to its link to docs/tabular.md,
// and this document.
func pathToTabular(t *testing.T) string {
	t.Helper()
	const link = "](docs/tabular.md)"
	var texts []string
	for _, name := range []string{"README.md", "docs/tabular.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	before, _, found := strings.Cut(texts[0], link)
	if !found {
		t.Fatal("README.md does not name docs/tabular.md as the next step")
	}
	return before + link + "\n" + texts[1]
}

// minutesOf returns the minutes of reading a text, and of typing its commands and its changes of
// files.
func minutesOf(text string) (reading, typing float64) {
	characters := 0
	for _, b := range blocksOf(text) {
		if b.language != "sh" && b.language != "python" {
			continue
		}
		for line := range strings.Lines(b.text) {
			line = strings.TrimRight(shellComment.ReplaceAllString(line, ""), "\n")
			characters += utf8.RuneCountInString(line) + 1 // and the return key
		}
	}
	return float64(len(strings.Fields(text))) / readPerMinute, float64(characters) / 5 / typedPerMinute
}

// README and docs/tabular.md together take a newcomer ten minutes: to read all of it, to type every
// command, and to wait for the packages. TestTemplateTabularIsFollowed runs the commands.
func TestTabularTakesTenMinutes(t *testing.T) {
	t.Parallel()
	text := pathToTabular(t)
	mention(t, "the promise", text, "in ten minutes")
	mention(t, "what init says", aboutSklearn, "about a minute")
	reading, typing := minutesOf(text)
	t.Logf("%.1f minutes of reading and %.1f of typing", reading, typing)
	if sum := reading + typing + installMinutes; sum > tabularMinutes || typing < 1 {
		t.Errorf("the way to a model of one's own takes %.1f minutes of reading, %.1f of typing and %d for the packages; README promises %d together", reading, typing, installMinutes, tabularMinutes)
	}
}

func TestMinutesOf(t *testing.T) {
	t.Parallel()
	reading, typing := minutesOf(strings.Repeat("word ", 394) + "\n```sh\n" + strings.Repeat("y", 199) + "   # a comment\n```\n```yaml\na: b\n```\n")
	if reading != 404.0/readPerMinute || typing != 1 {
		t.Errorf("%v, %v", reading, typing)
	}
}
