package deliver

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/cehttp"
)

const (
	structured = "application/cloudevents+json"
	batched    = "application/cloudevents-batch+json"
	good       = `{"specversion":"1.0","id":"r-1","source":"/f","type":"answer","subject":"s","data":{"a":1}}`
)

func TestAnswers(t *testing.T) {
	t.Parallel()
	binary := map[string]string{"ce-specversion": "1.0", "ce-id": "r-1", "ce-source": "/f", "ce-type": "answer"}
	without := func(name string) map[string]string {
		h := map[string]string{}
		for k, v := range binary {
			if k != name {
				h[k] = v
			}
		}
		return h
	}
	of := func(contentType string) map[string]string { return map[string]string{"content-type": contentType} }
	for _, c := range []struct {
		name    string
		status  int
		head    map[string]string
		body    string
		want    verdict
		replies int
		says    string
	}{
		{"empty", 200, nil, "", delivered, 0, ""},
		{"binary", 200, binary, "x", delivered, 1, ""},
		{"binary, without data", 200, binary, "", delivered, 1, ""},
		{"structured", 200, of(structured + "; charset=utf-8"), good, delivered, 1, ""},
		{"a batch", 200, of(batched), "[" + good + "," + good + "," + good + "]", delivered, 3, ""},
		{"an empty batch", 200, of(batched), "[]", delivered, 0, ""},
		{"202 never is a reply", 202, of(structured), good, delivered, 0, ""},
		{"nor is another 2xx", 201, binary, "x", delivered, 0, ""},
		{"204", 204, nil, "", delivered, 0, ""},
		{"a body that is no event", 200, of("text/plain"), "ok", refused, 0, "replies: ignore"},
		{"a body that says nothing of itself", 200, nil, "{}", refused, 0, "replies: ignore"},
		{"one more attribute", 200, map[string]string{"ce-x": "1"}, "", refused, 0, "attribute specversion"},
		{"no specversion", 200, without("ce-specversion"), "x", refused, 0, "attribute specversion"},
		{"no type", 200, without("ce-type"), "x", refused, 0, "attribute type"},
		{"a bad source", 200, of(structured), strings.Replace(good, "/f", "a b", 1), refused, 0, "attribute source"},
		{"bad JSON", 200, of(structured), "{", refused, 0, "JSON"},
		{"no JSON at all", 200, of(structured), "", refused, 0, "JSON"},
		{"a batch of one good and one bad", 200, of(batched), "[" + good + `,{"specversion":"1.0"}]`, refused, 0, "reply 1"},
		{"another format", 200, of("application/cloudevents+avro"), "x", refused, 0, "content-type"},
		{"packed", 200, map[string]string{"content-type": structured, "content-encoding": "gzip"}, "x", refused, 0, "content-encoding"},
		{"too long", 200, of(structured), strings.Repeat(" ", maxReply) + good, refused, 0, "longer than 1024 KiB"},
		{"too many", 200, of(batched), "[" + strings.Repeat("{},", maxReplies) + "{}]", refused, 0, "1000"},
		{"the type is ours", 200, of(structured), strings.Replace(good, "answer", "tidemill.scored", 1), refused, 0, "reserved"},
		{"the source is ours", 200, of(structured), strings.Replace(good, "/f", "/tidemill/x/y", 1), refused, 0, "reserved"},
		{"400", 400, of("text/plain"), "no such thing", refused, 0, "answered 400 Bad Request"},
		{"500", 500, nil, "oh", again, 0, "answered 500"},
	} {
		h := func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			for k, v := range c.head {
				w.Header().Set(k, v)
			}
			w.WriteHeader(c.status)
			_, _ = fmt.Fprint(w, c.body)
		}
		trigger := triggerTo(answering(t, h))
		o := newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1)
		if o.kind != c.want || len(o.replies) != c.replies || !strings.Contains(o.attempt.Error, c.says) || o.attempt.Status != c.status {
			t.Errorf("%s: %s with %d replies, %q, want %s, %d, %q", c.name, o.kind, len(o.replies), o.attempt.Error, c.want, c.replies, c.says)
		}
		if o.kind != delivered && !strings.HasPrefix(c.body, o.attempt.Answer) || len(o.attempt.Answer) > maxAnswer || o.kind != delivered && c.body != "" && o.attempt.Answer == "" {
			t.Errorf("%s: the answer is kept as %q", c.name, clip(o.attempt.Answer))
		}
		trigger.Delivery.Replies = false
		o = newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1)
		if want := judge(c.status); o.kind != want || o.replies != nil {
			t.Errorf("%s, with replies ignored: %s with %d replies, want %s", c.name, o.kind, len(o.replies), want)
		}
	}
}

// replying is a subscriber that answers with these.
func replying(t *testing.T, change func(*config.Trigger), replies ...broker.View) *subscriber {
	trigger := triggerTo(answering(t, func(w http.ResponseWriter, _ *http.Request) {
		body := []byte(nil)
		if len(replies) == 1 {
			body = cehttp.WriteBinary(w.Header(), &replies[0])
		} else {
			body = cehttp.WriteBatch(w.Header(), replies)
		}
		_, _ = w.Write(body)
	}))
	if change != nil {
		change(&trigger)
	}
	return newPoster(t, trigger, subscriberOptions{})
}

func TestRepliesAreReadyToBePublished(t *testing.T) {
	t.Parallel()
	own := broker.View{ID: "mine", Source: "/f", Type: "answer", Subject: "bot-1", Time: "2026-03-01T13:00:00Z", Data: []byte("1"), DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: "causationid", Value: "forged"}, {Name: "correlationid", Value: "forged"}, {Name: "hops", Value: "0"},
			{Name: "partitionkey", Value: "p"}, {Name: "traceparent", Value: "00-11111111111111111111111111111111-2222222222222222-01"}}}
	bare := broker.View{ID: "mine", Source: "/f", Type: "answer"}
	s := replying(t, nil, own, bare)
	first, second := s.post(t.Context(), posted(), 1), s.post(t.Context(), posted(), 2)
	expect(t, first, delivered)
	if len(first.replies) != 2 {
		t.Fatalf("%d replies", len(first.replies))
	}
	cause := tidemill.Cause{Source: "/shop", ID: "order-1"}
	for i, r := range first.replies {
		if want := cause.Derive("reply", "tell-shop", strconv.Itoa(i)); r.ID != want || second.replies[i].ID != want {
			t.Errorf("reply %d has the ids %s and %s, want %s both times", i, r.ID, second.replies[i].ID, want)
		}
		for name, want := range map[string]string{"causationid": "order-1", "causationsource": "/shop", "correlationid": "chain-9", "trigger": "tell-shop", "hops": "3", "source": "/f", "type": "answer"} {
			if got, _ := r.Attribute(name); got != want {
				t.Errorf("reply %d: %s is %q, want %q", i, name, got, want)
			}
		}
		if r.Key != nil || r.Validate() != nil {
			t.Errorf("reply %d: key %q, %v", i, r.Key, r.Validate())
		}
	}
	for i, want := range []map[string]string{
		{"subject": "bot-1", "partitionkey": "p", "time": "2026-03-01T13:00:00Z", "traceparent": "00-11111111111111111111111111111111-2222222222222222-01", "tracestate": ""},
		{"subject": "", "partitionkey": "", "traceparent": traceParent, "tracestate": "vendor=1", "time": first.attempt.At.UTC().Format(time.RFC3339Nano)},
	} {
		for name, value := range want {
			if got, _ := first.replies[i].Attribute(name); got != value {
				t.Errorf("reply %d: %s is %q, want %q", i, name, got, value)
			}
		}
	}
}

// A reply is a function's and no person's, and what becomes of it must not look
// like one's act. Ours may speak for who asked.
func TestARepliesAuthorIsNobody(t *testing.T) {
	t.Parallel()
	forged := broker.View{ID: "r", Source: "/f", Type: "answer", Extensions: []broker.Attribute{{Name: "authid", Value: "ada"}, {Name: "model", Value: "m"}}}
	for _, own := range []bool{false, true} {
		d, err := descend(posted(), "tell-shop", own, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		reply := forged.Clone()
		if err := d.stamp(0, &reply); err != nil {
			t.Fatal(err)
		}
		who, signed := reply.Attribute("authid")
		if model, _ := reply.Attribute("model"); signed != own || own && who != "ada" || model != "m" {
			t.Errorf("own %t: it is %q who did it, with model %q", own, who, model)
		}
	}
}

func TestAChainBeginsWithItsFirstEvent(t *testing.T) {
	t.Parallel()
	s := replying(t, nil, broker.View{ID: "r", Source: "/f", Type: "answer"})
	for _, hops := range []string{"", "-7", "many", "9999999999999999999999"} {
		e := broker.View{ID: "1", Source: "/s", Type: "t"}
		if hops != "" {
			e.Extensions = []broker.Attribute{{Name: "hops", Value: hops}}
		}
		o := s.post(t.Context(), &e, 1)
		expect(t, o, delivered)
		if correlation, _ := o.replies[0].Attribute("correlationid"); correlation != "1" {
			t.Errorf("the chain is called %q", correlation)
		}
		if got, _ := o.replies[0].Attribute("hops"); got != "1" {
			t.Errorf("behind hops %q it counts %q", hops, got)
		}
	}
}

func TestACircleOfTriggersEnds(t *testing.T) {
	t.Parallel()
	s := replying(t, nil, broker.View{ID: "r", Source: "/f", Type: "order-placed"})
	e := *posted()
	e.Extensions = nil
	for n := 1; n <= maxHops; n++ {
		o := s.post(t.Context(), &e, 1)
		expect(t, o, delivered)
		e = o.replies[0]
	}
	expect(t, s.post(t.Context(), &e, 1), refused, "64 replies", "circle")

	silent := newPoster(t, triggerTo(answering(t, func(http.ResponseWriter, *http.Request) {})), subscriberOptions{})
	expect(t, silent.post(t.Context(), &e, 1), delivered)
}

// Functions of ours speak as Tidemill does.
func TestOurFunctionsMayReplyWithOurTypes(t *testing.T) {
	t.Parallel()
	v := broker.View{ID: "r", Source: "/tidemill/prod/train", Type: "tidemill.run.requested"}
	d, err := descend(posted(), "train", true, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.stamp(0, &v); err != nil {
		t.Error(err)
	}
	d.own = false
	if err := d.stamp(0, &v); err == nil {
		t.Error("a stranger speaks as Tidemill")
	}
}

// With what a reply is given it may be more than an event can carry.
func TestARepliesAttributesAreBounded(t *testing.T) {
	t.Parallel()
	v := broker.View{ID: "r", Source: "/f", Type: "answer"}
	for n := range 247 {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: "x" + strconv.Itoa(n), Value: "1"})
	}
	if err := v.Validate(); err != nil {
		t.Fatal(err)
	}
	d, err := descend(posted(), "train", false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.stamp(0, &v); err == nil {
		t.Error("it passes")
	}
}

// Replies of one batch share no memory that stamping one could reach the next
// through.
func TestStampingLeavesTheNeighboursAlone(t *testing.T) {
	t.Parallel()
	var all []broker.View
	for n := range 9 {
		v := broker.View{ID: "r", Source: "/f", Type: "answer"}
		for x := range n {
			v.Extensions = append(v.Extensions, broker.Attribute{Name: "x" + strconv.Itoa(x), Value: strconv.Itoa(n)})
		}
		all = append(all, v)
	}
	o := replying(t, nil, all...).post(t.Context(), posted(), 1)
	expect(t, o, delivered)
	for n, r := range o.replies {
		var own []string
		for _, a := range r.Extensions {
			if strings.HasPrefix(a.Name, "x") {
				own = append(own, a.Value)
			}
		}
		if want := slices.Repeat([]string{strconv.Itoa(n)}, n); !slices.Equal(own, want) {
			t.Errorf("reply %d has %q, want %q", n, own, want)
		}
	}
}
