package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// listStreams answers with all streams as they are now.
func (g *Gateway) listStreams(w http.ResponseWriter, r *request) *api.Problem {
	infos, err := g.survey.current(r.Context())
	if err != nil {
		return g.kafkaProblem(r.Context(), err)
	}
	all := api.Streams{Streams: []api.Stream{}}
	for i := range infos {
		all.Streams = append(all.Streams, StreamOf(&infos[i]))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// showStream answers with one stream.
func (g *Gateway) showStream(w http.ResponseWriter, r *request) *api.Problem {
	infos, err := g.survey.current(r.Context())
	if err != nil {
		return g.kafkaProblem(r.Context(), err)
	}
	i := slices.IndexFunc(infos, func(i broker.StreamInfo) bool { return i.Name == r.value })
	if i < 0 {
		return noSuchStream(r.value, namesOf(infos))
	}
	writeJSON(w, http.StatusOK, StreamOf(&infos[i]))
	return nil
}

// kafkaProblem is the problem of streams whose state Kafka does not return. The reason is only
// logged, because it names servers that do not concern a caller.
func (g *Gateway) kafkaProblem(ctx context.Context, err error) *api.Problem {
	if ctx.Err() == nil {
		g.log.Warn("gateway: reading from Kafka failed; the caller gets a 503", "reason", err)
	}
	return unavailable("the streams cannot be read from Kafka now; try again later")
}

func namesOf(infos []broker.StreamInfo) []string {
	names := make([]string, len(infos))
	for i := range infos {
		names[i] = infos[i].Name
	}
	return names
}

// StreamOf converts the state of a stream into its form in the API. The command line also calls
// StreamOf when it reads the state from Kafka itself.
func StreamOf(i *broker.StreamInfo) api.Stream {
	s := api.Stream{Name: i.Name, Records: i.Records, Estimated: i.Estimated, Rate: i.Rate, Partitions: []api.Partition{}, Groups: []api.Group{}}
	if i.Bytes >= 0 {
		s.Bytes = &i.Bytes
	}
	if i.Retention > 0 {
		seconds := int64(i.Retention.Seconds())
		s.RetentionSeconds = &seconds
	}
	for _, p := range i.Partitions {
		s.Partitions = append(s.Partitions, api.Partition{Partition: p.Partition, Start: p.Start, End: p.End})
	}
	for _, l := range i.Groups {
		s.Groups = append(s.Groups, api.Group{Group: l.Group, Lag: l.Lag, Lost: l.Lost, Estimated: l.Estimated})
	}
	return s
}

// surveyAge is how long a result is used again.
const surveyAge = time.Second

// sharedLookup shares one lookup among all callers. A lookup costs Kafka several requests per
// server, and a page that many people watch repeats it every few seconds.
type sharedLookup[T any] struct {
	look   func(context.Context) (T, error)
	within time.Duration // time limit of a lookup

	mu   sync.Mutex
	last *lookup[T]
}

// lookup is one lookup. Its fields are set before done is closed.
type lookup[T any] struct {
	done  chan struct{}
	at    time.Time
	found T
	err   error
}

// current returns a result that is at most a second old. The first caller starts a lookup for all
// callers, so the lookup continues if that caller disconnects.
func (s *sharedLookup[T]) current(ctx context.Context) (none T, err error) {
	found, mine := s.joinLookup()
	if mine {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.within)
		defer cancel()
		found.found, found.err = s.look(limited)
		found.at = time.Now()
		close(found.done)
	}
	select {
	case <-found.done:
		return found.found, found.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// joinLookup returns the lookup to wait for. If mine is true, the caller must run the lookup.
func (s *sharedLookup[T]) joinLookup() (found *lookup[T], mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.old() {
		s.last = &lookup[T]{done: make(chan struct{})}
		return s.last, true
	}
	return s.last, false
}

func (s *lookup[T]) old() bool {
	select {
	case <-s.done:
		return time.Since(s.at) >= surveyAge
	default:
		return false
	}
}
