package agent

import (
	"bytes"
	"strings"
)

const (
	lastLines = 50
	lastBytes = 8 << 10
)

// lastWords keeps the end of what was said, in lines.
type lastWords struct {
	text []byte
	open string // the stream of a line that has not ended
}

func (l *lastWords) add(stream string, text []byte, whole bool) {
	if l.open != "" && l.open != stream {
		l.text = append(l.text, '\n')
	}
	l.open = stream
	if len(text) > lastBytes {
		text = text[len(text)-lastBytes:]
	}
	l.text = append(l.text, text...)
	if whole {
		l.text, l.open = append(l.text, '\n'), ""
	}
	if len(l.text) > 4*lastBytes {
		l.text = l.text[:copy(l.text, l.text[len(l.text)-lastBytes-1:])]
	}
}

// String is the newest lines, whole ones unless the last alone is too long.
func (l *lastWords) String() string {
	text := bytes.TrimRight(l.text, "\n")
	if cut := len(text) - lastBytes; cut > 0 {
		begins := text[cut-1] == '\n'
		text = text[cut:]
		if i := bytes.IndexByte(text, '\n'); i >= 0 && !begins {
			text = text[i+1:]
		}
	}
	from := len(text)
	for range lastLines {
		if from = bytes.LastIndexByte(text[:from], '\n'); from < 0 {
			break
		}
	}
	return strings.ToValidUTF8(string(text[from+1:]), "\uFFFD")
}
