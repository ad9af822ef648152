package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/functions"
)

// What the demo's trigger is about.
const (
	demoStream   = "orders"
	demoOrder    = "order-placed"
	demoReply    = "invoice-due"
	demoTrigger  = "billing"
	demoFunction = "invoice"
)

// taxes are what a function knows of shops, such as a table of a database.
type taxes struct {
	mu      sync.Mutex
	percent map[string]float64
}

func (x *taxes) learn(shop string, percent float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.percent[shop] = percent
}

func (x *taxes) of(shop string) (percent float64, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	percent, known = x.percent[shop]
	return percent, known
}

// invoice answers an order with what is to be paid.
func (x *taxes) invoice(_ context.Context, order event.Event) ([]event.Event, error) {
	var what struct {
		Net float64 `json:"net"`
	}
	if err := order.DataAs(&what); err != nil {
		return nil, functions.Permanent(fmt.Errorf("read the order: %w", err))
	}
	percent, known := x.of(order.Subject())
	if !known {
		return nil, functions.Permanent(fmt.Errorf("no tax is known for %s", order.Subject()))
	}
	due := event.New()
	due.SetType(demoReply)
	due.SetSource("/demo/" + demoFunction)
	due.SetSubject(order.Subject())
	if err := due.SetData(jsonType, map[string]float64{"gross": what.Net * (100 + percent) / 100}); err != nil {
		return nil, err
	}
	return []event.Event{due}, nil
}
