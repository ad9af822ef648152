package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

const watchEvery = time.Second

// watching adds --watch to a list.
type watching struct {
	program
	on bool
}

func (w *watching) flags(f *flagSet) {
	w.program.flags(f)
	f.yes(&w.on, "watch", "keep showing, each time that it changes, until Ctrl-C")
}

func (w *watching) run(ctx context.Context, s *session, args []string) error {
	if !w.on {
		return w.program.run(ctx, s, args)
	}
	v := view{s: s}
	if f, ok := s.stdout.(*os.File); ok && isTerminal(f) {
		v.screen = f
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var out bytes.Buffer
		inner := *s
		inner.stdout, inner.stderr = &out, &out
		err := w.program.run(ctx, &inner, args)
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
	s      *session
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
	_, err := fmt.Fprint(v.s.stdout, separator+text)
	return err
}

// fit leaves out what the screen has no room for: a line that wraps, or one that scrolls away, could
// not be drawn over.
func (v *view) fit(text string) string {
	width, height, err := term.GetSize(int(v.screen.Fd()))
	if err != nil {
		width, height = usualWidth, usualHeight
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if most := max(1, height-1); len(lines) > most {
		lines = lines[:most]
	}
	for i := range lines {
		lines[i] = cut(lines[i], width)
	}
	return strings.Join(lines, "\n") + "\n"
}
