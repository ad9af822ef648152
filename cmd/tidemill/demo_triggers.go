package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
)

// playTriggers shows an event that wakes a function and is answered, one that
// the function cannot take, and how that one is delivered after all.
func playTriggers(ctx context.Context, door *remote.Gateway, books *taxes, out io.Writer) error {
	replies, err := door.Tail(ctx, remote.TailOptions{Stream: demoStream, From: "end", Where: "type = '" + demoReply + "'"})
	if err != nil {
		return err
	}
	defer replies.Close()
	fmt.Fprintf(out, "\nTrigger %s sends %s to the function %s, which replies:\n", demoTrigger, demoOrder, demoFunction)
	if err := playOrder(ctx, door, "shop-1", out); err != nil {
		return err
	}
	if err := showReply(ctx, replies, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe function knows no tax for shop-2, and says that trying again is in vain:")
	ordered := time.Now()
	if err := playOrder(ctx, door, "shop-2", out); err != nil {
		return err
	}
	letter, err := awaitLetter(ctx, door)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  dead letter %s: %s\n", short(letter.Letter.ID), strings.TrimPrefix(letter.Letter.Reason, "trigger "+demoTrigger+": "))
	for _, a := range letter.Attempts {
		fmt.Fprintf(out, "    attempt after %s: %d, %s\n", a.At.Sub(ordered).Round(time.Microsecond*100), a.Status, strings.TrimSpace(a.Answer))
	}
	books.learn("shop-2", 19)
	fmt.Fprintln(out, "\nThe function is mended, and the dead letter replayed to that trigger alone:")
	return replayLetter(ctx, door, letter.Letter.ID, replies, out)
}

// playOrder places an order of a shop.
func playOrder(ctx context.Context, door *remote.Gateway, shop string, out io.Writer) error {
	v := broker.View{ID: tidemill.ID("demo", demoOrder, shop), Source: "/demo", Type: demoOrder, Subject: shop,
		Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: jsonType, Data: []byte(`{"net": 100}`)}
	r, err := door.Publish(ctx, "", &v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "  %-14s %-7s 202, %s\n", v.Type, v.Subject, place(r.Stream, r.Partition, r.Offset))
	return err
}

// showReply shows what the function answered.
func showReply(ctx context.Context, replies *remote.Tail, out io.Writer) error {
	var all []tail.Event
	for len(all) == 0 {
		var err error
		if all, err = replies.Next(ctx); err != nil {
			return fmt.Errorf("the function's reply did not arrive: %w", err)
		}
	}
	v := &all[0].View
	cause, _ := v.Attribute(tidemill.AttrCausationID)
	_, err := fmt.Fprintf(out, "  %-14s %-7s is the reply, %s %s\n    caused by %s\n", v.Type, v.Subject, place(demoStream, all[0].Partition, all[0].Offset), v.Data, cause)
	return err
}

const demoLook = 5 * time.Millisecond

// awaitLetter waits until the trigger has a dead letter.
func awaitLetter(ctx context.Context, door *remote.Gateway) (letter api.WholeLetter, err error) {
	err = poll(ctx, func() (bool, error) {
		page, err := door.DeadLetters(ctx, api.LetterSelection{Trigger: demoTrigger}, 1, "")
		if err != nil || len(page.DeadLetters) == 0 {
			return false, err
		}
		letter, err = door.DeadLetter(ctx, page.DeadLetters[0].ID)
		return true, err
	})
	if err != nil {
		return letter, fmt.Errorf("the event that was refused did not become a dead letter: %w", err)
	}
	return letter, nil
}

func replayLetter(ctx context.Context, door *remote.Gateway, id string, replies *remote.Tail, out io.Writer) error {
	if _, err := door.ReplayLetters(ctx, api.LetterAsk{Selection: api.LetterSelection{IDs: []string{id}}}); err != nil {
		return err
	}
	if err := showReply(ctx, replies, out); err != nil {
		return err
	}
	var receipt *api.Receipt
	err := poll(ctx, func() (bool, error) {
		whole, err := door.DeadLetter(ctx, id)
		receipt = whole.Receipt
		return receipt != nil, err
	})
	if err != nil {
		return fmt.Errorf("the replay of dead letter %s left no receipt: %w", id, err)
	}
	_, err = fmt.Fprintf(out, "  receipt: dead letter %s was %s: %s\n", short(id), receipt.Action, receipt.Outcome)
	return err
}

func poll(ctx context.Context, done func() (bool, error)) error {
	t := time.NewTicker(demoLook)
	defer t.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// short is enough of an id to find it again.
func short(id string) string { return id[:min(8, len(id))] }
