package cehttp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	oracle "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/cloudevents/sdk-go/v2/types"

	"tidemill.dev/broker"
)

// The oracle is sdk-go's client and server over HTTP, in all modes and both directions,
// requests and responses. We differ from it on purpose:
//
//   - It writes and reads headers without the binding's percent-encoding. So the
//     events that it sends in binary mode have no escapes here (TestPercentDecoding
//     has those), and the events that it reads are decoded before the comparison.
//   - It trims attributes, as net/http trims headers: no generated value begins
//     or ends with a space.
//   - It treats empty data as no data; binary mode does not distinguish them.
//   - In structured mode it reads JSON of a type other than application/json or
//     text/json only from data_base64, which we do not write for such data.
//   - Data without a datacontenttype gets one in structured mode, as the JSON
//     format requires; here every event has one.

const generated = 300 // number of events for each pairing

func TestWeReadWhatTheOracleSends(t *testing.T) {
	received := make(chan []broker.View, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		views, fault := readAll(r.Header, body)
		if err != nil || fault != nil {
			t.Errorf("%v %s: %v, %v", r.Header, body, err, fault)
		}
		received <- views
		w.WriteHeader(http.StatusAccepted)
	}))
	defer s.Close()
	for mode, send := range map[Mode]func(*testing.T, string, []event.Event){
		Binary: func(t *testing.T, url string, events []event.Event) {
			oracleSend(t, binding.WithForceBinary(t.Context()), url, events[0])
		},
		Structured: func(t *testing.T, url string, events []event.Event) {
			oracleSend(t, binding.WithForceStructured(t.Context()), url, events[0])
		},
		Batch: func(t *testing.T, url string, events []event.Event) { oracleSendBatch(t, url, events) },
	} {
		t.Run(mode.String(), func(t *testing.T) {
			for g := range generators(mode == Binary) {
				events := g.newEvents(t, mode)
				send(t, s.URL, events)
				compare(t, canonicalViews(t, <-received), canonicalTexts(t, events))
			}
		})
	}
}

func TestTheOracleReadsWhatWeSend(t *testing.T) {
	var got []event.Event
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if got, err = oracleRead(oracle.NewMessageFromHttpRequest(r), r.Body); err != nil {
			t.Errorf("sdk-go refuses %v: %v", r.Header, err)
		}
	}))
	defer s.Close()
	for _, mode := range []Mode{Binary, Structured, Batch} {
		t.Run(mode.String(), func(t *testing.T) {
			for g := range generators(false) {
				events := g.newEvents(t, mode)
				post(t, s.URL, mode, viewsOf(t, events))
				compare(t, decodeSDK(t, mode, got), canonicalTexts(t, events))
			}
		})
	}
}

// One side writes an answer into a ResponseWriter and the other side reads it.
func TestAnswersAgreeWithOracle(t *testing.T) {
	var e event.Event
	var views []broker.View
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ours":
			_, _ = w.Write(writeBatch(w.Header(), Binary, views))
		case "/ours/structured":
			_, _ = w.Write(writeBatch(w.Header(), Structured, views))
		default:
			ctx := binding.WithForceBinary(r.Context())
			if err := oracle.WriteResponseWriter(ctx, binding.ToMessage(&e), http.StatusOK, w); err != nil {
				t.Error(err)
			}
		}
	}))
	defer s.Close()
	for g := range generators(true) {
		events := g.newEvents(t, Binary)
		e, views = events[0].Clone(), viewsOf(t, events)
		want := canonicalTexts(t, events)
		for path, mode := range map[string]Mode{"/ours": Binary, "/ours/structured": Structured} {
			resp := must(http.Get(s.URL + path))(t)
			got, err := oracleRead(oracle.NewMessageFromHttpResponse(resp), resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, decodeSDK(t, mode, got), want)
		}
		resp := must(http.Get(s.URL + "/oracle"))(t)
		views, err := readAll(resp.Header, must(io.ReadAll(resp.Body))(t))
		if err != nil {
			t.Fatal(err)
		}
		compare(t, canonicalViews(t, views), want)
	}
}

func oracleSend(t *testing.T, ctx context.Context, url string, e event.Event) {
	t.Helper()
	p := must(oracle.New(oracle.WithTarget(url)))(t)
	c := must(client.New(p))(t) // not NewHTTP, which would set missing attributes
	if result := c.Send(ctx, e.Clone()); !protocol.IsACK(result) {
		t.Fatalf("sdk-go did not send %v: %v", e, result)
	}
}

func oracleSendBatch(t *testing.T, url string, events []event.Event) {
	t.Helper()
	resp := must(http.DefaultClient.Do(must(oracle.NewHTTPRequestFromEvents(t.Context(), url, events))(t)))(t)
	_ = resp.Body.Close()
}

// oracleRead reads the event or the batch of a message.
func oracleRead(m *oracle.Message, body io.Reader) ([]event.Event, error) {
	ctx := context.Background()
	if m.ReadEncoding() == binding.EncodingBatch {
		return binding.ToEvents(ctx, m, body)
	}
	e, err := binding.ToEvent(ctx, m)
	if err != nil {
		return nil, err
	}
	return []event.Event{*e}, e.Validate()
}

func viewsOf(t *testing.T, events []event.Event) (views []broker.View) {
	for _, e := range events {
		views = append(views, must(broker.FromEvent(e))(t))
	}
	return views
}

// writeBatch writes a batch, or the first event in the other modes.
func writeBatch(h http.Header, mode Mode, views []broker.View) []byte {
	switch mode {
	case Structured:
		return WriteStructured(h, &views[0])
	case Batch:
		return WriteBatch(h, views)
	}
	return WriteBinary(h, &views[0])
}

func post(t *testing.T, url string, mode Mode, views []broker.View) {
	t.Helper()
	h := http.Header{}
	req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(writeBatch(h, mode, views))))(t)
	req.Header = h
	resp := must(http.DefaultClient.Do(req))(t)
	_ = resp.Body.Close()
}

// decodeSDK returns sdk-go's events, with the percent-decoding that sdk-go omits in binary
// mode.
func decodeSDK(t *testing.T, mode Mode, events []event.Event) []string {
	if mode != Binary {
		return canonicalTexts(t, events)
	}
	all := attributes(t, events[0])
	for name, value := range all {
		if name != "datacontenttype" {
			all[name] = must(url.PathUnescape(value))(t)
		}
	}
	return []string{fmt.Sprintf("%q %q", all, events[0].Data())}
}

// generator makes events from a seed.
type generator struct {
	*rand.Rand
	letters []rune
}

// generators have fixed seeds, so that a failure is repeatable. Bare ones use no
// character that percent-decoding would take for an escape or a quote.
func generators(bare bool) func(yield func(generator) bool) {
	letters := []rune("abcXYZ019-._~:/?#[]@!$&'()*+,;=\\{}<>|^` é€😀\u00a0")
	if !bare {
		letters = append(letters, '%', '"')
	}
	return func(yield func(generator) bool) {
		for seed := range uint64(generated) {
			if !yield(generator{rand.New(rand.NewPCG(seed, 1)), letters}) {
				return
			}
		}
	}
}

// newEvents returns one event, or several for a batch.
func (g generator) newEvents(t *testing.T, mode Mode) (all []event.Event) {
	n := 1
	if mode == Batch {
		n = g.IntN(5) + 1
	}
	for range n {
		e := g.event()
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func (g generator) event() event.Event {
	sources := []string{"/s", "https://example.com/a?b=c#d", "/a%20b/%C3%A9", "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", "mailto:a@example.com", "../r"}
	e := event.New()
	e.SetID("i" + g.randomText())
	e.SetType("t" + g.randomText())
	e.SetSource(sources[g.IntN(len(sources))])
	if g.IntN(2) == 0 {
		e.SetSubject(g.randomText())
	}
	if g.IntN(2) == 0 {
		e.SetTime(time.Unix(g.Int64N(1e10), g.Int64N(1e9)).UTC())
	}
	if g.IntN(2) == 0 {
		e.SetDataSchema("https://example.com/schema/1?a=%5B%20%5D")
	}
	for range g.IntN(5) {
		e.SetExtension(fmt.Sprintf("x%d", g.IntN(1000)), g.value())
	}
	g.setData(&e)
	return e
}

// randomText returns text without a space at either end.
func (g generator) randomText() string {
	var b strings.Builder
	for range g.IntN(20) {
		b.WriteRune(g.letters[g.IntN(len(g.letters))])
	}
	return "<" + b.String() + ">"
}

func (g generator) value() any {
	switch g.IntN(7) {
	case 0:
		return g.IntN(2) == 0
	case 1:
		return int32(g.Uint32())
	case 2:
		return []byte(g.randomText())
	case 3:
		return types.URI{URL: url.URL{Scheme: "https", Host: "example.com", Path: "/u"}}
	case 4:
		return types.Timestamp{Time: time.Unix(g.Int64N(1e10), 0).UTC()}
	case 5:
		return ""
	}
	return g.randomText()
}

func (g generator) setData(e *event.Event) {
	switch g.IntN(5) {
	case 0:
		_ = e.SetData("application/json", map[string]any{"a": g.randomText(), "b": []int{1}})
	case 1:
		_ = e.SetData("text/plain; charset=\"utf-8\"", g.randomText())
	case 2:
		_ = e.SetData("application/octet-stream", []byte{0, 1, 255, '\n'})
	case 3:
		_ = e.SetData("application/xml", []byte("<a>"+g.randomText()+"</a>"))
	}
}

func compare(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("\ngot  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// canonicalTexts returns events as texts: two events are equal if their texts are. Types of
// extensions do not survive a header.
func canonicalTexts(t *testing.T, events []event.Event) (all []string) {
	for _, e := range events {
		all = append(all, fmt.Sprintf("%q %q", attributes(t, e), e.Data()))
	}
	return all
}

func canonicalViews(t *testing.T, views []broker.View) []string {
	var events []event.Event
	for i := range views {
		events = append(events, must(views[i].Event())(t))
	}
	return canonicalTexts(t, events)
}

func attributes(t *testing.T, e event.Event) map[string]string {
	all := map[string]string{"id": e.ID(), "source": e.Source(), "type": e.Type(), "subject": e.Subject(),
		"datacontenttype": e.DataContentType(), "dataschema": e.DataSchema()}
	if !e.Time().IsZero() {
		all["time"] = types.FormatTime(e.Time())
	}
	for name, value := range e.Extensions() {
		all["extension "+name] = must(types.Format(value))(t)
	}
	maps.DeleteFunc(all, func(name, v string) bool { return v == "" && !strings.HasPrefix(name, "extension ") })
	return all
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
