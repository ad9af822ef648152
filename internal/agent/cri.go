package agent

import (
	"bytes"
	"time"
)

// A log is lines as container runtimes write them: the time, the stream, F for a
// line that ends here or P for one that goes on, and the text.

const maxText = 16 << 10 // of a line; a longer one is told in parts

// appendLine adds a line to a chunk.
func appendLine(to []byte, at time.Time, stream string, whole bool, text []byte) []byte {
	to = at.UTC().AppendFormat(to, time.RFC3339Nano)
	to = append(append(append(to, ' '), stream...), ' ')
	if whole {
		to = append(to, "F "...)
	} else {
		to = append(to, "P "...)
	}
	return append(append(to, text...), '\n')
}

// splitter makes lines of what a stream says piece by piece.
type splitter struct{ open []byte } // of a line that has not ended

// split calls fn with each line, or part of one that is too long. The text is
// good until fn returns.
func (s *splitter) split(data []byte, fn func(text []byte, whole bool)) {
	for len(data) > 0 {
		room := maxText - len(s.open)
		i := bytes.IndexByte(data[:min(len(data), room+1)], '\n')
		switch {
		case i >= 0:
			fn(s.with(data[:i]), true)
			data = data[i+1:]
		case len(data) > room:
			fn(s.with(data[:room]), false)
			data = data[room:]
		default:
			s.open = append(s.open, data...)
			return
		}
	}
}

func (s *splitter) with(text []byte) []byte {
	if len(s.open) == 0 {
		return text
	}
	s.open = append(s.open, text...)
	text, s.open = s.open, s.open[:0]
	return text
}

// rest is what of a line there is till now.
func (s *splitter) rest() []byte {
	text := s.open
	s.open = s.open[:0]
	return text
}
