package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// carried counts files and bytes that are read or moved and, on a terminal,
// shows them on one line.
type carried struct {
	out   io.Writer
	shown bool

	mu         sync.Mutex
	verb       string
	files, all int // all is 0 while nobody knows
	bytes, sum int64
	began      time.Time
	drawn      bool
	troubled   time.Time // when a failure was told last
	stopping   chan struct{}
	drawing    sync.WaitGroup
	once       sync.Once
}

func startCarried(out io.Writer) *carried {
	c := &carried{out: out, shown: isTerminal(out), began: time.Now(), stopping: make(chan struct{})}
	c.drawing.Go(c.draw)
	return c
}

// next begins a new stretch of the work.
func (c *carried) next(verb string, files int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verb, c.all, c.sum, c.files, c.bytes, c.began = verb, files, bytes, 0, 0, time.Now()
}

func (c *carried) add(files int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files += files
	c.bytes += bytes
}

const troubleEvery = 10 * time.Second

// trouble tells of a failure that is tried again, but not of each of many.
func (c *carried) trouble(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.troubled) < troubleEvery {
		return
	}
	c.troubled = time.Now()
	c.wipe()
	fmt.Fprintf(c.out, "The gateway is asked again for a while. The last try: %s\n", harmless(err.Error()))
}

func (c *carried) draw() {
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

// line is the state as one line. Called with the lock held.
func (c *carried) line(took time.Duration) string {
	rate := size(int64(float64(c.bytes)/max(took.Seconds(), 0.001))) + "/s"
	if c.all == 0 {
		return fmt.Sprintf("%s  %s  %s  %s", c.verb, count(c.files, "file"), size(c.bytes), rate)
	}
	share := 1.0
	if c.sum > 0 {
		share = min(float64(c.bytes)/float64(c.sum), 1)
	}
	full := int(share * barWidth)
	return fmt.Sprintf("%s  %s of %s  %s of %s  %s  [%s%s] %3.0f%%", c.verb, thousands(int64(c.files)), count(c.all, "file"),
		size(c.bytes), size(c.sum), rate, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100)
}

func (c *carried) wipe() {
	if c.drawn {
		fmt.Fprint(c.out, "\r\x1b[K")
		c.drawn = false
	}
}

// stop takes the line away. It may be called twice.
func (c *carried) stop() {
	c.once.Do(func() {
		close(c.stopping)
		c.drawing.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wipe()
	})
}
