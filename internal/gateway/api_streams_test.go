package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

func TestStreamsAreListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.post("/streams/messages", "", eventHeaders("1")...)
	var all api.Streams
	w.must(json.Unmarshal([]byte(w.do(http.MethodGet, "/api/v1/streams", "").body), &all))
	var names []string
	for _, s := range all.Streams {
		names = append(names, s.Name)
	}
	if !haveSame(names, []string{"clock", "commands", "dead-letters", "events", "facts", "group-offsets", "messages", "outcomes", "progress", "scored"}) {
		t.Errorf("streams are %v", names)
	}
	var one api.Stream
	w.must(json.Unmarshal([]byte(w.do(http.MethodGet, "/api/v1/streams/messages", "").body), &one))
	if one.Name != "messages" || one.Records != 1 || len(one.Partitions) != 4 || one.Bytes == nil || *one.RetentionSeconds != 7*24*3600 || one.Rate == 0 {
		t.Errorf("%+v", one)
	}
	var facts api.Stream
	w.must(json.Unmarshal([]byte(w.do(http.MethodGet, "/api/v1/streams/facts", "").body), &facts))
	if facts.RetentionSeconds != nil || facts.Groups == nil {
		t.Errorf("%+v", facts)
	}
	p := wantProblem(t, w.do(http.MethodGet, "/api/v1/streams/no", ""), http.StatusNotFound, api.UnknownStream, `"no"`)
	if !haveSame(p.Streams, names) {
		t.Errorf("it names %v", p.Streams)
	}
}

// Concurrent callers share one lookup. Callers within a second after it get its result, even
// if that is an error.
func TestSurveyIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks, failing := 0, errors.New("away")
		var failure error
		s := sharedLookup[[]broker.StreamInfo]{within: time.Minute, look: func(context.Context) ([]broker.StreamInfo, error) {
			looks++
			time.Sleep(500 * time.Millisecond) // virtual time
			return []broker.StreamInfo{{Records: int64(looks)}}, failure
		}}
		ask := func(want int64, fails error) {
			infos, err := s.current(t.Context())
			if err != fails || infos[0].Records != want {
				t.Errorf("%v, %v, want %d, %v", infos, err, want, fails)
			}
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { ask(1, nil) })
		}
		all.Wait()
		time.Sleep(surveyAge - time.Millisecond)
		ask(1, nil)
		time.Sleep(time.Millisecond)
		failure = failing
		ask(2, failing)
		ask(2, failing)
		time.Sleep(surveyAge)
		failure = nil
		ask(3, nil)
		if looks != 3 {
			t.Errorf("%d looks", looks)
		}
	})
}

// If the caller that does the lookup leaves, the others still get the result. A waiting
// caller may leave too.
func TestSurveyOutlivesWhoAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sharedLookup[[]broker.StreamInfo]{within: time.Minute, look: func(ctx context.Context) ([]broker.StreamInfo, error) {
			time.Sleep(time.Second) // virtual time
			return nil, ctx.Err()
		}}
		gone, cancel := context.WithCancel(t.Context())
		go func() { _, _ = s.current(gone) }()
		synctest.Wait()
		cancel()
		if _, err := s.current(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("who has gone is told %v", err)
		}
		if _, err := s.current(t.Context()); err != nil {
			t.Errorf("the others are told %v", err)
		}
	})
}
