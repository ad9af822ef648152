package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile = 1 << 20 // bytes; a ConfigMap holds no more
	// maxSearch bounds the bytes parsed again to find the line of an error.
	maxSearch = 8 << 20
)

// source is a file's name, as problems print it, and its bytes.
type source struct {
	name string
	data []byte
}

// document parses the one YAML document of a file; nil if it cannot, which is
// reported.
func (r *report) document(s source) *yaml.Node {
	wrong := func(line int, format string, args ...any) *yaml.Node {
		r.add(Problem{File: s.name, Line: line, Message: fmt.Sprintf(format, args...)})
		return nil
	}
	if line, what := badBytes(s.data); what != "" {
		return wrong(line, "%s", what)
	}
	feed := &lineFeed{rest: s.data}
	dec := yaml.NewDecoder(feed)
	doc, err := decode(dec)
	switch {
	case errors.Is(err, io.EOF):
		return wrong(1, "the file is empty; begin it with `version: 1`")
	case err != nil:
		return wrong(errorLine(s.data, feed.lines, err), "%s", cleanMessage(err))
	}
	next, err := decode(dec)
	switch {
	case errors.Is(err, io.EOF):
		return doc.Content[0]
	case err != nil:
		return wrong(feed.lines, "%s", cleanMessage(err))
	}
	return wrong(next.Line, "a second document begins here; a file holds one, so put this into a file of its own in the same folder")
}

// badBytes finds what no YAML file of ours may hold, before the parser sees it.
func badBytes(data []byte) (line int, what string) {
	if len(data) > maxFile {
		return 1, fmt.Sprintf("the file is larger than %d KiB; is it a Tidemill config?", maxFile>>10)
	}
	line = 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		switch {
		case c == utf8.RuneError && n == 1:
			return line, "the file is not UTF-8 text; save it as UTF-8"
		case c == '\n':
			line++
		case (c < ' ' && c != '\t' && c != '\r') || (c >= 0x7f && c < 0xa0):
			return line, fmt.Sprintf("the control character %q stands here; remove it", c)
		}
		i += n
	}
	return 0, ""
}

// decode reads the next document. The parser is not ours: should it panic on
// some file, that file is refused and the process lives on.
func decode(dec *yaml.Decoder) (doc *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the YAML parser failed: %v", p)
		}
	}()
	doc = new(yaml.Node)
	return doc, dec.Decode(doc)
}

// lineFeed gives the parser a line at a time, so that the count of lines says
// how far it came.
type lineFeed struct {
	rest  []byte
	lines int
}

// Read gives what is left of the line.
func (f *lineFeed) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		return 0, io.EOF
	}
	n := bytes.IndexByte(f.rest, '\n') + 1
	if n == 0 {
		n = len(f.rest)
	}
	n = copy(p, f.rest[:n])
	if f.rest[n-1] == '\n' || n == len(f.rest) {
		f.lines++
	}
	f.rest = f.rest[n:]
	return n, nil
}

var yamlPrefix = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// errorLine finds the line of a syntax error. The parser often names the line
// where the enclosing block began, or none. The line after the longest
// beginning that parses is where a reader looks; the parser came no further
// than reached.
func errorLine(data []byte, reached int, err error) int {
	ends := lineEnds(data)
	for budget, line := maxSearch, min(reached+1, len(ends)); line > 1 && budget > 0; line-- {
		head := data[:ends[line-2]]
		budget -= len(head)
		if parses(head) {
			return line
		}
	}
	line, _ := strconv.Atoi(yamlPrefix.FindStringSubmatch(err.Error() + "\n")[1])
	return max(line, 1)
}

func lineEnds(data []byte) []int {
	var ends []int
	for i, c := range data {
		if c == '\n' || i == len(data)-1 {
			ends = append(ends, i+1)
		}
	}
	return ends
}

func parses(head []byte) bool {
	_, err := decode(yaml.NewDecoder(bytes.NewReader(head)))
	return err == nil
}

func cleanMessage(err error) string {
	return "this is not YAML: " + yamlPrefix.ReplaceAllString(err.Error(), "")
}
