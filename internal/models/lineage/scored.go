package lineage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// place is an event's position that an id contains: a scored event has the position of its input as
// id.
type place struct {
	stream    string
	partition int32
	offset    int64
}

func parsePlace(id string) (p place, ok bool) {
	parts := strings.Split(id, "/")
	if len(parts) != 3 || tidemill.CheckStream(parts[0]) != nil {
		return p, false
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	offset, err2 := strconv.ParseInt(parts[2], 10, 64)
	if errors.Join(err, err2) != nil || partition < 0 || offset < 0 {
		return p, false
	}
	return place{parts[0], int32(partition), offset}, true
}

const (
	soughtBytes = 64 << 20 // limit of output that is read to find one scored event
	oneEvent    = 1        // least bytes to read; the read returns a whole event
	someEvents  = 1 << 20
)

// scored returns a scorer's answer to the event at a place, linked to that event. Without an answer
// it returns the event; without an event, nil.
func (s *Sources) scored(ctx context.Context, r ref, at place) (*thing, error) {
	if _, known := s.Config.Stream(at.stream); !known {
		return nil, nil
	}
	input, logged, err := s.eventAt(ctx, at)
	if err != nil || input == nil || !s.MayRead(input.key) {
		return nil, err
	}
	var answer *thing
	for _, sc := range s.Config.Scorers {
		source := s.Names.Source("scorer/" + sc.Name)
		if sc.From != at.stream || r.of != "" && r.of != source {
			continue
		}
		found, err := s.answerOf(ctx, &sc, source, at, logged)
		switch {
		case err != nil:
			return nil, err
		case found == nil:
			input.note(fmt.Sprintf("scorer %s has no answer to it near the expected place in %s", sc.Name, sc.To))
		case answer == nil:
			answer = found
		default:
			answer.note(found.ref.String() + " is another scorer's answer to the same event: ask for it with its source")
		}
	}
	if answer == nil {
		return input, nil
	}
	answer.linkAnswer(input)
	return answer, nil
}

// eventAt returns the event at a place, and the time at which it reached the log.
func (s *Sources) eventAt(ctx context.Context, at place) (found *thing, logged time.Time, err error) {
	from := broker.Position{Stream: at.stream, Partition: at.partition, Offset: at.offset}
	places, err := s.Broker.Ends(ctx, at.stream)
	if err != nil || int(at.partition) >= len(places) || at.offset >= places[at.partition].Offset {
		return nil, logged, err
	}
	_, err = s.Broker.Read(ctx, from, oneEvent, func(e *broker.Incoming) bool {
		if e.Offset == at.offset && e.Err == nil {
			found, logged = ofEvent(&e.View), e.Time
			found.addFact("position", fmt.Sprintf("%s/%d/%d", at.stream, at.partition, at.offset))
		}
		return e.Offset < at.offset
	})
	return found, logged, err
}

// answerOf looks for a scorer's answer from the time at which its input reached the log. The clock
// that set that time may be ahead of ours, so it looks again from a few minutes before.
func (s *Sources) answerOf(ctx context.Context, sc *config.Scorer, source string, at place, logged time.Time) (*thing, error) {
	id := fmt.Sprintf("%s/%d/%d", at.stream, at.partition, at.offset)
	for _, before := range []time.Duration{time.Second, 5 * time.Minute} {
		places, err := s.Broker.Places(ctx, sc.To, broker.Since(logged.Add(-before)))
		if err != nil || len(places) == 0 {
			return nil, err
		}
		found, err := s.seek(ctx, places[int(at.partition)%len(places)], source, id)
		if err != nil || found != nil {
			return found, err
		}
	}
	return nil, nil
}

// seek reads on from a place until it finds an event, or has read enough.
func (s *Sources) seek(ctx context.Context, from broker.Position, source, id string) (found *thing, err error) {
	for read := 0; found == nil && read < soughtBytes; read += someEvents {
		next, err := s.Broker.Read(ctx, from, someEvents, func(e *broker.Incoming) bool {
			if e.Err == nil && e.ID == id && e.Source == source {
				found = ofScored(&e.View)
			}
			return found == nil
		})
		if err != nil || next == from.Offset {
			return found, err
		}
		from.Offset = next
	}
	return found, nil
}
