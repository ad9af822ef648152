package lineage

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

const (
	soughtBytes = 64 << 20 // limit of output that is read to find one scored event
	someEvents  = 1 << 20
)

// scored returns a scorer's answer to the event at a place, linked to that event. Without an answer
// it returns the event; without an event, nil.
func (s *Sources) scored(ctx context.Context, r ref, at broker.Position) (*thing, error) {
	if _, known := s.Config.Stream(at.Stream); !known {
		return nil, nil
	}
	input, logged, err := s.eventAt(ctx, at)
	if err != nil || input == nil || !s.MayRead(input.key) {
		return nil, err
	}
	var answer *thing
	for _, sc := range s.Config.Scorers {
		source := s.Names.Source("scorer/" + sc.Name)
		if sc.From != at.Stream || r.of != "" && r.of != source {
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
func (s *Sources) eventAt(ctx context.Context, at broker.Position) (found *thing, logged time.Time, err error) {
	_, err = s.Broker.EventAt(ctx, at, func(e *broker.Incoming) {
		found, logged = ofEvent(&e.View), e.Time
		found.addFact("position", at.Place())
	})
	return found, logged, err
}

// answerOf looks for a scorer's answer from the time at which its input reached the log. The clock
// that set that time may be ahead of ours, so it looks again from a few minutes before.
func (s *Sources) answerOf(ctx context.Context, sc *config.Scorer, source string, at broker.Position, logged time.Time) (*thing, error) {
	id := at.Place()
	for _, before := range []time.Duration{time.Second, 5 * time.Minute} {
		places, err := s.Broker.Places(ctx, sc.To, broker.Since(logged.Add(-before)))
		if err != nil || len(places) == 0 {
			return nil, err
		}
		found, err := s.seek(ctx, places[int(at.Partition)%len(places)], source, id)
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
