package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
)

func TestPostIsACloudEvent(t *testing.T) {
	t.Parallel()
	for _, replies := range []bool{true, false} {
		var got broker.View
		var head http.Header
		url := answering(t, func(w http.ResponseWriter, r *http.Request) {
			head = r.Header.Clone()
			if err := cehttp.ReadBinary(r.Header, readBody(t, r), &got); err != nil || r.Method != http.MethodPost || r.URL.String() != "/hook?x=1" {
				t.Errorf("%s %s: %v", r.Method, r.URL, err)
			}
			w.WriteHeader(http.StatusNoContent)
		}) + "/hook?x=1"
		trigger := triggerTo(url)
		trigger.Delivery.Replies.Accept = replies
		s := newPoster(t, trigger, subscriberOptions{Version: "v1.2.3"})
		o := s.post(t.Context(), posted(), 1)
		expect(t, o, delivered)
		if o.attempt.Status != 204 || o.attempt.At.IsZero() || o.attempt.Took <= 0 || o.replies != nil {
			t.Errorf("the attempt is %+v", o.attempt)
		}
		want := map[string][]string{"User-Agent": {"tidemill/v1.2.3"}, "Traceparent": {traceParent}, "Tracestate": {"vendor=1"}, "Content-Length": {"14"}}
		if replies {
			want["Prefer"] = []string{"reply"}
		}
		for name, values := range want {
			if !slices.Equal(head[name], values) {
				t.Errorf("header %s is %q, want %q", name, head[name], values)
			}
		}
		if !replies && head["Prefer"] != nil || head["Accept-Encoding"] != nil || head["Cookie"] != nil {
			t.Errorf("the headers are %v", head)
		}
		sent := *posted()
		slices.SortFunc(sent.Extensions, func(a, b broker.Attribute) int { return strings.Compare(a.Name, b.Name) })
		if fmt.Sprint(got) != fmt.Sprint(sent) {
			t.Errorf("sent\n%v\ngot\n%v", sent, got)
		}
	}
}

func TestPostWithoutDataOrTrace(t *testing.T) {
	t.Parallel()
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if b := readBody(t, r); len(b) > 0 || r.ContentLength != 0 || r.Header["Content-Type"] != nil || r.Header["Traceparent"] != nil {
			t.Errorf("body %q of %d bytes, headers %v", b, r.ContentLength, r.Header)
		}
	})
	s := newPoster(t, triggerTo(url), subscriberOptions{})
	expect(t, s.post(t.Context(), &broker.View{ID: "1", Source: "/s", Type: "t"}, 1), delivered)
}

// Our span is between the publisher's span and the subscriber's.
func TestPostGoesOnWithTheTrace(t *testing.T) {
	t.Parallel()
	var told atomic.Value
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		told.Store(r.Header.Get("Traceparent"))
		cehttp.WriteBinary(w.Header(), &broker.View{ID: "r", Source: "/f", Type: "answer"})
	})
	spans := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	s := newPoster(t, triggerTo(url), subscriberOptions{Tracer: provider.Tracer("test")})
	o := s.post(t.Context(), posted(), 3)
	expect(t, o, delivered)
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Parent().TraceID().String() != traceID {
		t.Fatalf("the spans are %v", ended)
	}
	want := "00-" + traceID + "-" + ended[0].SpanContext().SpanID().String() + "-01"
	if told.Load() != want {
		t.Errorf("the subscriber gets %q, want %q", told.Load(), want)
	}
	if got, _ := o.replies[0].Attribute("traceparent"); got != want {
		t.Errorf("the reply carries %q, want %q", got, want)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	asked := atomic.Int32{}
	url := answering(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "https://user:pass@other.example/in?token=1", http.StatusPermanentRedirect)
	})
	s := newPoster(t, triggerTo(url), subscriberOptions{})
	o := s.post(t.Context(), posted(), 1)
	expect(t, o, refused, "308", "not followed", "https://other.example/in as the trigger's url")
	if strings.Contains(o.attempt.Error, "pass") || strings.Contains(o.attempt.Error, "token") || asked.Load() != 1 {
		t.Errorf("asked %d times: %s", asked.Load(), o.attempt.Error)
	}
}

func TestAnswersThatBreakAreTriedAgain(t *testing.T) {
	t.Parallel()
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, text)
		}
	}
	for name, c := range map[string]struct {
		text string
		want verdict
	}{
		"nothing":                          {"", again},
		"half a head":                      {"HTTP/1.1 200 OK\r\nContent-Ty", again},
		"not HTTP":                         {"220 smtp.example ESMTP\r\n", again},
		"less of a reply than was said":    {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Type: application/cloudevents+json\r\n\r\n{}", again},
		"a chunk that does not end":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/cloudevents+json\r\n\r\nff\r\n{}", again},
		"less of what nobody needs":        {"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nok", delivered},
		"less of an explanation":           {"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\nno", refused},
		"a code that nobody knows":         {"HTTP/1.1 799 Strange\r\nContent-Length: 0\r\n\r\n", again},
		"protocols switched":               {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", refused},
		"early hints, and then the answer": {"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", delivered},
	} {
		s := newPoster(t, triggerTo(answering(t, raw(c.text))), subscriberOptions{})
		o := s.post(t.Context(), posted(), 1)
		if o.kind != c.want {
			t.Errorf("%s: %s, want %s: %s", name, o.kind, c.want, o.attempt.Error)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	// Another test may use a port that was released; no test uses this one.
	s := newPoster(t, triggerTo("http://127.0.0.1:1"), subscriberOptions{})
	o := s.post(t.Context(), posted(), 1)
	expect(t, o, again, "no answer: ", "refused")
	if o.attempt.Status != 0 {
		t.Errorf("the status is %d", o.attempt.Status)
	}
}

// An attempt ends with its timeout, in whatever way a subscriber is slow.
func TestSlowSubscribersAreGivenUp(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
		"a byte a second": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/cloudevents+json")
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(time.Second):
				case <-r.Context().Done():
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := overPipes(t, h, nil)
				began := time.Now()
				o := s.post(t.Context(), posted(), 1)
				expect(t, o, again, "no answer within 20s")
				if took := time.Since(began); took != 20*time.Second || o.attempt.Took != took {
					t.Errorf("it took %s, and says %s", took, o.attempt.Took)
				}
			})
		})
	}
}

// If a subscriber has accepted the event but its answer does not end, the event is delivered.
func TestASlowExplanationDoesNotChangeTheVerdict(t *testing.T) {
	for status, want := range map[int]verdict{202: delivered, 422: refused, 503: again} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := overPipes(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "because")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}, nil)
			o := s.post(t.Context(), posted(), 1)
			if o.kind != want || o.attempt.Status != status || want != delivered && o.attempt.Answer != "because" {
				t.Errorf("%d is %s: %+v", status, o.kind, o.attempt)
			}
		})
	}
}

func TestPostEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := overPipes(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("the dispatcher stops")) })
		began := time.Now()
		expect(t, s.post(ctx, posted(), 1), again, "the dispatcher stops")
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// If a subscriber is away for ten minutes, its event is delayed by this time and the
// backoff under way, and by nothing else.
func TestTenMinutesOfOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := config.Backoff{Kind: config.Exponential, First: time.Second, Cap: time.Minute}
		s, network := overPipes(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) }, nil)
		expect(t, s.post(t.Context(), posted(), 1), delivered)
		s.close() // closes idle connections, because the subscriber has died
		network.setDown(true)
		const outage = 10 * time.Minute
		time.AfterFunc(outage, func() { network.setDown(false) })
		began, attempt := time.Now(), 1
		for ; ; attempt++ {
			o := s.post(t.Context(), posted(), attempt)
			if o.kind == delivered {
				break
			}
			expect(t, o, again, "connection refused")
			time.Sleep(delay(b, attempt, 0, o.after))
		}
		// The backoff doubles six times, which takes 63 s, and is then a minute.
		if took := time.Since(began); took < outage || took > outage+b.Cap || attempt != 16 {
			t.Errorf("delivered after %s, in %d attempts", took, attempt)
		}
	})
}

func TestTargets(t *testing.T) {
	t.Parallel()
	for to, says := range map[string]string{
		"ftp://host.example/":               "only http and https",
		"file:///etc/passwd":                "only http and https",
		"//host.example":                    "only http and https",
		"http:///path":                      "names no host",
		"https://user:hunter2@host.example": "holds a user",
		"http://hunter2:x/%zz":              "port",
	} {
		_, err := newSubscriber(triggerTo(to), subscriberOptions{})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "tell-shop") {
			t.Errorf("%s: %v, want %q", to, err, says)
		}
		if strings.Contains(to, "hunter2@") && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a password is shown: %v", err)
		}
	}
}

// A process without a resolver may get a config with a service. The other triggers must still work.
func TestAServiceWithoutAResolverIsTriedAgain(t *testing.T) {
	t.Parallel()
	trigger := triggerTo("")
	trigger.To.Service = "shop"
	o := newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1)
	expect(t, o, again)
	if !strings.Contains(o.attempt.Error, "this process cannot find") {
		t.Errorf("the attempt says %q", o.attempt.Error)
	}
}

func TestDestinations(t *testing.T) {
	t.Parallel()
	resolve := func(context.Context, config.Target) (*url.URL, error) { return nil, errors.New("not called") }
	for want, to := range map[string]config.Target{
		"https://crm.example:8443/hooks/a%2Fb": {URL: "https://crm.example:8443/hooks/a%2Fb?token=hunter2"},
		"service/chat/translator":              {Service: "chat/translator"},
		"function/train":                       {Function: "train"},
	} {
		s := newPoster(t, config.Trigger{To: to}, subscriberOptions{Resolve: resolve})
		if got := s.destination(); got != want {
			t.Errorf("%+v is %s, want %s", to, got, want)
		}
	}
}

// A service is resolved before each attempt; an error fails the attempt.
func TestServicesAreResolved(t *testing.T) {
	t.Parallel()
	at := answering(t, func(http.ResponseWriter, *http.Request) {})
	found, lookups := "", 0
	trigger := triggerTo("")
	trigger.To.Service = "shop"
	s := newPoster(t, trigger, subscriberOptions{Resolve: func(_ context.Context, to config.Target) (*url.URL, error) {
		lookups++
		if to.Service != "shop" {
			t.Errorf("asked for %+v", to)
		}
		if found == "" {
			return nil, errors.New("there is no such service")
		}
		return url.Parse(found)
	}})
	expect(t, s.post(t.Context(), posted(), 1), again, "find the subscriber shop", "no such service")
	found = "gopher://shop.example"
	expect(t, s.post(t.Context(), posted(), 2), again, "only http and https")
	found = at
	expect(t, s.post(t.Context(), posted(), 3), delivered)
	if lookups != 3 {
		t.Errorf("looked up %d times", lookups)
	}
}

// As many connections stay open as there may be attempts, so the next attempts open none.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	const most = 50
	for _, status := range []int{200, 204, 404, 500} {
		var opened atomic.Int32
		var inside sync.WaitGroup
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			inside.Done()
			inside.Wait() // waits for all requests
			w.WriteHeader(status)
			if status >= 400 {
				_, _ = w.Write(make([]byte, 10*maxAnswer)) // more than the dispatcher reads
			}
		}))
		server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				opened.Add(1)
			}
		}
		server.Start()
		t.Cleanup(server.Close)
		trigger := triggerTo(server.URL)
		trigger.Delivery.Concurrency = most
		s := newPoster(t, trigger, subscriberOptions{})
		for range 3 {
			inside.Add(most)
			var posts sync.WaitGroup
			for range most {
				posts.Go(func() { s.post(t.Context(), posted(), 1) })
			}
			posts.Wait()
		}
		// If no connection were kept, there would be three times as many. A few may be lost:
		// net/http does not keep a connection whose writer is late to report its end.
		if n := opened.Load(); n >= 2*most {
			t.Errorf("answering %d: %d connections for %d posts at once", status, n, most)
		}
	}
}

// If a subscriber answers before it has read the event, the transport is still writing.
// By then the event's memory may be reused; the race detector finds any use of it.
func TestTheEventsMemoryIsFreeAfterwards(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 202, 413, 500} {
		url := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(status)
		})
		s := newPoster(t, triggerTo(url), subscriberOptions{})
		data := bytes.Repeat([]byte("x"), 4<<20)
		v := broker.View{ID: "1", Source: "/s", Type: "t", Data: data}
		s.post(t.Context(), &v, 1)
		clear(data)
	}
}
