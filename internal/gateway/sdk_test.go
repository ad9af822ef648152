package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	sdk "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	oracle "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// An event that sdk-go's client sends must be stored unchanged. Package cehttp's
// oracle_test.go lists the intended differences between the two; the events here avoid them.
func TestWhatTheOracleSendsIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	to := w.url + "/streams/messages"
	c := must1(client.NewHTTP(oracle.WithTarget(to)))(t)
	random := rand.New(rand.NewPCG(1, 2))
	sent := map[string]sdk.Event{}
	send := func(ctx context.Context, mode string, n int) {
		e := randomEvent(random, fmt.Sprintf("%s-%d", mode, n))
		sent[e.ID()] = e
		if r := c.Send(ctx, e); !protocol.IsACK(r) {
			t.Fatalf("%s: %v", e, r)
		}
	}
	for n := range 50 {
		send(binding.WithForceBinary(t.Context()), "binary", n)
		send(binding.WithForceStructured(t.Context()), "structured", n)
	}
	for batch := range 5 {
		var all []sdk.Event
		for n := range 20 {
			e := randomEvent(random, fmt.Sprintf("batch-%d-%d", batch, n))
			all, sent[e.ID()] = append(all, e), e
		}
		req := must1(oracle.NewHTTPRequestFromEvents(t.Context(), to, all))(t)
		if r := read(t, must1(http.DefaultClient.Do(req))(t)); r.StatusCode != http.StatusAccepted {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	stored := w.storedEvents("messages")
	if len(stored) != len(sent) {
		t.Errorf("%d events were sent, %d are stored", len(sent), len(stored))
	}
	for i := range stored {
		got := must1(stored[i].Event())(t)
		if g, s := eventAsText(t, got), eventAsText(t, sent[got.ID()]); g != s {
			t.Errorf("stored\n%s\nsent\n%s", g, s)
		}
	}
}

func randomEvent(r *rand.Rand, id string) sdk.Event {
	e := sdk.New()
	e.SetID(id)
	e.SetType("message")
	e.SetSource(fmt.Sprintf("https://shop.example/%d?x=1", r.IntN(5)))
	if r.IntN(2) == 0 {
		e.SetSubject(fmt.Sprintf("bot-%d", r.IntN(5)))
	}
	e.SetTime(time.Unix(r.Int64N(4e9), r.Int64N(1e9)).UTC()) // otherwise the client sets it
	if r.IntN(2) == 0 {
		e.SetDataSchema("https://shop.example/schemas/1")
	}
	if r.IntN(2) == 0 {
		e.SetExtension("dataset", "bots/7")
		e.SetExtension("count", int32(r.IntN(100)))
		e.SetExtension("flag", r.IntN(2) == 0)
	}
	var err error
	switch r.IntN(3) {
	case 0:
		err = e.SetData("application/json", map[string]any{"text": "hällo <&>", "n": r.IntN(100)})
	case 1:
		err = e.SetData("text/plain", "some text")
	default:
		err = e.SetData("application/octet-stream", []byte{0, 1, 2, 0xff, byte(r.IntN(256))})
	}
	if err != nil {
		panic(err)
	}
	return e
}

// eventAsText returns an event as text, with its extensions in the form in which they travel.
func eventAsText(t *testing.T, e sdk.Event) string {
	t.Helper()
	e = e.Clone()
	for name, value := range e.Extensions() {
		e.SetExtension(name, fmt.Sprint(value))
	}
	data := e.Data()
	_ = e.SetData(e.DataContentType(), nil)
	return string(must1(json.Marshal(e))(t)) + " data " + fmt.Sprintf("%q", data)
}
