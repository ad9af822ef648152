package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	drawEvery = 100 * time.Millisecond
	barWidth  = 24
)

// progress counts what a long work has done and, on a terminal, shows it on
// one line that other lines push down. When answers stop coming it says so.
type progress struct {
	out   io.Writer
	shown bool  // on a terminal
	total int64 // bytes to read; 0 if nobody knows
	began time.Time

	mu       sync.Mutex
	events   int
	open     int       // sent and not answered
	heard    time.Time // the last answer, or the first of those that are open
	worry    worry     // about answers that are missing
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

// worryAloud is called with the lock held.
func (p *progress) worryAloud() {
	if p.open == 0 {
		return
	}
	theirs := "their"
	if p.open == 1 {
		theirs = "its"
	}
	if line := p.worry.line(p.heard, fmt.Sprintf("%s on %s way, and tried again for 2 minutes", count(p.open, "event"), theirs)); line != "" {
		p.wipe()
		fmt.Fprint(p.out, line)
	}
}

// line is the state as one line. Called with the lock held.
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

// printf prints a line above the one that is drawn.
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

// stop takes the line away. It may be called twice.
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

// rate is how it went, behind a sum; nothing where there is nothing to say.
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

// worry is about an answer that does not come. It is told once of a silence, and
// once of what was answered instead: retries may last minutes, and who waits may
// want to look after who is asked.
type worry struct {
	who     string
	trouble func() error // what the last try met, nil if nothing
	told    int          // how much of it
}

// The steps of what there is to tell.
const (
	toldNothing = iota
	toldSilence
	toldTrouble
)

// line is what there is to tell now that nothing has come since then; nothing if
// it has been told.
func (w *worry) line(since time.Time, what string) string {
	if time.Since(since) < quietAfter {
		return ""
	}
	trouble := w.trouble()
	switch {
	case trouble != nil && w.told < toldTrouble:
		w.told = toldTrouble
		return fmt.Sprintf("In vain for %s; %s. The last try: %v\n", quietAfter, what, trouble)
	case trouble == nil && w.told < toldSilence:
		w.told = toldSilence
		return fmt.Sprintf("No answer from %s for %s; %s. Is it running?\n", w.who, quietAfter, what)
	}
	return ""
}

// watch tells until it is stopped, which waits.
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
