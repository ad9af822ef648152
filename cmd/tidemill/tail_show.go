package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"tidemill.dev/broker"
	"tidemill.dev/internal/tail"
)

// shownData is how much of an event's data a line has.
const shownData = 100

// shower prints records one way or the other.
func (t *tailing) shower(s *session) func(*tail.Event) error {
	if t.output == "json" {
		return jsonShower(s.stdout, s.stderr, isTerminal(s.stdout))
	}
	return func(e *tail.Event) error {
		if e.Err != nil {
			return showBad(s.stdout, e)
		}
		return showEvent(s.stdout, e)
	}
}

// jsonShower prints events as they are, save to a terminal.
func jsonShower(out, bad io.Writer, terminal bool) func(*tail.Event) error {
	return func(e *tail.Event) error {
		if e.Err != nil {
			return showBad(bad, e)
		}
		line := broker.MarshalStructured(&e.View)
		if terminal {
			line = harmlessJSON(line)
		}
		_, err := out.Write(append(line, '\n'))
		return err
	}
}

// sayHow tells who sits before an empty screen what it waits for.
func (t *tailing) sayHow(s *session, stream string) {
	if !t.noFollow && t.from == "end" && isTerminal(s.stderr) {
		fmt.Fprintf(s.stderr, "Waiting for events on %s; Ctrl-C ends it, --from beginning shows those that are there.\n", stream)
	}
}

// sayNothing tells "there is nothing" from "nothing matches": an attribute
// that is misspelt matches no event and is no error.
func (t *tailing) sayNothing(s *session, stream string) {
	if t.from != "beginning" {
		stream += " from " + t.from + " on"
	}
	switch {
	case t.output == "json":
	case t.match != nil:
		fmt.Fprintf(s.stderr, "No event on %s matches --where.\n", stream)
	default:
		fmt.Fprintf(s.stderr, "There are no events on %s.\n", stream)
	}
}

func showEvent(w io.Writer, e *tail.Event) error {
	_, err := fmt.Fprintf(w, "%s  %-16s %-12s %s  %s\n", clock(e.Received), harmless(e.Type), orDash(harmless(e.Subject)), harmless(e.ID), glimpse(&e.View))
	return err
}

// showBad says where the record lies, for whoever wants to find who wrote it.
func showBad(w io.Writer, e *tail.Event) error {
	_, err := fmt.Fprintf(w, "%s  not an event: %v (%s, key %q, %s: %s)\n", clock(e.Received), harmless(e.Err.Error()),
		place(e.Stream, e.Partition, e.Offset), cut(string(e.Key), 40), size(int64(len(e.Data))), oneLine(e.Data))
	return err
}

// clock is when a record reached the log, with the date where it is not today.
func clock(t time.Time) string {
	t = t.Local()
	if now := time.Now(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05.000")
	}
	return t.Format("15:04:05.000")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// glimpse is the event's extensions and the beginning of its data.
func glimpse(v *broker.View) string {
	var parts []string
	for _, a := range v.Extensions {
		parts = append(parts, a.Name+"="+harmless(cut(a.Value, 40)))
	}
	if v.Data != nil {
		parts = append(parts, oneLine(v.Data))
	}
	return strings.Join(parts, " ")
}

// oneLine is the beginning of some bytes, if they are text that a terminal may
// see.
func oneLine(data []byte) string {
	if len(data) == 0 {
		return "(empty)"
	}
	if !utf8.Valid(data) {
		return fmt.Sprintf("(%s of binary data)", size(int64(len(data))))
	}
	return cut(harmless(string(data[:min(len(data), 4*shownData)])), shownData)
}

// harmless is a text without what a terminal would obey.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		}
		return r
	}, text)
}

// harmlessJSON is JSON of the same value without what a terminal would obey or
// nobody would see. Outside of strings valid JSON has none of it but spaces.
func harmlessJSON(line []byte) []byte {
	if !bytes.ContainsFunc(line, unseen) {
		return line
	}
	safe := make([]byte, 0, len(line)+len(line)/8)
	for _, r := range string(line) {
		switch {
		case r == '\t', r == '\n', r == '\r':
			safe = append(safe, ' ')
		case unseen(r):
			for _, unit := range utf16.AppendRune(nil, r) {
				safe = fmt.Appendf(safe, `\u%04x`, unit)
			}
		default:
			safe = utf8.AppendRune(safe, r)
		}
	}
	return safe
}

// unseen are the control characters, those of C1 too, what turns the direction
// of writing, and what else has no look of its own.
func unseen(r rune) bool { return !unicode.IsGraphic(r) }

// cut shortens a text to a number of letters.
func cut(s string, letters int) string {
	if utf8.RuneCountInString(s) <= letters {
		return s
	}
	return string([]rune(s)[:letters-1]) + "…"
}
