package remote

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// runWatch polls runs. On a terminal it redraws a table; elsewhere it prints a line for each
// change.
type runWatch struct {
	list *runList
	g    *client.Gateway
	out  io.Writer

	screen *os.File          // nil if the output is not a terminal
	drawn  int               // number of lines of the drawn table
	told   map[string]string // last printed line of each run
}

func newRunWatch(l *runList, g *client.Gateway, s *command.Session) *runWatch {
	w := &runWatch{list: l, g: g, out: s.Stdout, told: map[string]string{}}
	if f, ok := s.Stdout.(*os.File); ok && show.IsTerminal(f) {
		w.screen = f
	}
	return w
}

// run polls until it is interrupted, which is not an error.
func (w *runWatch) run(ctx context.Context) error {
	tick := time.NewTicker(command.WatchEvery)
	defer tick.Stop()
	for {
		all, err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.show(all, time.Now()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look returns all live runs, however old, and the newest ones.
func (w *runWatch) look(ctx context.Context) ([]api.RunShown, error) {
	newest, err := gatherRuns(ctx, w.g, w.list.query(), &w.list.pages)
	if err != nil || len(w.list.states) > 0 {
		return byLiveliness(newest.Runs, nil), err
	}
	q := w.list.query()
	q.States = []tidemill.RunState{tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting}
	live, err := gatherRuns(ctx, w.g, q, &w.list.pages)
	return byLiveliness(newest.Runs, live.Runs), err
}

// byLiveliness sorts runs: live, waiting, ended; the ended ones newest first.
func byLiveliness(newest, live []api.RunShown) []api.RunShown {
	all := slices.Clone(live)
	known := map[string]bool{}
	for i := range live {
		known[live[i].ID] = true
	}
	for i := range newest {
		if !known[newest[i].ID] {
			all = append(all, newest[i])
		}
	}
	slices.SortStableFunc(all, func(a, b api.RunShown) int {
		return cmp.Or(cmp.Compare(liveliness(&a), liveliness(&b)), b.End.Compare(a.End))
	})
	return all
}

func liveliness(r *api.RunShown) int {
	switch {
	case r.State.Ended():
		return 2
	case r.State == tidemill.RunWaiting:
		return 1
	}
	return 0
}

func (w *runWatch) show(all []api.RunShown, now time.Time) error {
	if w.screen == nil {
		return w.tell(all, now)
	}
	width, height, err := term.GetSize(int(w.screen.Fd()))
	if err != nil {
		width, height = show.UsualWidth, show.UsualHeight
	}
	frame := runFrame(all, now, width, height)
	_, err = fmt.Fprint(w.out, w.over()+frame)
	w.drawn = strings.Count(frame, "\n")
	return err
}

// over returns the control codes that clear the drawn table.
func (w *runWatch) over() string {
	if w.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", w.drawn)
}

// runFrame formats as much of the table as the screen has room for.
func runFrame(all []api.RunShown, now time.Time, width, height int) string {
	counts := map[int]int{}
	for i := range all {
		counts[liveliness(&all[i])]++
	}
	head := fmt.Sprintf("%s live, %d waiting, %d ended   %s   Ctrl-C ends this\n", show.Count(counts[0], "run"), counts[1], counts[2], now.Format(time.TimeOnly))
	rows := max(height-4, 1)
	left := len(all) - rows
	var table strings.Builder
	_ = show.Columns(&table, runRows(all[:min(len(all), rows)], now)) // a builder returns no error
	var frame strings.Builder
	for line := range strings.Lines(head + table.String()) {
		frame.WriteString(show.Cut(strings.TrimRight(line, " \n"), max(width-1, 20)) + "\n")
	}
	if left > 0 {
		fmt.Fprintf(&frame, "… and %d more\n", left)
	}
	return frame.String()
}

// tell prints a line for each run that has changed.
func (w *runWatch) tell(all []api.RunShown, now time.Time) error {
	for i := range slices.Backward(all) {
		r := &all[i]
		text := strings.TrimRight(fmt.Sprintf("%s  %s  %s  %s  %s", show.ShortID(r.ID), show.Harmless(r.Recipe), orDash(show.Harmless(r.Key)), stateOfRun(r), show.Harmless(noteOf(r))), " ")
		if w.told[r.ID] == text {
			continue
		}
		w.told[r.ID] = text
		if _, err := fmt.Fprintf(w.out, "%s  %s\n", now.Format(time.TimeOnly), text); err != nil {
			return err
		}
	}
	return nil
}

func logsCommand() command.Command {
	return command.Command{
		Name:    "runs logs",
		Daily:   true,
		Short:   "logs",
		Args:    "RUN",
		Summary: "show the log of a run's command",
		About: `The first six letters of the run's id are enough, if no other id begins with them. It
shows the newest attempt, or that of --attempt. With -f it continues, also through later
attempts, until the run has ended or until Ctrl-C.

For a run with several workers it prints the log of the first one, and after its end
the logs of the others, with a name on each line: [w1] is the second worker, [ps0] the
first parameter server. --part prints only one of them, and with -f it follows it.

The log is stored with the output of the run.`,
		Examples: []command.Example{
			{"tidemill logs 3k7mzq", "the log until now"},
			{"tidemill logs 3k7mzq -f", "until the run has ended"},
			{"tidemill logs 3k7mzq --part w1 -f", "the log of the second worker"},
			{"tidemill logs 3k7mzq --attempt 1 --timestamps", "the log of the first attempt, with the time of each line"},
		},
		Make: func() command.Program {
			p := &logShow{}
			return &request{flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type logShow struct{ want client.LogOptions }

func (p *logShow) flags(f *command.FlagSet) {
	f.YesOr(&p.want.Follow, "follow", "f", "continue until the run has ended")
	f.Number(&p.want.Attempt, "attempt", "", "NUMBER", "number of the attempt; 0 is the newest")
	f.Text(&p.want.Part, "part", "", "NAME", "only the log of this worker, such as w0, w1 or ps0")
	f.Yes(&p.want.Timestamps, "timestamps", "begin each line with its time, and stdout or stderr")
}

func (p *logShow) accept([]string) error {
	if p.want.Attempt < 0 {
		return command.Usagef("--attempt %d: give 1 or more", p.want.Attempt)
	}
	return nil
}

func (p *logShow) do(ctx context.Context, c *call) error {
	out := &logOutput{to: c.Stdout, seen: onScreen(c.Stdout)}
	err := c.g.RunLog(ctx, c.positional[0], p.want, out)
	switch {
	case err != nil && p.want.Follow && ctx.Err() != nil:
		return out.flush() // Ctrl-C is the normal end of following
	case err != nil:
		return err
	case out.written == 0:
		fmt.Fprintf(c.Stderr, "The log is empty; tidemill runs show %s shows the state of the run.\n", show.ShortID(c.positional[0]))
	}
	return out.flush()
}

func onScreen(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// logOutput writes a log. Files and programs get it unchanged. A terminal gets it without control
// characters, because the command may repeat any data. The carriage return stays, because progress
// bars use it.
type logOutput struct {
	to      io.Writer
	seen    bool // whether the output is a terminal
	written int64
	left    []byte // beginning of an incomplete character
}

// Write writes all complete characters.
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

// cutLetter returns how many bytes at the end belong to an incomplete character.
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
