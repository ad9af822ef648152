package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	"tidemill.dev/internal/cli/show"
)

// WatchEvery is the time between two looks of --watch.
const WatchEvery = time.Second

// Watching adds --watch to a list.
type Watching struct {
	Program
	on bool
}

// Flags adds --watch to the flags of the program.
func (w *Watching) Flags(f *FlagSet) {
	w.Program.Flags(f)
	f.Yes(&w.on, "watch", "keep showing, each time that it changes, until Ctrl-C")
}

// Run runs the program, again and again with --watch.
func (w *Watching) Run(ctx context.Context, s *Session, args []string) error {
	if !w.on {
		return w.Program.Run(ctx, s, args)
	}
	v := view{s: s}
	if f, ok := s.Stdout.(*os.File); ok && show.IsTerminal(f) {
		v.screen = f
	}
	tick := time.NewTicker(WatchEvery)
	defer tick.Stop()
	for {
		var out bytes.Buffer
		inner := *s
		inner.Stdout, inner.Stderr = &out, &out
		err := w.Program.Run(ctx, &inner, args)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is how a watch ends
		case err != nil && v.shown == "":
			return err
		case err != nil:
			fmt.Fprintf(&out, "%v; retrying\n", err)
		}
		if err := v.show(out.String()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// view shows a text that changes. On a terminal it draws over the text before; elsewhere it prints
// each new text after an empty line.
type view struct {
	s      *Session
	screen *os.File // nil if the output is not a terminal
	shown  string
}

func (v *view) show(text string) error {
	if text == v.shown {
		return nil
	}
	separator := ""
	switch {
	case v.screen != nil:
		text = v.fit(text)
		if n := strings.Count(v.shown, "\n"); n > 0 {
			separator = fmt.Sprintf("\x1b[%dA\x1b[J", n)
		}
	case v.shown != "":
		separator = "\n"
	}
	v.shown = text
	_, err := fmt.Fprint(v.s.Stdout, separator+text)
	return err
}

// fit leaves out what the screen has no room for: a line that wraps, or one that scrolls away, could
// not be drawn over.
func (v *view) fit(text string) string {
	width, height, err := term.GetSize(int(v.screen.Fd()))
	if err != nil {
		width, height = show.UsualWidth, show.UsualHeight
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if most := max(1, height-1); len(lines) > most {
		lines = lines[:most]
	}
	for i := range lines {
		lines[i] = show.Cut(lines[i], width)
	}
	return strings.Join(lines, "\n") + "\n"
}
