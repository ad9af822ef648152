package show

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	drawEvery = 100 * time.Millisecond
	barWidth  = 24
)

// Progress counts what is done and, on a terminal, shows it on the last line. It prints a warning
// when answers stop.
type Progress struct {
	Out   io.Writer
	shown bool  // whether out is a terminal
	total int64 // bytes to read; 0 if unknown
	began time.Time

	mu       sync.Mutex
	events   int
	open     int       // number of events that were sent and not answered
	heard    time.Time // time of the last answer, or of the first open event
	Worry    Worry     // warnings about missing answers
	bytes    int64
	drawn    bool
	stopping chan struct{}
	drawing  sync.WaitGroup
	once     sync.Once
	took     time.Duration
}

// StartProgress begins to draw. total is the number of bytes to send, 0 if it is unknown.
func StartProgress(out io.Writer, to Worry, total int64) *Progress {
	p := &Progress{Out: out, Worry: to, shown: IsTerminal(out), total: total, began: time.Now(), stopping: make(chan struct{})}
	p.drawing.Go(p.draw)
	return p
}

// Read sets the number of bytes that have been read.
func (p *Progress) Read(bytes int64) {
	p.mu.Lock()
	p.bytes = bytes
	p.mu.Unlock()
}

// Sent counts an event that was sent.
func (p *Progress) Sent() {
	p.mu.Lock()
	if p.open++; p.open == 1 {
		p.heard = time.Now()
	}
	p.mu.Unlock()
}

// Answered counts the answer to an event that was sent.
func (p *Progress) Answered(acknowledged bool) {
	p.mu.Lock()
	p.open--
	p.heard, p.Worry.told = time.Now(), toldNothing
	if acknowledged {
		p.events++
	}
	p.mu.Unlock()
}

func (p *Progress) draw() {
	t := time.NewTicker(drawEvery)
	defer t.Stop()
	for {
		select {
		case <-p.stopping:
			return
		case <-t.C:
		}
		p.mu.Lock()
		p.warn()
		if p.shown {
			p.drawn = true
			fmt.Fprintf(p.Out, "\r\x1b[K%s", p.line(time.Since(p.began)))
		}
		p.mu.Unlock()
	}
}

// warn prints a warning if answers are missing. The caller holds the lock.
func (p *Progress) warn() {
	if p.open == 0 {
		return
	}
	if line := p.Worry.line(p.heard, fmt.Sprintf("sending %s; retrying for up to 2 minutes", Count(p.open, "event"))); line != "" {
		p.wipe()
		fmt.Fprint(p.Out, line)
	}
}

// line formats the state as one line. The caller holds the lock.
func (p *Progress) line(took time.Duration) string {
	line := fmt.Sprintf("%s  %s/s  %s", Count(p.events, "event"), Thousands(int64(perSecond(p.events, took))), Size(p.bytes))
	if p.total <= 0 {
		return line
	}
	share := min(float64(p.bytes)/float64(p.total), 1)
	full := int(share * barWidth)
	return fmt.Sprintf("%s of %s  [%s%s] %3.0f%%", line, Size(p.total),
		strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100)
}

// Printf prints a line above the progress line.
func (p *Progress) Printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	fmt.Fprintf(p.Out, format, args...)
}

func (p *Progress) wipe() {
	if p.drawn {
		fmt.Fprint(p.Out, "\r\x1b[K")
		p.drawn = false
	}
}

// Stop clears the line. It may be called twice.
func (p *Progress) Stop() {
	p.once.Do(func() {
		close(p.stopping)
		p.drawing.Wait()
		p.mu.Lock()
		p.took = time.Since(p.began)
		p.wipe()
		p.mu.Unlock()
	})
}

// Rate returns the speed, for the end of a summary; empty for fewer than two events.
func (p *Progress) Rate() string {
	if p.events < 2 {
		return ""
	}
	return fmt.Sprintf(" in %s (%s/s, %s read)", p.took.Round(time.Millisecond), Thousands(int64(perSecond(p.events, p.took))), Size(p.bytes))
}

func perSecond(n int, took time.Duration) float64 {
	return float64(n) / max(took.Seconds(), 0.001)
}

const QuietAfter = 5 * time.Second

// Worry warns of a missing answer: once of a silence, and once of an error. Retries may last
// minutes, and the user may want to look at the server meanwhile.
type Worry struct {
	Who     string
	Trouble func() error // returns the error of the last attempt, nil if there is none
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
func (w *Worry) line(since time.Time, what string) string {
	if time.Since(since) < QuietAfter {
		return ""
	}
	trouble := w.Trouble()
	switch {
	case trouble != nil && w.told < toldTrouble:
		w.told = toldTrouble
		return fmt.Sprintf("No answer for %s; %s. Last error: %v\n", QuietAfter, what, trouble)
	case trouble == nil && w.told < toldSilence:
		w.told = toldSilence
		return fmt.Sprintf("No answer from %s for %s; %s. Is it running?\n", w.Who, QuietAfter, what)
	}
	return ""
}

// Watch prints warnings until stop, which waits for its end.
func (w *Worry) Watch(out io.Writer, what string) (stop func()) {
	began, done := time.Now(), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		t := time.NewTicker(QuietAfter / 10)
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

// Carried counts the files and bytes that are read or moved. On a terminal it shows them on one
// line.
type Carried struct {
	out   io.Writer
	shown bool

	mu         sync.Mutex
	verb       string
	files, all int // all is 0 while the number is not known
	bytes, sum int64
	began      time.Time
	drawn      bool
	troubled   time.Time // time of the last failure that was printed
	stopping   chan struct{}
	drawing    sync.WaitGroup
	once       sync.Once
}

// StartCarried begins to draw.
func StartCarried(out io.Writer) *Carried {
	c := &Carried{out: out, shown: IsTerminal(out), began: time.Now(), stopping: make(chan struct{})}
	c.drawing.Go(c.draw)
	return c
}

// Next begins the next phase of the work.
func (c *Carried) Next(verb string, files int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verb, c.all, c.sum, c.files, c.bytes, c.began = verb, files, bytes, 0, 0, time.Now()
}

// Add counts files and bytes that have been carried.
func (c *Carried) Add(files int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files += files
	c.bytes += bytes
}

const troubleEvery = 10 * time.Second

// Trouble prints a failure that is retried, at most every ten seconds.
func (c *Carried) Trouble(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.troubled) < troubleEvery {
		return
	}
	c.troubled = time.Now()
	c.wipe()
	fmt.Fprintf(c.out, "The gateway does not answer; retrying for a while. Last error: %s\n", Harmless(err.Error()))
}

func (c *Carried) draw() {
	t := time.NewTicker(drawEvery)
	defer t.Stop()
	for {
		select {
		case <-c.stopping:
			return
		case <-t.C:
		}
		c.mu.Lock()
		if c.shown && c.verb != "" {
			c.drawn = true
			fmt.Fprintf(c.out, "\r\x1b[K%s", c.line(time.Since(c.began)))
		}
		c.mu.Unlock()
	}
}

// line formats the state as one line. The caller holds the lock.
func (c *Carried) line(took time.Duration) string {
	rate := Size(int64(float64(c.bytes)/max(took.Seconds(), 0.001))) + "/s"
	if c.all == 0 {
		return fmt.Sprintf("%s  %s  %s  %s", c.verb, Count(c.files, "file"), Size(c.bytes), rate)
	}
	share := 1.0
	if c.sum > 0 {
		share = min(float64(c.bytes)/float64(c.sum), 1)
	}
	full := int(share * barWidth)
	return fmt.Sprintf("%s  %s of %s  %s of %s  %s  [%s%s] %3.0f%%", c.verb, Thousands(int64(c.files)), Count(c.all, "file"),
		Size(c.bytes), Size(c.sum), rate, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100)
}

func (c *Carried) wipe() {
	if c.drawn {
		fmt.Fprint(c.out, "\r\x1b[K")
		c.drawn = false
	}
}

// Stop clears the line. It may be called twice.
func (c *Carried) Stop() {
	c.once.Do(func() {
		close(c.stopping)
		c.drawing.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wipe()
	})
}
