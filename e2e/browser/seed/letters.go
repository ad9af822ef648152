package seed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/deadletters"
)

// failure is a reason for which an event became a dead letter.
type failure struct {
	trigger, scorer, reason, at, answer string
	status, tried                       int
	share                               int // of a hundred
}

func failures() []failure {
	return []failure{
		{trigger: "tell-crm", reason: "the subscriber answered 500", at: "https://crm.example/hooks", answer: "no room", status: 500, tried: 10, share: 45},
		{trigger: "tell-crm", reason: "the subscriber answered 422", at: "https://crm.example/hooks", answer: `{"error": "amount is missing"}`, status: 422, tried: 1, share: 15},
		{trigger: "invoices", reason: "dial tcp 10.1.2.3:443: connect: connection refused", at: "https://billing.example/invoices", tried: 10, share: 15},
		{trigger: "recipe.intent", reason: `key "a/b": it has "/", which a model's name cannot have`, at: "http://127.0.0.1:34567/train", status: 422, tried: 1, share: 5},
		{scorer: "intents", reason: "its key has no champion", share: 15},
		{scorer: "intents", reason: "input x: data.x is text, and the model wants numbers", share: 4},
		{trigger: "tell-crm", reason: `<b>the subscriber answered</b> 500`, at: "https://crm.example/hooks", answer: `<script>alert("answer")</script>`, status: 500, tried: 10, share: 1},
	}
}

// letters publishes events that nothing accepted, and their dead letters.
func (w *writer) letters(ctx context.Context, n int) error {
	r := rand.New(rand.NewPCG(2, 4))
	all := failures()
	for i := range n {
		f := all[0]
		for at, k := r.IntN(100), 0; k < len(all); k++ {
			if f = all[k]; at < f.share {
				break
			}
			at -= f.share
		}
		if err := w.letter(ctx, r, i, f); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) letter(ctx context.Context, r *rand.Rand, i int, f failure) error {
	at := w.now.Add(-time.Duration(r.ExpFloat64() * float64(30*time.Hour)))
	v, stream := w.failed(r, i, f, at)
	place, err := w.events.Publish(ctx, stream, &v)
	if err != nil {
		return fmt.Errorf("publish the event of a dead letter: %w", err)
	}
	d := deadletters.Details{Trigger: f.trigger, Scorer: f.scorer, Group: w.names.Group("triggers." + stream), Reason: f.reason, Tried: f.tried, Destination: f.at}
	for k := range min(f.tried, 5) {
		a := deadletters.Attempt{At: at.Add(time.Duration(k*k) * time.Second), Took: time.Duration(20+r.IntN(900)) * time.Millisecond, Status: f.status, Error: f.reason, Answer: f.answer}
		d.Attempts = append(d.Attempts, a)
	}
	letter, err := deadletters.New(w.names, place.Position(), &v, d, at.Add(time.Minute))
	if err != nil {
		return fmt.Errorf("make a dead letter: %w", err)
	}
	w.send(ctx, tidemill.StreamDeadLetters, &letter)
	return nil
}

// failed returns the event of a dead letter, and its stream.
func (w *writer) failed(r *rand.Rand, i int, f failure, at time.Time) (broker.View, string) {
	v := broker.View{ID: fmt.Sprint("event-", i), Source: "/shop", Type: "order-paid", Subject: fmt.Sprint("shop-", r.IntN(900)), Time: at.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", Data: fmt.Appendf(nil, `{"order": %d, "amount": %.2f, "currency": "EUR", "note": "leave it at the door"}`, i, r.Float64()*200)}
	stream := "orders"
	switch {
	case f.scorer != "":
		stream = "messages"
		v.Type, v.Source, v.Subject, v.Data = "message", "/chat", fmt.Sprintf("bot-%05d", r.IntN(20_000)), fmt.Appendf(nil, `{"n": [%d], "text": "where is my order?"}`, i)
	case f.trigger == "invoices":
		v.Type = "order-placed"
	case f.trigger == "recipe.intent":
		stream, v.Type, v.Source = tidemill.StreamEvents, tidemill.TypeNewData, "/crm"
		v.Extensions = attributes(tidemill.AttrDataset, "bots/a")
	}
	if i%200 < len(Hostile) {
		v.Subject = Hostile[i%200]
		v.Data = fmt.Appendf(nil, `{"text": "<script>alert(1)</script>\u202e", "long": %q}`, strings.Repeat("x", 64<<10))
	}
	return v, stream
}
