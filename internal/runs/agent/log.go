package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"tidemill.dev/broker/retry"
)

// The streams.
const stdout, stderr = "stdout", "stderr"

const (
	chunkBytes = 256 << 10
	chunkAfter = time.Second // longest time from a chunk's first byte until it is sent
	maxQueued  = 2           // number of chunks that wait for the gateway
)

// logbook sends an attempt's log to the gateway. While the gateway does not answer, the chunks fill
// up; then writers wait, and the command waits for its pipe. So memory is bounded and no output is
// lost. When the context ends, writers no longer wait.
type logbook struct {
	client *client
	ctx    context.Context // context of the requests
	now    func() time.Time
	most   int64  // largest number of bytes to keep; 0 is no bound
	part   string // name of the worker or server; empty is the first worker
	masks  *masks // secrets of the command; set before it starts

	mu      retry.Mutex          // its holder may wait for the gateway
	open    map[string]*splitter // lines that have not ended, by stream
	chunk   []byte               // chunk that is being filled
	due     *time.Timer          // timer that sends the chunk
	kept    int64
	dropped int64 // bytes of text after the bound was reached
	lines   int64
	last    lastWords
	newest  map[string]*newestLine // newest line of each stream of the command
	closed  bool

	queue   chan []byte // chunks to send; nil before the first one
	sent    sync.WaitGroup
	refused atomic.Pointer[error] // error of the first refused chunk; later chunks are dropped
	seq     int                   // number of the next chunk; used only by the sending goroutine
	told    int64                 // bytes that the gateway has; used only by the same goroutine
}

func newLogbook(ctx context.Context, d *client, most int64, now func() time.Time) *logbook {
	return &logbook{client: d, ctx: ctx, now: now, most: most, open: map[string]*splitter{}, newest: map[string]*newestLine{}}
}

// write adds output of the command to the log.
func (l *logbook) write(stream string, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	s := l.open[stream]
	if s == nil {
		s = &splitter{}
		l.open[stream] = s
	}
	at := l.now()
	s.split(data, func(text []byte, whole bool) { l.line(at, stream, text, whole) })
	l.await(len(s.open) > 0)
}

// note writes a line of the agent itself into the log.
func (l *logbook) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.addOwnLine(format, args...)
		l.await(false)
	}
}

// addOwnLine adds a line of the agent. The line does not count against the bound, because it
// explains why other lines are missing.
func (l *logbook) addOwnLine(format string, args ...any) {
	text := fmt.Appendf([]byte("tidemill: "), format, args...)
	l.chunk = appendLine(l.chunk, l.now(), stderr, true, text)
	l.last.add(stderr, text, true)
}

// line adds a line, or a part of one.
func (l *logbook) line(at time.Time, stream string, text []byte, whole bool) {
	l.last.add(stream, text, whole)
	if l.newest[stream] == nil {
		l.newest[stream] = &newestLine{}
	}
	l.newest[stream].add(text, whole)
	if l.dropped > 0 || l.most > 0 && l.kept+int64(len(text)) > l.most {
		if l.dropped == 0 {
			l.addOwnLine("the log has reached its bound of %d bytes (maxLog); later output is not kept", l.most)
		}
		l.dropped += int64(len(text)) + 1
		l.lines++
		return
	}
	before := len(l.chunk)
	l.chunk = appendLine(l.chunk, at, stream, whole, text)
	l.kept += int64(len(l.chunk) - before)
	if len(l.chunk) >= chunkBytes {
		l.handToSender()
	}
}

// await starts the timer that sends the chunk.
func (l *logbook) await(open bool) {
	if l.due == nil && (open || len(l.chunk) > 0) {
		l.due = time.AfterFunc(chunkAfter, l.flush)
	}
}

// flush hands over the chunk, including unfinished lines, because a progress bar may be one
// unfinished line for hours.
func (l *logbook) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.rest(false)
		l.handToSender()
	}
}

func (l *logbook) rest(whole bool) {
	for _, stream := range []string{stdout, stderr} {
		if s := l.open[stream]; s != nil && len(s.open) > 0 {
			l.line(l.now(), stream, s.unfinishedLine(), whole)
		}
	}
}

// handToSender gives the chunk to the sender. It waits if the gateway is slower than the command.
func (l *logbook) handToSender() {
	if l.due != nil {
		l.due.Stop()
		l.due = nil
	}
	if len(l.chunk) == 0 {
		return
	}
	if l.queue == nil {
		queue := make(chan []byte, maxQueued)
		l.queue = queue
		l.sent.Go(func() { l.sendAll(queue) })
	}
	l.queue <- l.chunk
	l.chunk = nil
}

func (l *logbook) sendAll(queue <-chan []byte) {
	for chunk := range queue {
		l.send(chunk)
	}
}

// send sends a chunk until it arrives, or drops it if the gateway refuses it.
func (l *logbook) send(chunk []byte) {
	if l.refused.Load() != nil {
		return
	}
	err := l.client.send(l.ctx, request{l.place(), bytesType, chunk}, nil)
	if err != nil {
		err = fmt.Errorf("send the log: %w", err)
		l.refused.Store(&err)
		return
	}
	l.seq++
	l.told += int64(len(chunk))
}

// place returns the path for the next chunk. Each worker or server has its own log.
func (l *logbook) place() string {
	at := "/log?seq=" + strconv.Itoa(l.seq)
	if l.part != "" {
		at += "&part=" + l.part
	}
	return at
}

// close sends the rest of the log. Later output is dropped.
func (l *logbook) close() {
	l.mu.Lock()
	l.rest(true)
	if l.dropped > 0 {
		l.addOwnLine("%d lines with %d bytes were not kept", l.lines, l.dropped)
	}
	l.closed = true
	if l.due != nil {
		l.due.Stop()
	}
	chunk, queue := l.chunk, l.queue
	l.chunk = nil
	if queue != nil {
		close(queue)
	}
	l.mu.Unlock()
	l.sent.Wait()
	if len(chunk) > 0 {
		l.send(chunk)
	}
}

// tail returns the last lines of the output, even if they were not kept.
func (l *logbook) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.String()
}

// lastLine returns the command's last line on stderr, or on stdout if stderr has none. Stderr comes
// first because Python writes its buffered stdout at the exit, after the traceback.
func (l *logbook) lastLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stream := range []string{stderr, stdout} {
		if newest := l.newest[stream]; newest != nil && newest.String() != "" {
			return newest.String()
		}
	}
	return ""
}

// isIncomplete reports whether a part of the log was not kept.
func (l *logbook) isIncomplete() bool { return l.dropped > 0 || l.refused.Load() != nil }

// copyStream copies a stream of the command into the log, without its secrets.
func (l *logbook) copyStream(stream string, from io.Reader, echo func(string, []byte)) error {
	keep := func(text []byte) {
		if len(text) > 0 {
			echo(stream, text)
			l.write(stream, text)
		}
	}
	mask := masker{masks: l.masks}
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		keep(mask.next(buffer[:n]))
		if err == nil {
			continue
		}
		keep(mask.rest())
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// A log has the line format of container runtimes: the time, the stream, F for a line that ends
// here or P for a line that continues, and the text.

const maxText = 16 << 10 // largest text of a line; a longer one is written in parts

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

// splitter splits the output of a stream into lines.
type splitter struct{ open []byte } // text of a line that has not ended

// split calls fn with each line, or with a part of one that is too long. The text is valid until
// fn returns.
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

// unfinishedLine returns the text of the unfinished line.
func (s *splitter) unfinishedLine() []byte {
	text := s.open
	s.open = s.open[:0]
	return text
}

const (
	lastLines = 50
	lastBytes = 8 << 10
)

// lastWords keeps the last lines of the output.
type lastWords struct {
	text []byte
	open string // stream of a line that has not ended
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

// String returns the newest lines. The lines are complete, unless the last line alone is too long.
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

const (
	newestBytes = 4 << 10
	shownLine   = 200 // letters of a line that become part of a reason
)

// newestLine keeps the newest line of a stream that is not blank.
type newestLine struct {
	text []byte
	open bool // whether the line has not ended
}

func (n *newestLine) add(text []byte, whole bool) {
	if !n.open {
		if len(bytes.TrimSpace(text)) == 0 {
			return
		}
		n.text = n.text[:0]
	}
	n.text, n.open = append(n.text, text...), !whole
	if over := len(n.text) - newestBytes; over > 0 {
		n.text = n.text[:copy(n.text, n.text[over:])]
	}
}

// escapes are the sequences with which a command colours its output.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)

// String returns the beginning of the line without colours and control characters. A progress bar
// writes its line again and again after a carriage return; only the last one counts.
func (n *newestLine) String() string {
	text := bytes.TrimRight(escapes.ReplaceAll(n.text, nil), "\r \t")
	text = text[bytes.LastIndexByte(text, '\r')+1:]
	plain := []rune(strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(text), "\uFFFD"))))
	if len(plain) > shownLine {
		plain = append(plain[:shownLine-1], '…')
	}
	return string(plain)
}

// keepLast is a writer that keeps the last line that is not empty.
type keepLast struct{ text []byte }

func (k *keepLast) Write(data []byte) (int, error) {
	k.text = append(k.text, data...)
	end := len(bytes.TrimRight(k.text, "\n"))
	if i := bytes.LastIndexByte(k.text[:end], '\n'); i >= 0 {
		k.text = k.text[:copy(k.text, k.text[i+1:])]
	}
	return len(data), nil
}

// line returns the last line with a newline; empty if there was no line.
func (k *keepLast) line() []byte {
	text := bytes.Trim(k.text, "\n")
	if len(text) == 0 {
		return nil
	}
	return append(text, '\n')
}
