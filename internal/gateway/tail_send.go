package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/filter"
)

// follower sends what a reader reads to one caller.
type follower struct {
	reader *follow.Reader
	viewer *viewer
	where  *filter.Filter // nil is every event
	limit  int            // of events; 0 is none
	alive  time.Duration  // between two signs of life
	events prometheus.Counter
	text   *eventText
	out    *patientWriter

	at   follow.Place // behind what was read
	told follow.Place // what the caller goes on from, or a little before it
	sent int          // events
	last time.Time    // something was sent
}

// run sends until the end, if there is to be one, or until something ends it.
func (f *follower) run(ctx context.Context) error {
	f.at = f.reader.Place()
	f.told = slices.Clone(f.at)
	f.text.begin(f.at)
	if err := f.flush(ctx); err != nil {
		return err
	}
	for {
		batch, err := f.reader.Next(ctx)
		if err == io.EOF {
			return f.end(ctx)
		}
		if err == nil {
			err = f.viewer.again(ctx)
		}
		if err != nil {
			return err
		}
		done, err := f.send(ctx, batch)
		if err != nil {
			return err
		}
		if done {
			return f.end(ctx)
		}
		f.at = f.reader.Place()
		if time.Since(f.last) >= f.alive {
			f.text.alive(f.at, !slices.Equal(f.at, f.told))
			f.told = slices.Clone(f.at)
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// send sends what the caller may see and wants of a batch, and is done if that reaches
// the limit.
func (f *follower) send(ctx context.Context, batch []follow.Event) (done bool, err error) {
	before := f.sent
	defer func() { f.events.Add(float64(f.sent - before)) }()
	for i := range batch {
		e := &batch[i]
		f.at.Set(e.Partition, e.Next)
		if !f.viewer.may(e) || !f.wants(e) {
			continue
		}
		f.text.event(e, f.at)
		if f.sent++; f.sent == f.limit {
			return true, nil
		}
		if i == len(batch)-1 {
			f.told = slices.Clone(f.at)
		}
		if f.text.b.Len() >= tailPortion {
			if err := f.flush(ctx); err != nil {
				return false, err
			}
		}
	}
	return false, f.flush(ctx)
}

// wants judges an event. What is none matches no condition and is no reason for
// silence either.
func (f *follower) wants(e *follow.Event) bool {
	return f.where == nil || e.Err != nil || f.where.Match(&e.View)
}

// end tells the caller that this was all.
func (f *follower) end(ctx context.Context) error {
	f.text.end(f.at)
	return f.flush(ctx)
}

// flush sends what text there is.
func (f *follower) flush(ctx context.Context) error {
	b := f.text.taken()
	if len(b) == 0 {
		return nil
	}
	f.last = time.Now()
	return f.out.write(ctx, b)
}

// eventText makes the text of server-sent events, some at a time.
type eventText struct {
	stream string
	b      bytes.Buffer
	json   *json.Encoder
}

func newEventText(stream string) *eventText {
	t := &eventText{stream: stream}
	t.json = json.NewEncoder(&t.b)
	t.json.SetEscapeHTML(false)
	return t
}

// taken is the text made so far. It is valid until more is made.
func (t *eventText) taken() []byte {
	b := t.b.Bytes()
	t.b.Reset()
	return b
}

// begin tells a browser how soon to come back, and from where: one that is cut
// off before the first event must not miss what comes meanwhile.
func (t *eventText) begin(at follow.Place) {
	t.b.WriteString("retry: 1000\n")
	t.id(at)
	t.b.WriteByte('\n')
}

// alive keeps connections from being taken for dead. It tells the place if that
// has moved over events that are not for this reader.
func (t *eventText) alive(at follow.Place, moved bool) {
	t.b.WriteString(": keepalive\n")
	if moved {
		t.id(at)
	}
	t.b.WriteByte('\n')
}

// end tells a reader that he has all he asked for. A browser would come back
// otherwise.
func (t *eventText) end(at follow.Place) {
	t.b.WriteString("event: end\n")
	t.id(at)
	t.b.WriteString("data: {}\n\n")
}

// event is one event, with the place behind it.
func (t *eventText) event(e *follow.Event, at follow.Place) {
	t.id(at)
	t.data(tailed(e))
	t.b.WriteByte('\n')
}

func (t *eventText) id(at follow.Place) {
	t.b.WriteString("id: ")
	t.b.WriteString(at.Token(t.stream))
	t.b.WriteByte('\n')
}

// data writes one line: JSON has no line breaks but those that Encode adds. What
// has no JSON is told as a record that is none, or it would end every tail that
// comes to it.
func (t *eventText) data(line api.Tailed) {
	begin := t.b.Len()
	t.b.WriteString("data: ")
	if err := t.json.Encode(line); err != nil {
		t.b.Truncate(begin)
		t.b.WriteString("data: ")
		_ = t.json.Encode(api.Tailed{Partition: line.Partition, Offset: line.Offset, Received: line.Received, Error: err.Error()})
	}
}

func tailed(e *follow.Event) api.Tailed {
	line := api.Tailed{Partition: e.Partition, Offset: e.Offset, Received: e.Received.UTC()}
	if e.Err != nil {
		line.Error, line.Key, line.Data = e.Err.Error(), e.Key, e.Data
		return line
	}
	line.Event = broker.MarshalStructured(&e.View)
	return line
}

// viewer is who reads a tail. A tail may outlive what he was let in by: his
// token is taken away or runs out, or his keys change. So he is asked for it
// again before he is sent anything.
type viewer struct {
	guard         *access.Guard // nil at the open door
	authorization string
	caller        *access.Caller
}

func (g *Gateway) viewer(r *request) *viewer {
	return &viewer{g.opt.Access, r.Header.Get("Authorization"), r.caller}
}

var errRefused = errors.New("the reader may read no more")

// again finds out whether he may still read. Whoever was let in stays while his
// issuer cannot be asked.
func (v *viewer) again(ctx context.Context) error {
	if v.guard == nil {
		return nil
	}
	caller, err := v.guard.Caller(ctx, v.authorization)
	switch {
	case errors.Is(err, access.ErrIssuerAway):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errRefused, err)
	case !caller.Has(access.Read):
		return fmt.Errorf("%w: %q lacks the role %s now", errRefused, clip(caller.Name()), access.Read)
	}
	v.caller = caller
	return nil
}

// may tells which events of a stream he may see: those of his keys. An event's
// key is its subject, as a model's key is, or the record's where it has none.
// What holds nothing of anybody, such as word of offsets that are gone, is for
// everyone: who is not told believes he has seen all.
func (v *viewer) may(e *follow.Event) bool {
	if v.caller.AllKeys(access.Read) {
		return true
	}
	key := e.Subject
	if key == "" {
		key = string(e.Key)
	}
	return e.Err != nil && e.Key == nil && e.Data == nil && e.Foreign == nil || v.caller.MayTouch(access.Read, key)
}
