package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// memoryStream is a gateway's stream in memory: it keeps its events in order and recognises
// repeats.
type memoryStream struct {
	mu     sync.Mutex
	kept   []string
	asked  []int                        // events in each request
	refuse func(id string) *api.Problem // called with the lock held
	most   int                          // events in a request
	slow   time.Duration                // duration of each request
}

func (s *memoryStream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var events []struct{ ID string }
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &events); err != nil || r.Header.Get("Content-Type") != batchType {
		problemHandler(slug(api.InvalidEvent, 400, fmt.Sprint(err)))(w, r)
		return
	}
	time.Sleep(s.slow) // virtual time: the batch fills first
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, len(events))
	if s.most > 0 && len(events) > s.most {
		htmlHandler(413, "too much for this proxy")(w, r)
		return
	}
	status, all := http.StatusAccepted, []api.Answer{}
	for _, e := range events {
		a := s.take(e.ID)
		if a.Status > status {
			status = a.Status
		}
		all = append(all, a)
	}
	if status != http.StatusAccepted {
		p := slug(api.Refused, status, "some were refused")
		p.Events = all
		problemHandler(p, "Retry-After", "1")(w, r)
		return
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Answers{Events: all})
}

func (s *memoryStream) take(id string) api.Answer {
	if s.refuse != nil {
		if p := s.refuse(id); p != nil {
			return api.Answer{ID: id, Status: p.Status, Problem: p}
		}
	}
	if slices.Contains(s.kept, id) {
		return api.Answer{ID: id, Status: 202, Repeated: true}
	}
	s.kept = append(s.kept, id)
	return api.Answer{ID: id, Status: 202, Position: &api.Position{Stream: "events", Offset: int64(len(s.kept) - 1)}}
}

// eventResults collects the result of each event.
type eventResults struct {
	mu       sync.Mutex
	receipts map[string]Receipt
	errs     map[string]error
	order    []string
}

func (a *eventResults) of(id string) func(Receipt, error) {
	return func(r Receipt, err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.receipts == nil {
			a.receipts, a.errs = map[string]Receipt{}, map[string]error{}
		}
		a.order = append(a.order, id)
		if err != nil {
			a.errs[id] = err
			return
		}
		a.receipts[id] = r
	}
}

func sendAll(t *testing.T, b *Batcher, a *eventResults, n int) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("%06d", i)
		b.Send(t.Context(), event(id), a.of(id))
	}
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestBatchesKeepTheOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 3*batchEvents + 5
		s, a := &memoryStream{slow: time.Second}, &eventResults{}
		b := gatewayOf(t, s.ServeHTTP).Batcher("")
		sendAll(t, b, a, n)
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if len(s.kept) != n || !slices.IsSorted(s.kept) || len(a.receipts) != n || !slices.IsSorted(a.order) {
			t.Errorf("%d are there, %d have a receipt", len(s.kept), len(a.receipts))
		}
		if len(s.asked) > 5 { // the first request takes the events so far, and the next batch fills during it
			t.Errorf("%d requests: %v", len(s.asked), s.asked)
		}
		if at := a.receipts["000007"]; at.Offset != 7 || at.Stream != "events" {
			t.Errorf("%+v", at)
		}
	})
}

// Only events with a temporary failure are sent again, in their order; permanent errors are
// reported.
func TestABatchTriesAgainWhatPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tried := map[string]int{}
		s := &memoryStream{refuse: func(id string) *api.Problem {
			tried[id]++
			switch {
			case id == "000003" || id == "000005":
				if tried[id] < 3 {
					return &api.Problem{Type: api.ProblemBase + api.Unavailable, Status: 503, Detail: "its partition has no leader"}
				}
			case id == "000004":
				return &api.Problem{Type: api.ProblemBase + api.Reserved, Status: 403, Detail: "type is ours", Attribute: "type"}
			}
			return nil
		}}
		a := &eventResults{}
		b := gatewayOf(t, s.ServeHTTP).Batcher("")
		defer b.Close(t.Context())
		sendAll(t, b, a, 10)
		for id, want := range map[string]int{"000003": 3, "000004": 1, "000005": 3, "000006": 1} {
			if tried[id] != want {
				t.Errorf("event %s was tried %d times", id, tried[id])
			}
		}
		if i, j := slices.Index(s.kept, "000003"), slices.Index(s.kept, "000005"); i < 0 || i > j {
			t.Errorf("the order is %v", s.kept)
		}
		var p *api.Problem
		if err := a.errs["000004"]; !errors.As(err, &p) || p.Attribute != "type" || p.Status != 403 || len(a.receipts) != 9 {
			t.Errorf("%v, %d receipts", err, len(a.receipts))
		}
	})
}

// After a lost answer, no event is stored twice, because the ids are the same.
func TestALostAnswerDoublesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, a := &memoryStream{}, &eventResults{}
		answer, _ := inOrder(func(w http.ResponseWriter, r *http.Request) {
			s.ServeHTTP(nowhere{}, r)
			hungUp(w, r)
		}, s.ServeHTTP)
		b := gatewayOf(t, answer).Batcher("")
		defer b.Close(t.Context())
		sendAll(t, b, a, 1)
		if len(s.kept) != 1 || !a.receipts["000000"].Repeated {
			t.Errorf("%v, %+v, %v", s.kept, a.receipts, a.errs)
		}
	})
}

type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}

func TestATooLargeBatchIsHalved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, a := &memoryStream{most: 100}, &eventResults{}
		b := gatewayOf(t, s.ServeHTTP).Batcher("")
		defer b.Close(t.Context())
		sendAll(t, b, a, 1500)
		if len(a.receipts) != 1500 || !slices.IsSorted(s.kept) {
			t.Errorf("%d of 1500 have a receipt", len(a.receipts))
		}
	})
}

func TestABatchIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"no token":      {problemHandler(slug(api.Unauthenticated, 401, "give a token")), "publish event 000000: give a token"},
		"no such":       {problemHandler(slug(api.UnknownStream, 404, "no such stream")), "no such stream"},
		"a page":        {htmlHandler(200, "<html>"), "is it one?"},
		"few answers":   {htmlHandler(202, `{"events": []}`), "with 0 answers to 1 events"},
		"no answer":     {htmlHandler(202, `{"events": [{}]}`), "without a body"},
		"only a status": {htmlHandler(202, `{"events": [{"status": 202}]}`), "202 Accepted without a body"},
	} {
		synctest.Test(t, func(t *testing.T) {
			answer, n := inOrder(c.answer)
			a := &eventResults{}
			b := gatewayOf(t, answer).Batcher("")
			defer b.Close(t.Context())
			sendAll(t, b, a, 1)
			if err := a.errs["000000"]; err == nil || !strings.Contains(err.Error(), c.says) || *n != 1 {
				t.Errorf("%s: %d requests, %v", name, *n, err)
			}
		})
	}
}

func TestABatchesPatienceEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		slug  string
		doubt bool
	}{{api.Unavailable, false}, {api.InDoubt, true}} {
		synctest.Test(t, func(t *testing.T) {
			s, a := &memoryStream{refuse: func(string) *api.Problem {
				return &api.Problem{Type: api.ProblemBase + c.slug, Status: 503, Detail: "Kafka is away"}
			}}, &eventResults{}
			b := gatewayOf(t, s.ServeHTTP).Batcher("")
			defer b.Close(t.Context())
			sendAll(t, b, a, 1)
			err := a.errs["000000"]
			if err == nil || !strings.Contains(err.Error(), "Kafka is away (tried for 2m0s)") || errors.Is(err, broker.ErrInDoubt) != c.doubt {
				t.Errorf("%v", err)
			}
		})
	}
}

// A batcher that is closed early answers every event with a result or an error.
func TestCloseAbandonsNothingInSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &eventResults{}
		b := gatewayOf(t, neverAnswer).Batcher("")
		for i := range 10 {
			id := fmt.Sprint(i)
			b.Send(t.Context(), event(id), a.of(id))
		}
		ctx, cancel := contextFor(t, time.Second)
		defer cancel()
		if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		b.Send(t.Context(), event("late"), a.of("late"))
		if len(a.errs) != 11 || !errors.Is(a.errs["late"], broker.ErrClosed) || !errors.Is(a.errs["9"], broker.ErrClosed) {
			t.Errorf("%v", a.errs)
		}
	})
}

func TestSendWaitsForRoomAndNoLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &eventResults{}
		b := gatewayOf(t, neverAnswer).Batcher("")
		ctx, cancel := contextFor(t, 10*time.Second)
		defer cancel()
		for i := range 2*batchEvents + 2 {
			id := fmt.Sprint(i)
			b.Send(ctx, event(id), a.of(id))
		}
		if !errors.Is(a.errs[fmt.Sprint(2*batchEvents+1)], context.DeadlineExceeded) {
			t.Errorf("a full batch took more: %v", a.errs)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = b.Close(ended)
		if len(a.errs) != 2*batchEvents+2 {
			t.Errorf("%d answers", len(a.errs))
		}
	})
}

func TestManySendAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, a := &memoryStream{}, &eventResults{}
		b := gatewayOf(t, s.ServeHTTP).Batcher("")
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 200 {
					id := fmt.Sprintf("%d-%d", g, i)
					b.Send(t.Context(), event(id), a.of(id))
				}
			})
		}
		all.Wait()
		if err := b.Close(t.Context()); err != nil || len(a.receipts) != 1600 || len(s.kept) != 1600 {
			t.Errorf("%d receipts, %d kept, %v", len(a.receipts), len(s.kept), err)
		}
	})
}
