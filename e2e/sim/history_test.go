package sim

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev/e2e/sim/vnet"
)

// history keeps what happened, in order: messages, faults, log lines and decisions.
type history struct {
	mu       sync.Mutex
	began    time.Time
	all      []entry
	messages int
}

// entry is a message, if its text is empty.
type entry struct {
	at   time.Duration
	text string
	m    vnet.Message
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) message(m *vnet.Message) {
	steps.Add(1)
	c := *m
	c.Head = bytes.Clone(m.Head[:min(len(m.Head), 80)])
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages++
	h.all = append(h.all, entry{at: m.At.Sub(h.began), m: c})
}

func (h *history) say(format string, a ...any) {
	steps.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, entry{at: time.Since(h.began), text: fmt.Sprintf(format, a...)})
}

// last returns the time of the last line with a text; the zero time if there is none.
func (h *history) last(text string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range slices.Backward(h.all) {
		if strings.Contains(e.text, text) {
			return h.began.Add(e.at)
		}
	}
	return time.Time{}
}

// first returns the time of the first such line.
func (h *history) first(is func(text string) bool) (at time.Time, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.all {
		if e.text != "" && is(e.text) {
			return h.began.Add(e.at), true
		}
	}
	return at, false
}

// write prints the history; short leaves out messages that arrive.
func (h *history) write(to io.Writer, short bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.all {
		switch m := &e.m; {
		case e.text != "":
			fmt.Fprintf(to, "%10.4f %s\n", e.at.Seconds(), e.text)
		case !short || m.Fault.Cut != vnet.Whole:
			fmt.Fprintf(to, "%10.4f %s %s→%s %d, %d bytes%s: %s\n", e.at.Seconds(), m.Conn, m.From, m.To, m.Number, m.Size, fateOf(m.Fault), printable(m.Head))
		}
	}
}

func fateOf(f vnet.Fault) string {
	switch f.Cut {
	case vnet.CutBefore:
		return ", lost with its connection"
	case vnet.CutAfter:
		return ", the connection ends after it"
	}
	if f.Delay > 20*time.Millisecond {
		return fmt.Sprintf(", late by %v", f.Delay)
	}
	return ""
}

func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '.'
		}
		return r
	}, string(b))
}

// logWriter puts the log lines of a process into the history.
type logWriter struct {
	h    *history
	host string
}

// Write stores a line.
func (l logWriter) Write(p []byte) (int, error) {
	l.h.say("%s: %s", l.host, bytes.TrimRight(p, "\n"))
	return len(p), nil
}
