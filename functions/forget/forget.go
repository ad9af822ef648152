package forget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/forget"
)

// Forgetter ends keys.
type Forgetter interface {
	Ask(context.Context, forget.Ask) (id string, err error)
	Forget(context.Context, forget.Order) (tidemill.KeyForgotten, error)
}

// again is how long a fact stays away while an attempt ends, or the ledger is
// filled.
const again = 5 * time.Second

// New is the function.
func New(f Forgetter) functions.Func {
	return func(ctx context.Context, e event.Event) ([]event.Event, error) {
		v, err := broker.FromEvent(e)
		if err != nil {
			return nil, functions.Permanent(err)
		}
		if v.Type == tidemill.TypeKeyForgetting {
			_, err = f.Forget(ctx, orderOf(&v))
		} else {
			_, err = f.Ask(ctx, askOf(&v))
		}
		return nil, marked(err)
	}
}

// askOf is the wish that an event from outside is.
func askOf(v *broker.View) forget.Ask {
	a := forget.Ask{Key: v.Subject, Reason: fmt.Sprintf("event %s of type %s", v.ID, v.Type), Cause: tidemill.Cause{Source: v.Source, ID: v.ID}}
	a.By, _ = v.Attribute(tidemill.AttrAuthID)
	a.Trace, _ = v.Attribute(tidemill.AttrTraceParent)
	if a.Correlation, _ = v.Attribute(tidemill.AttrCorrelationID); a.Correlation == "" {
		a.Correlation = v.ID
	}
	return a
}

func orderOf(v *broker.View) forget.Order {
	var d tidemill.KeyForgetting
	_ = json.Unmarshal(v.Data, &d) // without a reason it is forgotten all the same
	o := forget.Order{ID: v.ID, Source: v.Source, Key: v.Subject, Reason: d.Reason}
	o.At, _ = time.Parse(time.RFC3339Nano, v.Time)
	o.By, _ = v.Attribute(tidemill.AttrAuthID)
	o.Correlation, _ = v.Attribute(tidemill.AttrCorrelationID)
	o.Trace, _ = v.Attribute(tidemill.AttrTraceParent)
	return o
}

// marked says of an error whether the event shall come again.
func marked(err error) error {
	switch {
	case errors.Is(err, forget.ErrKey):
		return functions.Permanent(err)
	case errors.Is(err, forget.ErrLive), errors.Is(err, forget.ErrCatchingUp):
		return functions.RetryAfter(err, again)
	}
	return err
}
