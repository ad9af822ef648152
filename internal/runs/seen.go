package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Seen puts on the log what a keeper has seen of an attempt and its agent cannot
// tell. What the run says already is not said again, nor is anything of an attempt
// that counts no more. Its id derives from what is said: two keepers that see the
// same before they have read each other say the same fact twice, and the fold
// takes one of them.
func (f *Foreman) Seen(ctx context.Context, run *tidemill.Run, attempt int, d tidemill.RunSeen) error {
	if n := len(run.Attempts); run.State.Ended() || n == 0 || attempt != n {
		return nil
	}
	d.Attempt = attempt
	if _, news := run.Attempts[attempt-1].Sighted(d); !news {
		return nil
	}
	ctx, cancel := steady(ctx)
	defer cancel()
	said, err := seenFact(run, d)
	if err != nil {
		return err
	}
	_, _, err = f.put(ctx, said, f.now())
	return err
}

func seenFact(r *tidemill.Run, d tidemill.RunSeen) (fact, error) {
	number := strconv.Itoa(d.Attempt)
	content, err := json.Marshal(d)
	if err != nil {
		return fact{}, fmt.Errorf("write what was seen of run %s: %w", r.ID, err)
	}
	f := of(tidemill.TypeRunSeen, byKeeper, r, d, "seen", r.ID, number, string(content))
	f.attributes = []broker.Attribute{{Name: tidemill.AttrAttempt, Value: number}}
	return f, nil
}
