package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// screen is what a drawing may use: so many columns, and colours or none.
type screen struct {
	width   int
	colours bool
}

// screenOf is that of an output. One that is no terminal gets no colours, and
// neither does whoever has said so by NO_COLOR.
func screenOf(w io.Writer, getenv func(string) string) screen {
	s := screen{width: usualWidth}
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return s
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		s.width = width
	}
	s.colours = getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
	return s
}
