package show

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Count formats a number with its noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Thousands(int64(n)) + " " + noun + "s"
}

// Thousands groups the digits of a number.
func Thousands(n int64) string {
	if n < 0 {
		return "-" + Thousands(-n)
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1000), n%1000)
}

// Size formats a number of bytes with a unit. A negative number is unknown.
func Size(n int64) string {
	const step = 1024
	switch {
	case n < 0:
		return "?"
	case n < step:
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/step, "KMGTP"
	for v >= step && len(units) > 1 {
		v, units = v/step, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, units[0])
}

// Span formats a duration in the units of the config.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "forever"
	case d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// Milliseconds formats a short time with one decimal.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// Table prints rows in columns. Numbers are aligned to the right: all columns but the first and the
// last.
func Table(w io.Writer, rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			width := widths[i]
			if i == 0 || i == len(row)-1 {
				width = -width
			}
			fmt.Fprintf(&line, "%*s  ", width, cell)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Columns prints rows of text in columns.
func Columns(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// Screen is the width for a drawing, and whether it may have colours.
type Screen struct {
	Width   int
	Colours bool
}

// ScreenOf returns the screen of an output. There are no colours if it is not a terminal or if
// NO_COLOR is set.
func ScreenOf(w io.Writer, getenv func(string) string) Screen {
	s := Screen{Width: UsualWidth}
	f, ok := w.(*os.File)
	if !ok || !IsTerminal(f) {
		return s
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		s.Width = width
	}
	s.Colours = getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
	return s
}

// Harmless replaces the control characters in a text.
func Harmless(text string) string {
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

// HarmlessJSON escapes control characters and invisible ones; the value stays the same. Outside of
// strings valid JSON has only spaces of these.
func HarmlessJSON(line []byte) []byte {
	if !bytes.ContainsFunc(line, Unseen) {
		return line
	}
	safe := make([]byte, 0, len(line)+len(line)/8)
	for _, r := range string(line) {
		switch {
		case r == '\t', r == '\n', r == '\r':
			safe = append(safe, ' ')
		case Unseen(r):
			for _, unit := range utf16.AppendRune(nil, r) {
				safe = fmt.Appendf(safe, `\u%04x`, unit)
			}
		default:
			safe = utf8.AppendRune(safe, r)
		}
	}
	return safe
}

// Unseen reports whether a character is invisible: a control character, also of C1, one that
// changes the direction of writing, or another one without a glyph.
func Unseen(r rune) bool { return !unicode.IsGraphic(r) }

// Cut shortens a text to a number of letters.
func Cut(s string, letters int) string {
	if utf8.RuneCountInString(s) <= letters {
		return s
	}
	return string([]rune(s)[:letters-1]) + "…"
}

// ShownID is the length of an id in lists. Its beginning is enough.
const ShownID = 10

// ShortID returns the beginning of an id, for lists.
func ShortID(id string) string { return Harmless(id[:min(len(id), ShownID)]) }

// IsTerminal reports whether an output is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// The size of a terminal whose size is unknown.
const (
	UsualHeight = 24
	UsualWidth  = 100
)

// Quoted returns a text as one word of a shell.
func Quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
