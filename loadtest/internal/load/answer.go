package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// httpAnswer is the part of an HTTP answer that the generator reads.
type httpAnswer struct {
	status  int
	length  int // length of the body; -1 if it is chunked
	closing bool
}

// readAnswer reads one answer to its end. It fails unless the answer has the wanted status and the
// connection stays open.
func readAnswer(r *bufio.Reader, wanted int) error {
	a, err := readHead(r)
	if err != nil {
		return err
	}
	if a.status == wanted && !a.closing {
		return a.skipBody(r)
	}
	said, _ := r.Peek(min(r.Buffered(), max(0, a.length)))
	return fmt.Errorf("the server answers %d (closes the connection: %t): %s", a.status, a.closing, said)
}

func readHead(r *bufio.Reader) (httpAnswer, error) {
	var a httpAnswer
	line, err := readLine(r)
	if err != nil {
		return a, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) || len(line) < 12 {
		return a, fmt.Errorf("the server answers %q, which is not HTTP/1.1", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, fmt.Errorf("the server answers %q: %w", line, err)
	}
	for {
		line, err := readLine(r)
		if err != nil || len(line) == 0 {
			return a, err
		}
		if err := a.header(line); err != nil {
			return a, err
		}
	}
}

func (a *httpAnswer) header(line []byte) (err error) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		a.length, err = strconv.Atoi(string(value))
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		a.length = -1
	case bytes.EqualFold(name, []byte("Connection")):
		a.closing = bytes.EqualFold(value, []byte("close"))
	}
	return err
}

// skipBody reads the body, so that the next answer begins at the reader's position. Stored events
// are counted on the stream, not here.
func (a *httpAnswer) skipBody(r *bufio.Reader) error {
	if a.length >= 0 {
		_, err := r.Discard(a.length)
		return err
	}
	for {
		line, err := readLine(r)
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return fmt.Errorf("read a chunk's length: %w", err)
		}
		if _, err := r.Discard(int(size) + len("\r\n")); err != nil || size == 0 {
			return err
		}
	}
}

// readLine returns a line without its end, valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return bytes.TrimRight(line, "\r\n"), err
}
