package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"tidemill.dev/internal/gateway/client"
)

func logsCommand() command {
	return command{
		name:    "logs",
		args:    "RUN",
		summary: "show the log of a run's command",
		about: `Six letters or more of the run's id will do, if no other begins so. Of several
attempts it is the newest, unless --attempt names another. With -f it goes on until
the run has ended, through the attempts that come, or until Ctrl-C.

For a run with several workers it prints the log of the first one, and after its end
those of the others, with a name on each line: [w1] is the second worker, [ps0] the
first parameter server. --part prints one of them; with -f it follows it.

The log is stored with the output of the run, long after its end.

` + atTheGate,
		examples: []example{
			{"tidemill logs 3k7mzq", "the log until now"},
			{"tidemill logs 3k7mzq -f", "until the run has ended"},
			{"tidemill logs 3k7mzq --part w1 -f", "the log of the second worker"},
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
		return out.flush() // Ctrl-C is the normal end of following
	case err != nil:
		return err
	case out.written == 0:
		fmt.Fprintln(s.stderr, "The log is empty.")
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

const (
	drawEvery = 100 * time.Millisecond
	barWidth  = 24
)

// progress counts what is done and, on a terminal, shows it on the last line. It prints a warning
// when answers stop.
type progress struct {
	out   io.Writer
	shown bool  // whether out is a terminal
	total int64 // bytes to read; 0 if unknown
	began time.Time

	mu       sync.Mutex
	events   int
	open     int       // number of events that were sent and not answered
	heard    time.Time // time of the last answer, or of the first open event
	worry    worry     // warnings about missing answers
	bytes    int64
	drawn    bool
	stopping chan struct{}
	drawing  sync.WaitGroup
	once     sync.Once
	took     time.Duration
}

func startProgress(out io.Writer, to worry, total int64) *progress {
	p := &progress{out: out, worry: to, shown: isTerminal(out), total: total, began: time.Now(), stopping: make(chan struct{})}
	p.drawing.Go(p.draw)
	return p
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (p *progress) read(bytes int64) {
	p.mu.Lock()
	p.bytes = bytes
	p.mu.Unlock()
}

func (p *progress) sent() {
	p.mu.Lock()
	if p.open++; p.open == 1 {
		p.heard = time.Now()
	}
	p.mu.Unlock()
}

func (p *progress) answered(acknowledged bool) {
	p.mu.Lock()
	p.open--
	p.heard, p.worry.told = time.Now(), toldNothing
	if acknowledged {
		p.events++
	}
	p.mu.Unlock()
}

func (p *progress) draw() {
	t := time.NewTicker(drawEvery)
	defer t.Stop()
	for {
		select {
		case <-p.stopping:
			return
		case <-t.C:
		}
		p.mu.Lock()
		p.worryAloud()
		if p.shown {
			p.drawn = true
			fmt.Fprintf(p.out, "\r\x1b[K%s", p.line(time.Since(p.began)))
		}
		p.mu.Unlock()
	}
}

// worryAloud prints a warning if answers are missing. The caller holds the lock.
func (p *progress) worryAloud() {
	if p.open == 0 {
		return
	}
	theirs := "their"
	if p.open == 1 {
		theirs = "its"
	}
	if line := p.worry.line(p.heard, fmt.Sprintf("%s on %s way, and retried for up to 2 minutes", count(p.open, "event"), theirs)); line != "" {
		p.wipe()
		fmt.Fprint(p.out, line)
	}
}

// line formats the state as one line. The caller holds the lock.
func (p *progress) line(took time.Duration) string {
	line := fmt.Sprintf("%s  %s/s  %s", count(p.events, "event"), thousands(int64(perSecond(p.events, took))), size(p.bytes))
	if p.total <= 0 {
		return line
	}
	share := min(float64(p.bytes)/float64(p.total), 1)
	full := int(share * barWidth)
	return fmt.Sprintf("%s of %s  [%s%s] %3.0f%%", line, size(p.total),
		strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100)
}

// printf prints a line above the progress line.
func (p *progress) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	fmt.Fprintf(p.out, format, args...)
}

func (p *progress) wipe() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// stop clears the line. It may be called twice.
func (p *progress) stop() {
	p.once.Do(func() {
		close(p.stopping)
		p.drawing.Wait()
		p.mu.Lock()
		p.took = time.Since(p.began)
		p.wipe()
		p.mu.Unlock()
	})
}

// rate returns the speed, for the end of a summary; empty for fewer than two events.
func (p *progress) rate() string {
	if p.events < 2 {
		return ""
	}
	return fmt.Sprintf(" in %s (%s/s, %s read)", p.took.Round(time.Millisecond), thousands(int64(perSecond(p.events, p.took))), size(p.bytes))
}

func perSecond(n int, took time.Duration) float64 {
	return float64(n) / max(took.Seconds(), 0.001)
}

const quietAfter = 5 * time.Second

// worry warns of a missing answer: once of a silence, and once of an error. Retries may last
// minutes, and the user may want to look at the server meanwhile.
type worry struct {
	who     string
	trouble func() error // returns the error of the last attempt, nil if there is none
	told    int          // steps already printed
}

// These are the steps of a warning.
const (
	toldNothing = iota
	toldSilence
	toldTrouble
)

// line returns the warning if there was no answer since then; empty if it is too early or the
// warning was printed already.
func (w *worry) line(since time.Time, what string) string {
	if time.Since(since) < quietAfter {
		return ""
	}
	trouble := w.trouble()
	switch {
	case trouble != nil && w.told < toldTrouble:
		w.told = toldTrouble
		return fmt.Sprintf("No answer for %s; %s. Last error: %v\n", quietAfter, what, trouble)
	case trouble == nil && w.told < toldSilence:
		w.told = toldSilence
		return fmt.Sprintf("No answer from %s for %s; %s. Is it running?\n", w.who, quietAfter, what)
	}
	return ""
}

// watch prints warnings until stop, which waits for its end.
func (w *worry) watch(out io.Writer, what string) (stop func()) {
	began, done := time.Now(), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		t := time.NewTicker(quietAfter / 10)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				if line := w.line(began, what); line != "" {
					fmt.Fprint(out, line)
				}
			}
		}
	})
	return func() {
		close(done)
		watching.Wait()
	}
}
