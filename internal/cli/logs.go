package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"tidemill.dev/internal/gateway/client"
)

func logsCommand() command {
	return command{
		name:    "logs",
		args:    "RUN",
		summary: "show what a run's command says, or has said",
		about: `Six letters or more of the run's id will do, if no other begins so. Of several
attempts it is the newest, unless --attempt names another. With -f it goes on until
the run has ended, through the attempts that come, or until Ctrl-C.

Of a run with several workers it is what the first of them says, and behind its end
what the others do, each line with its name: [w1] is the second worker, [ps0] the
first parameter server. --part shows one of them, and with -f as it comes.

The log is kept with what the run made, long after it has ended.

` + atTheGate,
		examples: []example{
			{"tidemill logs 3k7mzq", "what there is, and no more"},
			{"tidemill logs 3k7mzq -f", "until the run has ended"},
			{"tidemill logs 3k7mzq --part w1 -f", "what the second worker says"},
			{"tidemill logs 3k7mzq --attempt 1 --timestamps", "of the first attempt, with the time of each line"},
		},
		make: func() program { return &logShow{} },
	}
}

type logShow struct {
	gate
	want client.LogOptions
}

func (p *logShow) flags(f *flagSet) {
	f.yesOr(&p.want.Follow, "follow", "f", "go on until the run has ended")
	f.number(&p.want.Attempt, "attempt", "", "NUMBER", "of which attempt (default the newest)")
	f.text(&p.want.Part, "part", "", "NAME", "of this one of several alone: w0, w1 or ps0, say")
	f.yes(&p.want.Timestamps, "timestamps", "begin each line with its time, and stdout or stderr")
	p.gate.flags(f)
}

func (p *logShow) accept(positional []string) error {
	if p.want.Attempt < 0 {
		return usagef("--attempt %d: give 1 or more", p.want.Attempt)
	}
	return wants(positional, "RUN")
}

func (p *logShow) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	out := &logOutput{to: s.stdout, seen: onScreen(s.stdout)}
	err = g.RunLog(ctx, positional[0], p.want, out)
	switch {
	case err != nil && p.want.Follow && ctx.Err() != nil:
		return out.flush() // Ctrl-C is how following ends
	case err != nil:
		return err
	case out.written == 0:
		fmt.Fprintln(s.stderr, "It has said nothing.")
	}
	return out.flush()
}

func onScreen(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// logOutput writes a log. What a file or another program gets is what the
// command has said. A screen gets it without what it would obey, but for the
// return that bars of progress are drawn with: the command may repeat what
// anybody has put into its data.
type logOutput struct {
	to      io.Writer
	seen    bool // by people
	written int64
	left    []byte // of a letter that has come in part
}

// Write writes all that is whole.
func (o *logOutput) Write(b []byte) (int, error) {
	o.written += int64(len(b))
	if !o.seen {
		return o.to.Write(b)
	}
	text := append(o.left, b...)
	whole := len(text) - cutLetter(text)
	_, err := o.to.Write(harmlessLog(text[:whole]))
	o.left = append([]byte(nil), text[whole:]...)
	return len(b), err
}

func (o *logOutput) flush() error {
	if len(o.left) == 0 {
		return nil
	}
	_, err := o.to.Write(harmlessLog(o.left))
	return err
}

// cutLetter is how many bytes at the end are a letter that is not there whole.
func cutLetter(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if rest := text[len(text)-n:]; utf8.RuneStart(rest[0]) {
			if utf8.FullRune(rest) {
				return 0
			}
			return n
		}
	}
	return 0
}

func harmlessLog(text []byte) []byte {
	safe := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r == '\n', r == '\r', r == '\t', unicode.IsPrint(r):
			safe = utf8.AppendRune(safe, r)
		case unicode.IsSpace(r):
			safe = append(safe, ' ')
		default:
			safe = append(safe, "·"...)
		}
	}
	return safe
}
