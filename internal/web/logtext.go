package web

import "bytes"

// logText turns the lines of a log as it is stored into text for people. A line
// is
//
//	<time> <stdout|stderr> <F|P> <text>
//
// as container runtimes write it: F ends a line of the command's, P a part of
// one. Text that is not so is shown as it is: a log is there to be read, even one
// that somebody has made wrong.
type logText struct {
	timestamps bool
	begin      string // of each line: whose it is
	left       []byte // of a line that goes on in the next chunk
	open       string // the stream of which a part was the last that was shown
}

// mostLeft bounds a line: a longer one is shown as if it ended there.
const mostLeft = 1 << 20

// add appends what people read of a chunk.
func (t *logText) add(to, chunk []byte) []byte {
	for len(chunk) > 0 {
		end := bytes.IndexByte(chunk, '\n')
		if end < 0 {
			t.left = append(t.left, chunk...)
			if len(t.left) < mostLeft {
				return to
			}
			return t.flush(to)
		}
		line := chunk[:end]
		if len(t.left) > 0 {
			t.left = append(t.left, line...)
			line = t.left
		}
		to = t.line(to, line)
		t.left, chunk = t.left[:0], chunk[end+1:]
	}
	return to
}

// flush ends a line that does not go on.
func (t *logText) flush(to []byte) []byte {
	if len(t.left) > 0 {
		to = t.line(to, t.left)
		t.left = t.left[:0]
	}
	return to
}

// end ends the text at the end of a line.
func (t *logText) end(to []byte) []byte {
	return t.unless("", t.flush(to))
}

// unless breaks the line that a part has left open, unless it goes on in the
// stream.
func (t *logText) unless(stream string, to []byte) []byte {
	if t.open == "" || t.open == stream {
		return to
	}
	t.open = ""
	return append(to, '\n')
}

// line shows one. Where the other stream comes in between the parts of a line,
// that line is broken, so that neither is taken for the other.
func (t *logText) line(to, line []byte) []byte {
	at, stream, part, text, ok := cutLogLine(line)
	if !ok {
		return append(append(append(t.unless("", to), t.begin...), line...), '\n')
	}
	to = t.unless(stream, to)
	if t.open == "" {
		to = append(to, t.begin...)
	}
	if t.timestamps && t.open == "" {
		to = append(append(append(append(to, at...), ' '), stream...), ' ')
	}
	to = append(to, text...)
	if t.open = ""; part {
		t.open = stream
		return to
	}
	return append(to, '\n')
}

func cutLogLine(line []byte) (at []byte, stream string, part bool, text []byte, ok bool) {
	at, rest, ok1 := bytes.Cut(line, []byte(" "))
	name, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tag, text, ok3 := bytes.Cut(rest, []byte(" "))
	stream = string(name)
	full, part := string(tag) == "F", string(tag) == "P"
	ok = ok1 && ok2 && ok3 && (stream == "stdout" || stream == "stderr") && (full || part)
	return at, stream, part, text, ok
}
