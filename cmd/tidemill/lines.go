package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxLine is more than any event may have, written as JSON with its data in
// base64 or with every letter escaped.
const maxLine = 8 << 20

var errLongLine = errors.New("the line is longer than 8 MiB; is it one event?")

// lineReader reads lines and knows where it is. A line that is too long costs
// no more memory than another.
type lineReader struct {
	in     *bufio.Reader
	long   []byte
	number int   // of the line that next returned, from 1
	bytes  int64 // read so far
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 256<<10)}
}

// next returns a line without the space around it, valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	l.number++
	l.long = l.long[:0]
	tooLong := false
	for {
		part, err := l.in.ReadSlice('\n')
		l.bytes += int64(len(part))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if tooLong = tooLong || len(l.long)+len(part) > maxLine; !tooLong {
				l.long = append(l.long, part...)
			}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case err != nil && len(part) == 0 && len(l.long) == 0:
			return nil, io.EOF
		case tooLong || len(l.long)+len(part) > maxLine+len("\n"):
			return nil, errLongLine
		}
		if len(l.long) > 0 {
			l.long = append(l.long, part...)
			part = l.long
		}
		return bytes.TrimSpace(part), nil
	}
}
