package deliver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
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
			t.Errorf("%s: the answer is kept as %q", c.name, shorten(o.attempt.Answer))
		}
		trigger.Delivery.Replies = config.Replies{}
		o = newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1)
		if want := judge(c.status); o.kind != want || o.replies != nil {
			t.Errorf("%s, with replies ignored: %s with %d replies, want %s", c.name, o.kind, len(o.replies), want)
		}
	}
}

// replying is a subscriber that answers with the given events.
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

// A reply is the act of a function and not of a person, so the author is removed.
// Tidemill's own functions may keep the author.
func TestARepliesAuthorIsNobody(t *testing.T) {
	t.Parallel()
	forged := broker.View{ID: "r", Source: "/f", Type: "answer", Extensions: []broker.Attribute{{Name: "authid", Value: "ada"}, {Name: "model", Value: "m"}}}
	for _, own := range []bool{false, true} {
		trigger := triggerTo("http://subscriber.example/")
		if own {
			trigger.To = config.Target{Function: "train"}
		}
		d, err := causationOf(posted(), &trigger, keys.NewTakers(config.Default()), time.Now())
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

// A webhook answered with bot-deleted for any key, and the key's models were gone. It could also
// answer with a tick, or start runs of other keys.
func TestRepliesAreLimited(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("c.yaml", []byte("version: 1\nrecipes: {fraud: {key: data.bot, when: {type: paid}, run: {dir: ., command: [a]}, makes: {model: 'fraud/{key}'}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	takers := keys.NewTakers(c)
	answer := func(typ, subject, data string, attributes ...string) broker.View {
		v := broker.View{ID: "r", Source: "/hook", Type: typ, Subject: subject, Data: []byte(data), DataContentType: "application/json"}
		for i := 0; i+1 < len(attributes); i += 2 {
			v.Extensions = append(v.Extensions, broker.Attribute{Name: attributes[i], Value: attributes[i+1]})
		}
		return v
	}
	accept, some := config.Replies{Accept: true}, config.Replies{Accept: true, Types: []string{"bot-deleted", "note"}}
	for name, c := range map[string]struct {
		replies config.Replies
		reply   broker.View
		says    string // empty: the reply is published
	}{
		"it ends a key":                    {accept, answer("bot-deleted", "merchant-7", "{}"), "ends its key"},
		"it ends a key, any key":           {config.Replies{Accept: true, AnyKey: true}, answer("bot-deleted", "bot-7", "{}"), "ends its key"},
		"it ends its key as the file says": {some, answer("bot-deleted", "merchant-7", "{}"), ""},
		"it ends another key":              {some, answer("bot-deleted", "bot-7", "{}"), `its subject is "bot-7"`},
		"another key's partition":          {some, answer("bot-deleted", "merchant-7", "{}", "partitionkey", "bot-7"), `its partitionkey is "bot-7"`},
		"a type that is not named":         {some, answer("paid", "merchant-7", `{}`), "accepts only bot-deleted, note"},
		"a tick":                           {accept, answer("schedule-tick", "", "{}", "schedule", "nightly"), "only Tidemill's clock"},
		"a recipe's key in the data":       {accept, answer("paid", "merchant-7", `{"bot":"bot-7"}`), `its data.bot (the key of the recipe fraud) is "bot-7"`},
		"its own key in the data":          {accept, answer("paid", "merchant-7", `{"bot":"merchant-7"}`), ""},
		"another key":                      {accept, answer("note", "bot-7", "{}"), "replies: {keys: any}"},
		"another key, as the file says":    {config.Replies{Accept: true, AnyKey: true}, answer("paid", "bot-7", `{"bot":"bot-8"}`), ""},
		"its subject":                      {accept, answer("note", "merchant-7", "{}"), ""},
		"its partitionkey as the subject":  {accept, answer("note", "shard 3", "{}"), ""},
	} {
		s := replying(t, func(t *config.Trigger) { t.Delivery.Replies = c.replies }, c.reply)
		s.takers = func() *keys.Takers { return takers }
		o := s.post(t.Context(), posted(), 1)
		if c.says == "" {
			if o.kind != delivered || len(o.replies) != 1 {
				t.Errorf("%s: %s with %d replies: %s", name, o.kind, len(o.replies), o.attempt.Error)
			}
			continue
		}
		if o.kind != refused || o.replies != nil || !strings.Contains(o.attempt.Error, c.says) {
			t.Errorf("%s: %s with %d replies: %s", name, o.kind, len(o.replies), o.attempt.Error)
		}
	}
}

// A reply without a key would reach the readers of every key, so it gets the key of its event.
func TestARepliesKeyIsItsEvents(t *testing.T) {
	t.Parallel()
	for _, any := range []bool{false, true} {
		s := replying(t, func(t *config.Trigger) { t.Delivery.Replies.AnyKey = any }, broker.View{ID: "r", Source: "/f", Type: "answer"})
		o := s.post(t.Context(), posted(), 1)
		expect(t, o, delivered)
		subject := o.replies[0].Subject
		partition, _ := o.replies[0].Attribute("partitionkey")
		if want := []string{"merchant-7", "shard 3"}; any != (subject == "") || !any && !slices.Equal([]string{subject, partition}, want) {
			t.Errorf("any key %t: the reply is about %q, %q", any, subject, partition)
		}
		keyless := s.post(t.Context(), &broker.View{ID: "1", Source: "/s", Type: "t"}, 1)
		expect(t, keyless, delivered)
		if got := keyless.replies[0].Subject; got != "" {
			t.Errorf("the reply to an event without a key is about %q", got)
		}
	}
}

// A trigger whose file says nothing about replies may be older than the default, so its ignored
// replies are reported.
func TestIgnoredRepliesAreSeen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replies config.Replies
		status  int
		head    map[string]string
		want    bool
	}{
		"an event":                {config.Replies{Unsaid: true}, 200, map[string]string{"ce-type": "answer"}, true},
		"a structured event":      {config.Replies{Unsaid: true}, 200, map[string]string{"content-type": structured}, true},
		"a batch":                 {config.Replies{Unsaid: true}, 200, map[string]string{"content-type": batched}, true},
		"a plain webhook":         {config.Replies{Unsaid: true}, 200, map[string]string{"content-type": "text/plain"}, false},
		"202 never is a reply":    {config.Replies{Unsaid: true}, 202, map[string]string{"ce-type": "answer"}, false},
		"ignored as the file say": {config.Replies{}, 200, map[string]string{"ce-type": "answer"}, false},
	} {
		trigger := triggerTo(answering(t, func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range c.head {
				w.Header().Set(k, v)
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, "ok")
		}))
		trigger.Delivery.Replies = c.replies
		o := newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1)
		expect(t, o, delivered)
		if o.ignored != c.want || o.replies != nil {
			t.Errorf("%s: %+v", name, o)
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
			t.Errorf("after hops %q it counts %q", hops, got)
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

// Tidemill's own functions may reply with Tidemill's types.
func TestOurFunctionsMayReplyWithOurTypes(t *testing.T) {
	t.Parallel()
	v := broker.View{ID: "r", Source: "/tidemill/prod/train", Type: "tidemill.run.requested"}
	d, err := causationOf(posted(), &config.Trigger{Name: "train", To: config.Target{Function: "train"}}, keys.NewTakers(config.Default()), time.Now())
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

// With the attributes that stamp adds, a reply may exceed an event's limit.
func TestARepliesAttributesAreBounded(t *testing.T) {
	t.Parallel()
	v := broker.View{ID: "r", Source: "/f", Type: "answer"}
	for n := range 247 {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: "x" + strconv.Itoa(n), Value: "1"})
	}
	if err := v.Validate(); err != nil {
		t.Fatal(err)
	}
	d, err := causationOf(posted(), &config.Trigger{Name: "train"}, keys.NewTakers(config.Default()), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.stamp(0, &v); err == nil {
		t.Error("it passes")
	}
}

// The replies of one batch share no memory through which stamping one could change the
// next.
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

// newRecorded returns a handler's answer without a network.
func newRecorded(r *http.Request, h http.HandlerFunc) *http.Response {
	w := httptest.NewRecorder()
	h(w, r)
	return w.Result()
}

func TestReadUpTo(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 511, 512, 513, 1024, 1025, 8192, 100_000} {
		for _, length := range []int64{-1, 0, int64(size), 1 << 60} {
			want := bytes.Repeat([]byte{7}, size)
			for name, r := range map[string]io.Reader{"at once": bytes.NewReader(want), "byte by byte": iotest.OneByteReader(bytes.NewReader(want)), "with its end": iotest.DataErrReader(bytes.NewReader(want))} {
				const most = 1025
				got, err := readUpTo(r, most, length)
				if err != nil || !bytes.Equal(got, want[:min(size, most)]) {
					t.Errorf("%s, %d bytes, said to be %d: %d, %v", name, size, length, len(got), err)
				}
			}
		}
	}
	got, err := readUpTo(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("broken"))), 100, -1)
	if string(got) != "half" || err == nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestShownIsShortText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("sec", 200)
	for name, body := range map[string]string{
		"nothing":      "",
		"binary":       "\x00\xff\xfe\x80",
		"cut in two":   strings.Repeat("x", maxAnswer-1) + "€",
		"all of it":    strings.Repeat("€", 1000),
		"the secret":   strings.Repeat("secret", 500),
		"half of it":   strings.Repeat("x", maxAnswer-3) + "secret",
		"that shrinks": strings.Repeat("x", 50) + strings.Repeat(long, 9),
		"only invalid": strings.Repeat("\xff", 5000),
	} {
		got := (&subscriberAnswer{body: []byte(body)}).shown(secrets{"secret", long})
		if len(got) > maxAnswer || !utf8.ValidString(got) || strings.Contains(strings.ReplaceAll(got, "[secret]", ""), "sec") || got == "" && body != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// If nothing was cut, an end that looks like the beginning of a secret stays.
func TestShownKeepsItsEnd(t *testing.T) {
	t.Parallel()
	hidden := secrets{"secret"}
	if got := (&subscriberAnswer{body: []byte("sec")}).shown(hidden); got != "sec" {
		t.Errorf("%q", got)
	}
	if got := (&subscriberAnswer{body: []byte("a sec"), broken: io.ErrUnexpectedEOF}).shown(hidden); got != "a " {
		t.Errorf("%q", got)
	}
}

// FuzzAnswer lets a hostile subscriber answer with any bytes: there is no crash, and the
// result can be stored.
func FuzzAnswer(f *testing.F) {
	const event = "Content-Type: application/cloudevents+json\r\nContent-Length: " // a valid answer up to its length
	for _, answer := range []string{
		"", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\n" + event + strconv.Itoa(len(good)) + "\r\n\r\n" + good,
		"HTTP/1.1 200 OK\r\nContent-Type: application/cloudevents-batch+json\r\n\r\n[" + good + "," + good + "]",
		"HTTP/1.0 200 OK\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nce-hops: 9\r\nce-time: x\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nCe-Id: trailer\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx",
		"HTTP/1.1 503 Busy\r\nRetry-After: 99999999999999999999\r\n\r\nhunter2", "HTTP/1.1 429 \r\nRetry-After: Fri, 01 Mar 9999 12:00:00 GMT\r\n\r\n",
		"HTTP/1.1 301 Moved\r\nLocation: http://[::1%25hunter2]:x/\r\n\r\n", "HTTP/1.1 307 x\r\nLocation: //a@b/\x80?hunter2\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "HTTP/1.1 000 \r\n\r\n",
	} {
		f.Add([]byte(answer))
	}
	path := secretIn(f, f.TempDir(), "token", "hunter2")
	age(f, path)
	f.Fuzz(func(t *testing.T, raw []byte) {
		trigger := triggerTo("http://subscriber.example/")
		trigger.To.Credentials.BearerFile = path
		s := newPoster(t, trigger, subscriberOptions{})
		transport, err := s.connections.current()
		if err != nil {
			t.Fatal(err)
		}
		transport.Proxy = nil
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go sendRaw(theirs, raw)
			return ours, nil
		}
		checkOutcome(t, s.post(t.Context(), posted(), 1))
	})
}

// sendRaw sends raw bytes as the answer and closes the connection.
func sendRaw(c net.Conn, raw []byte) {
	defer c.Close()
	if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	_, _ = c.Write(raw)
}

func checkOutcome(t *testing.T, o attemptResult) {
	a := o.attempt
	if o.kind != delivered && a.Error == "" || o.kind == delivered && (a.Error != "" || a.Answer != "") || o.kind != delivered && o.replies != nil {
		t.Fatalf("it is %s with %d replies: %+v", o.kind, len(o.replies), a)
	}
	if o.kind != again && o.after != 0 || o.after < 0 || o.after > longestAfter || a.Took < 0 {
		t.Fatalf("it is %s, to be tried after %s, and took %s", o.kind, o.after, a.Took)
	}
	for _, text := range []string{a.Error, a.Answer} {
		if !utf8.ValidString(text) || len(text) > maxAnswer+3 || strings.Contains(text, "hunter2") {
			t.Fatalf("the attempt says %q", text)
		}
	}
	cause := tidemill.Cause{Source: "/shop", ID: "order-1"}
	for i, r := range o.replies {
		if err := r.Validate(); err != nil || r.ID != cause.Derive("reply", "tell-shop", strconv.Itoa(i)) || tidemill.Reserved(r.Type, r.Source) != nil {
			t.Fatalf("reply %d: %v of %+v", i, err, r)
		}
	}
}
