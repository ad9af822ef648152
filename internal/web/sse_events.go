package web

import (
	"bytes"
	"encoding/json"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
)

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
func (t *eventText) begin(at tail.Place) {
	t.b.WriteString("retry: 1000\n")
	t.id(at)
	t.b.WriteByte('\n')
}

// alive keeps connections from being taken for dead. It tells the place if that
// has moved over events that are not for this reader.
func (t *eventText) alive(at tail.Place, moved bool) {
	t.b.WriteString(": keepalive\n")
	if moved {
		t.id(at)
	}
	t.b.WriteByte('\n')
}

// end tells a reader that he has all he asked for. A browser would come back
// otherwise.
func (t *eventText) end(at tail.Place) {
	t.b.WriteString("event: end\n")
	t.id(at)
	t.b.WriteString("data: {}\n\n")
}

// event is one event, with the place behind it.
func (t *eventText) event(e *tail.Event, at tail.Place) {
	t.id(at)
	t.data(tailed(e))
	t.b.WriteByte('\n')
}

func (t *eventText) id(at tail.Place) {
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

func tailed(e *tail.Event) api.Tailed {
	line := api.Tailed{Partition: e.Partition, Offset: e.Offset, Received: e.Received.UTC()}
	if e.Err != nil {
		line.Error, line.Key, line.Data = e.Err.Error(), e.Key, e.Data
		return line
	}
	line.Event = broker.MarshalStructured(&e.View)
	return line
}
