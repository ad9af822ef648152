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
	infos, err := g.survey.now(r.Context())
	if err != nil {
		return g.unseen(r.Context(), err)
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
	infos, err := g.survey.now(r.Context())
	if err != nil {
		return g.unseen(r.Context(), err)
	}
	i := slices.IndexFunc(infos, func(i broker.StreamInfo) bool { return i.Name == r.value })
	if i < 0 {
		return noSuchStream(r.value, namesOf(infos))
	}
	writeJSON(w, http.StatusOK, StreamOf(&infos[i]))
	return nil
}

// unseen is the problem of a Kafka that does not say how the streams are. The
// log has why: it names servers that a caller has no business with.
func (g *Gateway) unseen(ctx context.Context, err error) *api.Problem {
	if ctx.Err() == nil {
		g.log.Warn("the streams cannot be looked at", "reason", err)
	}
	return unavailable("Kafka does not say how the streams are; ask again a little later")
}

func namesOf(infos []broker.StreamInfo) []string {
	names := make([]string, len(infos))
	for i := range infos {
		names[i] = infos[i].Name
	}
	return names
}

// StreamOf is a stream as the API tells of it. The commands tell the same where
// they ask Kafka themselves.
func StreamOf(i *broker.StreamInfo) api.Stream {
	s := api.Stream{Name: i.Name, Records: i.Records, Rate: i.Rate, Partitions: []api.Partition{}, Groups: []api.Group{}}
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
		s.Groups = append(s.Groups, api.Group{Group: l.Group, Lag: l.Lag, Lost: l.Lost})
	}
	return s
}

// surveyAge is how long an answer is given again.
const surveyAge = time.Second

// survey shares a look at something among all who ask: it costs Kafka a handful
// of requests a server, and a page that many watch asks all the time.
type survey[T any] struct {
	look   func(context.Context) (T, error)
	within time.Duration // it has to answer

	mu   sync.Mutex
	last *sight[T]
}

// sight is one look. Its fields are set before done is closed.
type sight[T any] struct {
	done  chan struct{}
	at    time.Time
	found T
	err   error
}

// now is how it is, or was a second ago. Whoever looks first looks for the
// others too, so his going away does not end it.
func (s *survey[T]) now(ctx context.Context) (none T, err error) {
	found, mine := s.sight()
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

// sight is the look to wait for; mine if the caller is to take it.
func (s *survey[T]) sight() (found *sight[T], mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.old() {
		s.last = &sight[T]{done: make(chan struct{})}
		return s.last, true
	}
	return s.last, false
}

func (s *sight[T]) old() bool {
	select {
	case <-s.done:
		return time.Since(s.at) >= surveyAge
	default:
		return false
	}
}
