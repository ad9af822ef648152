package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// cloudEvent is an event as `tidemill tail -o json` prints it.
type cloudEvent struct {
	ID, Type, Subject, CausationID, CorrelationID, ModelVersion, Model string
	Data                                                               json.RawMessage
}

// tail starts `tidemill tail` on a stream, directly on Kafka, and returns a channel of its events.
// The channel ends with the context.
func (d *demo) tail(ctx context.Context, stream string, more ...string) (<-chan cloudEvent, error) {
	c := d.command(ctx, append([]string{"tail", stream, "--kafka", d.kafka, "--from", "beginning", "-o", "json"}, more...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	events := make(chan cloudEvent, 1000)
	go func() {
		defer close(events)
		defer c.Wait()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e cloudEvent
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				continue // a record that is not an event
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}

// nextEvent returns the next event of a stream.
func nextEvent(ctx context.Context, events <-chan cloudEvent) (cloudEvent, error) {
	select {
	case e, open := <-events:
		if !open {
			return e, errors.New("tidemill tail has ended")
		}
		return e, nil
	case <-ctx.Done():
		return cloudEvent{}, context.Cause(ctx)
	}
}

// publish posts one event. It returns the position that the gateway answers with, or "repeated".
func (d *demo) publish(ctx context.Context, id, typ, subject, data string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/events", strings.NewReader(data))
	if err != nil {
		return "", err
	}
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": "/demo", "ce-type": typ, "ce-subject": subject, "Content-Type": "application/json"} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("publish %s: %s: %s", typ, res.Status, text)
	}
	if res.Header.Get("Tidemill-Repeated") == "true" {
		return "repeated", nil
	}
	return res.Header.Get("Tidemill-Position"), nil
}

// events publishes events of several types, and the first of them twice, and waits until each has
// arrived in Kafka.
func (d *demo) events(ctx context.Context) error {
	d.say("\nFive events, published by HTTP to the gateway and read from Kafka:")
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	read := map[string]<-chan cloudEvent{}
	for _, stream := range []string{"events", "messages"} {
		events, err := d.tail(ctx, stream)
		if err != nil {
			return err
		}
		read[stream] = events
	}
	all := []struct{ stream, typ, data string }{
		{"events", "bot-created", `{"name": "Ada"}`}, // the first event waits for tail to start, so its time does not count
		{"events", "new-data", `{"uri": "s3://bots/42/examples.csv", "bytes": 81920}`},
		{"events", "bot-renamed", `{"name": "Grace"}`},
		{"events", "bot-deleted", `{}`},
		{"messages", "message", `{"text": "where is my parcel?"}`},
	}
	var took []time.Duration
	for _, e := range all {
		sent := time.Now()
		at, err := d.publish(ctx, "demo-"+e.typ, e.typ, "bot-42", e.data)
		if err != nil {
			return err
		}
		got, err := nextEvent(ctx, read[e.stream])
		if err != nil || got.ID != "demo-"+e.typ {
			return errors.Join(fmt.Errorf("%s was published, and %q arrived", e.typ, got.Type), err)
		}
		took = append(took, time.Since(sent))
		d.say("  %-14s %-7s 202, %-12s %8s", e.typ, "bot-42", at, milliseconds(took[len(took)-1]))
	}
	slices.Sort(took)
	d.say("  %d of %d events arrived, after %s in the median", len(took), len(all), milliseconds(took[len(took)/2]))
	d.say("\nThe first of them again, as after a lost answer:")
	at, err := d.publish(ctx, "demo-bot-created", "bot-created", "bot-42", all[0].data)
	if err != nil {
		return err
	}
	if at == "repeated" {
		at = "it exists already: nothing was stored"
	} else { // not a fault: readers recognise the event by its id
		at = "stored again, because Redis did not answer in time"
	}
	d.say("  %-14s %-7s 202, %s", "bot-created", "bot-42", at)
	return nil
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// deadLetter is a dead letter as the gateway shows it.
type deadLetter struct {
	Letter struct {
		ID, Reason string
		Source     struct {
			Stream string
			Offset int64
		}
	}
	Record   *struct{ Value []byte }
	Attempts []struct {
		Status int
		Answer string
	}
	Receipt *struct{ Action, Outcome string }
}

// awaitDeadLetter waits for a dead letter that matches a query.
func (d *demo) awaitDeadLetter(ctx context.Context, query string) (found deadLetter, err error) {
	err = pollUntil(ctx, "no dead letter was written", func() (bool, error) {
		var page struct{ DeadLetters []struct{ ID string } }
		if err := d.get(ctx, "dead-letters?"+query, &page); err != nil || len(page.DeadLetters) == 0 {
			return false, err
		}
		return true, d.get(ctx, "dead-letters/"+page.DeadLetters[0].ID, &found)
	})
	return found, err
}

// writePoison writes a record that is not an event, as any Kafka client can, and finds it among the
// dead letters.
func (d *demo) writePoison(ctx context.Context) error {
	const text = "hello, is this the printer?"
	d.say("\nA record that is not an event, written by another Kafka client:")
	login, err := d.login(ctx)
	if err != nil {
		return err
	}
	client := kafka.Client{Addr: kafka.TCP(d.kafka), Transport: &kafka.Transport{SASL: login}}
	res, err := client.Produce(ctx, &kafka.ProduceRequest{Topic: "demo.events", RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(text))})})
	if err = errors.Join(err, errorOf(res)); err != nil {
		return fmt.Errorf("write a record that is not an event: %w", err)
	}
	d.say("  %q to events/0/%d", text, res.BaseOffset)
	letter, err := d.awaitDeadLetter(ctx, "stream=events")
	if err != nil {
		return err
	}
	if letter.Record == nil || string(letter.Record.Value) != text || letter.Letter.Source.Offset != res.BaseOffset {
		return fmt.Errorf("dead letter %s is about something else: %s", letter.Letter.ID, letter.Letter.Reason)
	}
	d.say("  became dead letter %.8s in dead-letters\n  because: %s", letter.Letter.ID, letter.Letter.Reason)
	return nil
}

// login returns the login of other Kafka clients, from the command that prints it.
func (d *demo) login(ctx context.Context) (sasl.Mechanism, error) {
	text, err := d.call(ctx, "kafka-config", "-o", "json")
	if err != nil {
		return nil, err
	}
	var printed struct{ User, Password string }
	if err := json.Unmarshal([]byte(text), &printed); err != nil {
		return nil, fmt.Errorf("read the output of tidemill kafka-config: %w", err)
	}
	return scram.Mechanism(scram.SHA256, printed.User, printed.Password)
}

func errorOf(res *kafka.ProduceResponse) error {
	if res == nil {
		return nil
	}
	return res.Error
}

// invoiceFunction is a function that a trigger calls: it answers an order with its invoice.
type invoiceFunction struct {
	mu  sync.Mutex
	tax map[string]float64 // rate in percent, by shop
}

// serve starts the function on a free port.
func (s *invoiceFunction) serve() (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: s, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	go server.Serve(l)
	return "http://" + l.Addr().String(), func() { server.Close() }, nil
}

// ServeHTTP gets an event in binary mode and replies with an event.
func (s *invoiceFunction) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var order struct{ Net float64 }
	err := json.NewDecoder(r.Body).Decode(&order)
	s.mu.Lock()
	tax, known := s.tax[r.Header.Get("ce-subject")]
	s.mu.Unlock()
	if err != nil || !known { // 422: another attempt would not help
		http.Error(w, "no tax is known for "+r.Header.Get("ce-subject"), http.StatusUnprocessableEntity)
		return
	}
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": "invoice-" + r.Header.Get("ce-id"), "ce-source": "/demo/invoice",
		"ce-type": "invoice-due", "ce-subject": r.Header.Get("ce-subject"), "Content-Type": "application/json"} {
		w.Header().Set(name, value)
	}
	fmt.Fprintf(w, `{"gross": %v}`, order.Net*(100+tax)/100)
}

// triggers makes a trigger call the function, which replies to one order and refuses another. The
// refused order is replayed after the function is repaired.
func (d *demo) triggers(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	replies, err := d.tail(ctx, "orders", "--where", "type = 'invoice-due'")
	if err != nil {
		return err
	}
	d.say("\nTrigger billing sends order-placed to the function invoice, which replies:")
	if err := d.order(ctx, "shop-1"); err != nil {
		return err
	}
	if err := d.reply(ctx, replies, "shop-1"); err != nil {
		return err
	}
	d.say("\nThe function knows no tax for shop-2, and refuses the order:")
	if err := d.order(ctx, "shop-2"); err != nil {
		return err
	}
	letter, err := d.awaitDeadLetter(ctx, "trigger=billing")
	if err != nil {
		return err
	}
	d.say("  dead letter %.8s: %s", letter.Letter.ID, letter.Letter.Reason)
	for i, a := range letter.Attempts {
		d.say("    attempt %d: %d, %s", i+1, a.Status, strings.TrimSpace(a.Answer))
	}
	d.say("\nThe function learns the tax, and the dead letter is replayed:")
	d.shops.mu.Lock()
	d.shops.tax["shop-2"] = 19
	d.shops.mu.Unlock()
	if _, err := d.show(ctx, "dead-letters", "replay", letter.Letter.ID); err != nil {
		return err
	}
	if err := d.reply(ctx, replies, "shop-2"); err != nil {
		return err
	}
	return pollUntil(ctx, "the replay has no receipt", func() (bool, error) {
		var now deadLetter
		if err := d.get(ctx, "dead-letters/"+url.PathEscape(letter.Letter.ID), &now); err != nil || now.Receipt == nil {
			return false, err
		}
		d.say("  receipt: %s, %s", now.Receipt.Action, now.Receipt.Outcome)
		return true, nil
	})
}

func (d *demo) order(ctx context.Context, shop string) error {
	at, err := d.publish(ctx, "order-of-"+shop, "order-placed", shop, `{"net": 100}`)
	d.say("  %-14s %-7s 202, %s", "order-placed", shop, at)
	return err
}

func (d *demo) reply(ctx context.Context, replies <-chan cloudEvent, shop string) error {
	e, err := nextEvent(ctx, replies)
	if err == nil && e.Subject != shop {
		err = fmt.Errorf("a reply for %q arrived", e.Subject)
	}
	if err != nil {
		return fmt.Errorf("wait for the invoice of %s: %w", shop, err)
	}
	d.say("  %-14s %-7s is the reply, %s\n    caused by %s", e.Type, e.Subject, e.Data, e.CausationID)
	return nil
}
