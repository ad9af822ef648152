package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// germanParts are the parts of sentences that the customers write after the shop has opened in another country.
var germanParts = map[string][3][4]string{
	"track":  {{"wo ist", "wann kommt", "bitte sucht", "ich warte auf"}, {"mein paket", "die bestellung", "meine sachen", "das teil"}, {"", "jetzt", "endlich", "von montag"}},
	"refund": {{"gebt mir zurück", "ich will zurück", "bitte erstattet", "erstattung für"}, {"mein geld", "was ich zahlte", "den preis", "den betrag"}, {"", "heute", "für die schuhe", "sofort"}},
	"greet":  {{"hallo", "guten morgen", "servus", "guten abend"}, {"bot", "zusammen", "mein freund", "alle"}, {"", "wie geht es", "schön dich zu sehen", "wieder"}},
}

const (
	ticketsEvery = 20 * time.Millisecond
	ticketsBatch = 10  // tickets a request: some hundreds a second
	beforeChange = 900 // outcomes before the customers change their language
	afterReturn  = 600 // outcomes of the new champion that end the story
)

// desk is the story of a support desk: its tickets, and the truth about the answers.
type desk struct {
	german  chan struct{} // closed when the customers change their language
	done    chan struct{} // closed when the new champion has answered enough
	version string        // version of the last outcome
	right   int           // right answers since the last line
	answers int           // answers since the last line
	all     int
	old     [2]int // answers of version 1 after the change, and the right ones among them
	fresh   [2]int // answers of version 2, and the right ones among them
}

// outcomes shows how the truth about answers comes back: accuracy falls, drift asks for a training, and the candidate
// passes its trial on the stream.
func (d *demo) outcomes(ctx context.Context) error {
	d.say("\nA support desk routes tickets. People move wrong ones to the right team, so the truth about each answer comes back:")
	if err := d.putExamplesOf(ctx, "desks/shop", "shop", noneWrong); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	facts, err := d.tail(ctx, "facts", "--where", "subject = 'shop'")
	if err != nil {
		return err
	}
	truths, err := d.tail(ctx, "outcomes")
	if err != nil {
		return err
	}
	for {
		e, err := nextEvent(ctx, facts)
		if err != nil {
			return err
		}
		if e.Type == "tidemill.model.promoted" && e.Model == "desk/shop" {
			break
		}
	}
	k := &desk{german: make(chan struct{}), done: make(chan struct{})}
	go func() {
		if err := d.publishTickets(ctx, k); err != nil {
			stop(err)
		}
	}()
	if err := k.follow(ctx, truths, facts, d.say); err != nil {
		return err
	}
	return d.tellOutcomes(ctx, k)
}

// publishTickets publishes tickets, each with the team that it belongs to, until the story ends.
func (d *demo) publishTickets(ctx context.Context, k *desk) error {
	tick := time.NewTicker(ticketsEvery)
	defer tick.Stop()
	parts := sentenceParts
	for n := 0; ; {
		select {
		case <-tick.C:
		case <-k.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-k.german:
			parts = germanParts
		default:
		}
		var batch []string
		for range ticketsBatch {
			team := intents[n%3]
			batch = append(batch,
				fmt.Sprintf(`{"specversion": "1.0", "id": "ticket-%d", "source": "/demo/desk", "type": "ticket", "subject": "shop", "data": {"text": %s}}`, n, quoted(sentenceOf(parts[team], n/3*27))),
				fmt.Sprintf(`{"specversion": "1.0", "id": "moved-%d", "source": "/demo/desk", "type": "ticket-moved", "subject": "shop", "data": {"ticket": "ticket-%d", "team": %q}}`, n, n, team))
			n++
		}
		if err := d.publishAll(ctx, "["+strings.Join(batch, ",")+"]"); err != nil {
			return err
		}
	}
}

// follow reads outcomes and facts until the new champion has answered enough.
func (k *desk) follow(ctx context.Context, truths, facts <-chan cloudEvent, say func(string, ...any)) error {
	began, tick := time.Now(), time.NewTicker(time.Second)
	defer tick.Stop()
	for k.fresh[0] < afterReturn {
		select {
		case e, open := <-truths:
			if !open {
				return fmt.Errorf("tidemill tail outcomes has ended: %w", context.Cause(ctx))
			}
			if err := k.count(&e); err != nil {
				return err
			}
			if k.all == beforeChange {
				close(k.german)
				say("  %4.1f s  the customers begin to write in German", time.Since(began).Seconds())
			}
		case e, open := <-facts:
			if !open {
				return fmt.Errorf("tidemill tail facts has ended: %w", context.Cause(ctx))
			}
			if text := factText(&e); text != "" {
				say("  %4.1f s  %s", time.Since(began).Seconds(), text)
			}
		case <-tick.C:
			if k.answers > 0 {
				say("  %4.1f s  %4d answers with their truth, %3.0f %% right; desk/shop@%s", time.Since(began).Seconds(), k.answers, percent(k.right, k.answers), k.version)
				k.answers, k.right = 0, 0
			}
		case <-ctx.Done():
			return fmt.Errorf("version %s has answered, and %d outcomes came: %w", k.version, k.all, context.Cause(ctx))
		}
	}
	close(k.done)
	return nil
}

// count counts one outcome.
func (k *desk) count(e *cloudEvent) error {
	var o struct{ Scorer, Label, Truth string }
	if err := json.Unmarshal(e.Data, &o); err != nil {
		return fmt.Errorf("read an outcome: %w", err)
	}
	if e.Type != "tidemill.outcome" || o.Scorer != "desk" {
		return nil
	}
	k.version = e.ModelVersion
	k.all++
	k.answers++
	right := 0
	if o.Label == o.Truth {
		right = 1
	}
	k.right += right
	switch {
	case e.ModelVersion != "1":
		k.fresh[0], k.fresh[1] = k.fresh[0]+1, k.fresh[1]+right
	case k.all > beforeChange:
		k.old[0], k.old[1] = k.old[0]+1, k.old[1]+right
	}
	return nil
}

// factText says what a fact means for the desk; empty if it means nothing.
func factText(e *cloudEvent) string {
	version := "desk/shop@" + e.ModelVersion
	switch e.Type {
	case "tidemill.model.drifted":
		var d struct{ Figure string }
		_ = json.Unmarshal(e.Data, &d) // a fact of Tidemill
		return "drift: the figure " + d.Figure + " of " + version + " is not what it was; the event asks for a training"
	case "tidemill.run.started":
		return "a run trains on the tickets with their truth"
	case "tidemill.trial.begun":
		return version + " has passed its gate, and answers the stream next to the champion"
	case "tidemill.model.refused":
		return version + " is refused"
	case "tidemill.model.promoted":
		return version + " has passed its trial, and is the champion"
	}
	return ""
}

// tellOutcomes shows the verdict of the trial, and checks the story.
func (d *demo) tellOutcomes(ctx context.Context, k *desk) error {
	before, after := percent(k.old[1], k.old[0]), percent(k.fresh[1], k.fresh[0])
	d.say("  after the change %.0f %% of the old champion's answers were right, and %.0f %% of the new champion's", before, after)
	if before > 70 || after < 90 {
		return errors.New("the demo expects that the accuracy falls below 70 %, and that the new champion brings it above 90 %")
	}
	d.say("\nThe verdict of the trial, computed again from the streams:")
	version := "2"
	if k.version != "1" {
		version = k.version
	}
	_, err := d.show(ctx, "judge", "--again", "desk/shop@"+version)
	return err
}

func percent(part, all int) float64 { return 100 * float64(part) / float64(max(1, all)) }
