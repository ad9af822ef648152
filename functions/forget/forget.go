package forget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/models/erase"
)

// Forgetter forgets keys.
type Forgetter interface {
	Ask(context.Context, erase.Ask) (id string, err error)
	Forget(context.Context, erase.Order) (tidemill.KeyForgotten, error)
}

// redeliveryDelay is the time after which a fact is delivered again while an attempt ends or the ledger
// is catching up.
const redeliveryDelay = 5 * time.Second

// New returns the function.
func New(f Forgetter) functions.ViewFunc {
	return func(ctx context.Context, v *broker.View) (err error) {
		if v.Type == tidemill.TypeKeyForgetting {
			_, err = f.Forget(ctx, orderOf(v))
		} else {
			_, err = f.Ask(ctx, askOf(v))
		}
		return marked(err)
	}
}

// askOf returns the request of an event from outside.
func askOf(v *broker.View) erase.Ask {
	a := erase.Ask{Key: v.Subject, Reason: fmt.Sprintf("event %s of type %s", v.ID, v.Type), Cause: tidemill.Cause{Source: v.Source, ID: v.ID}}
	a.By, _ = v.Attribute(tidemill.AttrAuthID)
	a.Trace, _ = v.Attribute(tidemill.AttrTraceParent)
	if a.Correlation, _ = v.Attribute(tidemill.AttrCorrelationID); a.Correlation == "" {
		a.Correlation = v.ID
	}
	return a
}

func orderOf(v *broker.View) erase.Order {
	var d tidemill.KeyForgetting
	_ = json.Unmarshal(v.Data, &d) // data without a reason is accepted
	o := erase.Order{ID: v.ID, Source: v.Source, Key: v.Subject, Reason: d.Reason}
	o.At, _ = time.Parse(time.RFC3339Nano, v.Time)
	o.By, _ = v.Attribute(tidemill.AttrAuthID)
	o.Correlation, _ = v.Attribute(tidemill.AttrCorrelationID)
	o.Trace, _ = v.Attribute(tidemill.AttrTraceParent)
	return o
}

// marked marks an error by whether the event shall come again.
func marked(err error) error {
	switch {
	case errors.Is(err, erase.ErrKey):
		return functions.Permanent(err)
	case errors.Is(err, erase.ErrLive), errors.Is(err, erase.ErrCatchingUp):
		return functions.RetryAfter(err, redeliveryDelay)
	}
	return err
}
