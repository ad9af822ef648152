package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// Lingering says how an agent waits for another attempt in the place where it
// has done one.
type Lingering struct {
	Pod   string
	For   time.Duration // 0 is not at all
	Clean func() error  // leaves nothing there of the attempt before
}

// Follow does an attempt, and others after it that the gateway gives to whoever
// waits in the same place. The folder of each is beneath that of the options.
func Follow(ctx context.Context, o Options, l Lingering) error {
	place := o.Work
	for {
		o.Work = filepath.Join(place, o.Attempt)
		told, err := do(ctx, o)
		if err != nil || !mayLinger(told) || l.For <= 0 || ctx.Err() != nil {
			return err
		}
		if err := l.Clean(); err != nil {
			return err
		}
		next, err := ask(ctx, o.withDefaults(), l)
		if err != nil || next.Attempt == "" {
			return err
		}
		o.Attempt, o.Token = next.Attempt, next.Token
	}
}

// mayLinger: who was asked to leave leaves.
func mayLinger(told tidemill.Outcome) bool {
	return told == tidemill.OutcomeSucceeded || told == tidemill.OutcomeFailed
}

const (
	askAgain    = time.Second      // at most, behind a gateway that is away
	answerWaits = 10 * time.Second // more than it was asked to
)

// ask waits for another attempt. A gateway that goes away meanwhile is no reason
// to leave: there is another, and what it was given it is told by that one too.
// Nothing is an error but what cannot be asked.
func ask(ctx context.Context, o Options, l Lingering) (next api.Given, err error) {
	d := newDoor(&o, func() {})
	until := time.Now().Add(l.For)
	for wait := firstWait; ; wait = min(2*wait, askAgain) {
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return api.Given{}, nil
		}
		text, err := json.Marshal(api.Idling{Pod: l.Pod, Seconds: left.Seconds()})
		if err != nil {
			return api.Given{}, err
		}
		from := time.Now()
		next, err := askOnce(ctx, d, left+answerWaits, text)
		if err == nil {
			return next, nil
		}
		after, again := passing(err)
		if !again {
			return api.Given{}, nil // it has nothing for us, and never will
		}
		if time.Since(from) > askAgain {
			wait = firstWait
		}
		_ = pause(ctx, max(wait, min(after, askAgain)))
	}
}

func askOnce(ctx context.Context, d *door, within time.Duration, text []byte) (next api.Given, err error) {
	err = d.once(ctx, within, said{"/next", jsonType, text}, func(r io.Reader) error {
		err := json.NewDecoder(r).Decode(&next)
		if errors.Is(err, io.EOF) {
			return nil // no content: it shall leave
		}
		return err
	})
	return next, err
}
