package main

import (
	"context"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
	"tidemill.dev/triggers/letters"
)

// receipts waits for the ends of replays.
type receipts struct {
	s      *session
	tail   *remote.Tail
	wanted map[string]bool // letters
	asked  int

	delivered, again, other int
}

func followReceipts(ctx context.Context, g *remote.Gateway, s *session) (*receipts, error) {
	t, err := g.Tail(ctx, remote.TailOptions{Stream: tidemill.StreamDeadLetters, From: "end"})
	if err != nil {
		return nil, fmt.Errorf("wait for receipts: %w; --no-wait asks without waiting", err)
	}
	return &receipts{s: s, tail: t, wanted: map[string]bool{}}, nil
}

func (r *receipts) close() { r.tail.Close() }

// expect adds letters whose receipts are to be waited for.
func (r *receipts) expect(ids []string) {
	for _, id := range ids {
		r.wanted[id] = true
	}
	r.asked += len(ids)
}

// shownReceipts is how many receipts are shown one by one.
const shownReceipts = 25

// run shows the receipts until all are there. Ctrl-C ends the waiting and
// nothing else.
func (r *receipts) run(ctx context.Context) error {
	for len(r.wanted) > 0 {
		batch, err := r.tail.Next(ctx)
		if ctx.Err() != nil {
			fmt.Fprintf(r.s.stderr, "The replay goes on without us: %s had no receipt yet. Next: tidemill dl tells how each stands.\n", count(len(r.wanted), "letter"))
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for receipts: %w; the replay goes on, tidemill dl tells how it stands", err)
		}
		for i := range batch {
			r.take(&batch[i])
		}
		if len(batch) > 0 && r.asked > shownReceipts {
			fmt.Fprintf(r.s.stderr, "%s of %s\n", thousands(int64(r.asked-len(r.wanted))), thousands(int64(r.asked)))
		}
	}
	return r.sum()
}

func (r *receipts) take(e *tail.Event) {
	if e.Err != nil || e.Type != tidemill.TypeEventResolved {
		return
	}
	receipt, err := letters.ReadReceipt(&e.View)
	if err != nil || !r.wanted[receipt.Letter] {
		return
	}
	delete(r.wanted, receipt.Letter)
	switch receipt.Outcome {
	case letters.Delivered:
		r.delivered++
	case letters.FailedAgain:
		r.again++
	default:
		r.other++
	}
	if r.asked > shownReceipts {
		return
	}
	line := fmt.Sprintf("%s  %s", shortID(receipt.Letter), receipt.Outcome)
	if receipt.Reason != "" {
		line += ": " + receipt.Reason
	}
	if receipt.NewLetter != "" {
		line += " (dead letter " + receipt.NewLetter[:min(len(receipt.NewLetter), shownID)] + ")"
	}
	fmt.Fprintln(r.s.stdout, harmless(line))
}

// sum tells how it all ended. What failed again is no success.
func (r *receipts) sum() error {
	fmt.Fprintf(r.s.stdout, "Delivered %s", count(r.delivered, "dead letter"))
	if r.other > 0 {
		fmt.Fprintf(r.s.stdout, ", %s dropped meanwhile", thousands(int64(r.other)))
	}
	if r.again == 0 {
		fmt.Fprintln(r.s.stdout, ".")
		return nil
	}
	fmt.Fprintf(r.s.stdout, ", %s failed again. Next: tidemill dl lists them, newest first.\n", thousands(int64(r.again)))
	return errReported
}
