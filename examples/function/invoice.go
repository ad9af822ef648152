package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/functions"
)

// order is the data of order-placed.
type order struct {
	Total    float64 `json:"total"`
	Currency string  `json:"currency"`
}

// invoiceDue is the data of invoice-due.
type invoiceDue struct {
	Order    string  `json:"order"`
	Total    float64 `json:"total"`
	Currency string  `json:"currency"`
	Due      string  `json:"due"`
}

const (
	payWithin       = 14 * 24 * time.Hour
	defaultCurrency = "EUR"
)

// invoice answers an order with its invoice. An order that costs nothing needs none.
//
// An event may come twice, so the answer depends on the event alone: the due date counts from the
// time of the order, not from now.
func invoice(_ context.Context, e event.Event) ([]event.Event, error) {
	var o order
	if err := e.DataAs(&o); err != nil {
		return nil, functions.Permanent(fmt.Errorf("read order %s: %w", e.ID(), err))
	}
	switch {
	case e.Subject() == "":
		return nil, functions.Permanent(errors.New("an order needs a subject: the merchant to be paid"))
	case e.Time().IsZero():
		return nil, functions.Permanent(errors.New("an order needs a time: its invoice is due after it"))
	case o.Total < 0:
		return nil, functions.Permanent(fmt.Errorf("the order's total is %.2f: send a refund as a separate event", o.Total))
	case o.Total == 0:
		return nil, nil
	}
	if o.Currency == "" {
		o.Currency = defaultCurrency
	}
	due := event.New() // no id is set: the event gets an id that derives from the order's id
	due.SetType("invoice-due")
	due.SetSource("/examples/function")
	due.SetSubject(e.Subject())
	err := due.SetData("application/json", invoiceDue{Order: e.ID(), Total: o.Total, Currency: o.Currency,
		Due: e.Time().Add(payWithin).UTC().Format(time.DateOnly)})
	return []event.Event{due}, err
}
