package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	talkFor   = 5 * time.Second // shortest time; longer until the new champion has answered
	talkEvery = 10 * time.Millisecond
	talkBatch = 40                      // messages a request: some thousands a second
	swapAfter = 2500 * time.Millisecond // time after which the champion changes
)

// conversation is the messages to two bots, and the state of their answers.
type conversation struct {
	said    int           // number of messages; read it after stopped is closed
	stopped chan struct{} // closed when all messages are published
	swapped chan struct{} // closed by the first answer of version 2

	answers int
	seen    map[int]bool      // messages that have an answer
	last    map[string]int    // newest answered message, by bot
	version map[string]string // version of the last answer, by bot
	took    []time.Duration   // times of the answers since the last line
	first   time.Time         // time of version 2's first answer
	firstID string            // id of the message of that answer
	faults  []string
}

// scores sends messages to the bots while a champion changes. Each message must have exactly one
// answer, in order, and after an answer from version 2 no answer may come from version 1.
func (d *demo) scores(ctx context.Context) error {
	d.say("\nPeople talk to the bots. The champion of each bot answers, while version 2 of intent/bot-1 becomes champion again:")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &conversation{stopped: make(chan struct{}), swapped: make(chan struct{}), seen: map[int]bool{}, last: map[string]int{}, version: map[string]string{}}
	answers, err := d.tail(ctx, "scored")
	if err != nil {
		return err
	}
	go func() {
		if err := d.publishMessages(ctx, t); err != nil {
			stop(err)
		}
	}()
	promoted := make(chan time.Time, 1)
	go func() {
		select {
		case <-time.After(swapAfter):
		case <-ctx.Done():
			return
		}
		if _, err := d.call(ctx, "promote", "intent/bot-1@2", "--reason", "the customer was wrong"); err != nil {
			stop(err)
		}
		promoted <- time.Now()
	}()
	if err := t.listen(ctx, answers, d.say); err != nil {
		return err
	}
	if err := t.verdict(); err != nil {
		return err
	}
	late := max(0, t.first.Sub(<-promoted)) // the scorer reads the log, and may be faster than the command
	d.say("  %d of %d messages answered, each once and in order; version 2 answered %s after its promotion", t.answers, t.said, milliseconds(late))
	d.say("  lost: %d, answered twice: 0", t.said-len(t.seen))
	d.say("\nWhy was the first message for version 2 answered like this?")
	_, err = d.show(ctx, "why", "event/"+t.firstID)
	return err
}

// publishMessages publishes batches of messages for talkFor, and until the new champion has
// answered.
func (d *demo) publishMessages(ctx context.Context, t *conversation) error {
	defer close(t.stopped)
	tick, enough := time.NewTicker(talkEvery), time.After(talkFor)
	defer tick.Stop()
	var swapped <-chan struct{}
	for {
		select {
		case <-tick.C:
		case <-enough:
			swapped = t.swapped
			continue
		case <-swapped:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		var batch []string
		for range talkBatch {
			text := quoted(sentence(intents[t.said%3], t.said))
			batch = append(batch, fmt.Sprintf(`{"specversion": "1.0", "id": "%d", "source": "/demo/chat", "type": "said", "subject": "bot-%d", "correlationid": "%d", "data": {"text": %s}}`,
				t.said, t.said/3%2+1, time.Now().UnixNano(), text))
			t.said++
		}
		if err := d.publishAll(ctx, "["+strings.Join(batch, ",")+"]"); err != nil {
			return err
		}
	}
}

// publishAll posts a batch of events.
func (d *demo) publishAll(ctx context.Context, batch string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/events", strings.NewReader(batch))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/cloudevents-batch+json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct{ Events []struct{ Status int } }
	text, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	failed := slices.ContainsFunc(answer.Events, func(e struct{ Status int }) bool { return e.Status != http.StatusAccepted })
	if err != nil || failed || res.StatusCode != http.StatusAccepted {
		return errors.Join(fmt.Errorf("publish a batch: %s: %s", res.Status, text), err)
	}
	return nil
}

// listen reads answers until each message has one.
func (t *conversation) listen(ctx context.Context, answers <-chan cloudEvent, say func(string, ...any)) error {
	began, tick := time.Now(), time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-t.stopped:
			if t.answers >= t.said {
				t.printSecond(began, say)
				return nil
			}
		default:
		}
		select {
		case e, open := <-answers:
			if !open {
				return fmt.Errorf("tidemill tail has ended after %d answers: %w", t.answers, context.Cause(ctx))
			}
			t.checkAnswer(&e)
		case <-tick.C:
			t.printSecond(began, say)
		case <-ctx.Done():
			return fmt.Errorf("%d messages have been answered: %w", t.answers, context.Cause(ctx))
		}
	}
}

// checkAnswer checks one answer.
func (t *conversation) checkAnswer(e *cloudEvent) {
	n, err := strconv.Atoi(e.CausationID)
	before, spoke := t.last[e.Subject]
	switch {
	case err != nil:
		t.faults = append(t.faults, fmt.Sprintf("an answer to %q, which was never said", e.CausationID))
	case t.seen[n]:
		t.faults = append(t.faults, fmt.Sprintf("message %d was answered twice", n))
	case spoke && n < before:
		t.faults = append(t.faults, fmt.Sprintf("%s answered message %d after message %d", e.Subject, n, before))
	case t.version[e.Subject] == "2" && e.ModelVersion != "2":
		t.faults = append(t.faults, fmt.Sprintf("version %s answered message %d after version 2 had taken over", e.ModelVersion, n))
	}
	if e.ModelVersion == "2" && t.first.IsZero() {
		t.first, t.firstID = time.Now(), e.ID
		close(t.swapped)
	}
	sent, _ := strconv.ParseInt(e.CorrelationID, 10, 64)
	t.took = append(t.took, time.Since(time.Unix(0, sent)))
	t.answers++
	t.seen[n], t.last[e.Subject], t.version[e.Subject] = true, n, e.ModelVersion
}

// printSecond prints the numbers of the last second.
func (t *conversation) printSecond(began time.Time, say func(string, ...any)) {
	if len(t.took) == 0 {
		return
	}
	slices.Sort(t.took)
	over := ""
	if !t.first.IsZero() && time.Since(t.first) < time.Second {
		over = "   <- version 2 has taken over"
	}
	say("  %4.1f s  %6d answered, p50 %s, p99 %s; intent/bot-1@%s, intent/bot-2@%s%s", time.Since(began).Seconds(), len(t.took),
		milliseconds(t.took[len(t.took)/2]), milliseconds(t.took[len(t.took)*99/100]), t.version["bot-1"], t.version["bot-2"], over)
	t.took = t.took[:0]
}

func (t *conversation) verdict() error {
	switch {
	case len(t.faults) > 0:
		return fmt.Errorf("of %d answers %d are wrong: %s", t.answers, len(t.faults), t.faults[0])
	case t.answers != t.said || len(t.seen) != t.said:
		return fmt.Errorf("%d messages were sent, and %d answered", t.said, len(t.seen))
	case t.first.IsZero():
		return errors.New("version 2 has answered nothing")
	}
	return nil
}
