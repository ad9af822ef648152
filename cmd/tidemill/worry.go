package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

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
