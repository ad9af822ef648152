package lineage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// recordSet holds records that were read from the ledger at once, before links lead to them. If
// records were read one by one, a hundred runs with their links and versions would need hundreds of
// requests. A record that is not here is read when it is needed.
type recordSet struct {
	runs     map[string]*tidemill.Run // nil if it is not known
	links    map[string][]string
	models   map[string]*fold.Model
	versions map[string]*ledger.VersionRecord // by model@number; nil if it is not kept
}

func newGathered() *recordSet {
	return &recordSet{runs: map[string]*tidemill.Run{}, links: map[string][]string{}, models: map[string]*fold.Model{}, versions: map[string]*ledger.VersionRecord{}}
}

// gather reads the records to which links lead.
func (s *Sources) gather(ctx context.Context, all []link, back bool) error {
	var runs, names, models []string
	for _, l := range all {
		switch l.to.kind {
		case api.KindRun:
			runs = append(runs, l.to.of)
			if !back {
				names = append(names, l.to.String())
			}
		case api.KindModel:
			models = append(models, l.to.of)
		}
	}
	if err := s.gatherRuns(ctx, runs, names); err != nil {
		return err
	}
	return s.gatherVersions(ctx, models, all)
}

func (s *Sources) gatherRuns(ctx context.Context, ids, names []string) error {
	runs, err := s.Ledger.RunsOf(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		s.at.runs[id] = runs[id]
	}
	links, err := s.Ledger.LinksOf(ctx, names)
	for name, to := range links {
		s.at.links[name] = to
	}
	return err
}

func (s *Sources) gatherVersions(ctx context.Context, names []string, all []link) error {
	models, err := s.Ledger.ModelsOf(ctx, names)
	if err != nil {
		return err
	}
	var held []ledger.HeldBy
	for _, l := range all {
		m := models[l.to.of]
		if l.to.kind != api.KindModel || m == nil {
			continue
		}
		s.at.models[m.Name] = m
		if h := m.Find(m.Which(l.to.at)); h != nil {
			held = append(held, ledger.HeldBy{Model: m.Name, Held: *h})
			s.at.versions[tidemill.VersionName(m.Name, h.Number)] = nil
		}
	}
	versions, err := s.Ledger.VersionsOf(ctx, held)
	for i := range versions {
		s.at.versions[tidemill.VersionName(versions[i].Model, versions[i].Number)] = &versions[i]
	}
	return err
}

// linksTo returns links to named things.
func linksTo(names []string) (all []link) {
	for _, name := range names {
		if to, err := parseRef(name); err == nil {
			all = append(all, link{to: to})
		}
	}
	return all
}

// runOf returns a run; nil if it is not known.
func (s *Sources) runOf(ctx context.Context, id string) (*tidemill.Run, error) {
	if r, asked := s.at.runs[id]; asked {
		return r, nil
	}
	all, err := s.Ledger.RunsOf(ctx, []string{id})
	return all[id], err
}

func (s *Sources) linksOf(ctx context.Context, name string) ([]string, error) {
	if to, asked := s.at.links[name]; asked {
		return to, nil
	}
	return s.Ledger.Links(ctx, name)
}

func (s *Sources) modelOf(ctx context.Context, name string) (*fold.Model, error) {
	if m := s.at.models[name]; m != nil {
		return m, nil
	}
	return s.Ledger.Model(ctx, name)
}

// versionOf returns a version that a model holds; nil if the model has dropped it meanwhile.
func (s *Sources) versionOf(ctx context.Context, m *fold.Model, h *fold.Held) (*ledger.VersionRecord, error) {
	if v, asked := s.at.versions[tidemill.VersionName(m.Name, h.Number)]; asked {
		return v, nil
	}
	all, err := s.Ledger.VersionsOf(ctx, []ledger.HeldBy{{Model: m.Name, Held: *h}})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// shownAsked limits how many facts that asked for a run are read, newest first.
const shownAsked = 5

// errGone reports that a fact is no longer at its position.
var errGone = errors.New("the fact is no longer on the log")

// factAt reads the data of one fact, with one request to Kafka. If a run is given, a fact of another
// run counts as gone: an offset that a fact names does not hold on a copy of the log.
func (s *Sources) factAt(ctx context.Context, partition int32, offset int64, run string, to any) error {
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: offset}
	failed := errGone
	_, err := s.Broker.Read(ctx, from, 1, func(e *broker.Incoming) bool {
		if e.Offset < offset {
			return true // the batch that holds the fact may begin earlier
		}
		if of, _ := e.Attribute(tidemill.AttrRun); e.Offset == offset && (run == "" || run == of) {
			failed = json.Unmarshal(e.Data, to)
		}
		return false
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("read the fact at offset %d of partition %d: %w", offset, partition, err)
	}
	return nil
}

// planOf returns the plan of a run; nil before the run has begun, and if the fact with the plan is
// gone.
func (s *Sources) planOf(ctx context.Context, r *tidemill.Run) (plan *tidemill.Plan, gone bool, err error) {
	switch {
	case r.Plan != nil:
		plan = &tidemill.Plan{}
		return plan, false, json.Unmarshal(r.Plan, plan)
	case len(r.Attempts) == 0:
		return nil, false, nil
	}
	var d tidemill.RunStarted
	err = s.factAt(ctx, r.Partition, r.Attempts[0].Offset, r.ID, &d)
	if errors.Is(err, errGone) {
		return nil, true, nil
	}
	return d.Plan, false, err
}

// askedFor reads events that asked for a run: the newest events, newest first, and then the first
// event.
func (s *Sources) askedFor(ctx context.Context, r *tidemill.Run) (all []*thing, err error) {
	newest := max(0, len(r.Asked)-shownAsked)
	for _, offset := range slices.Backward(append(r.Asked[:min(newest, 1):min(newest, 1)], r.Asked[newest:]...)) {
		var d tidemill.RunRequested
		err := s.factAt(ctx, r.Partition, offset, "", &d)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, eventsOf(&d)...)
	}
	return all, nil
}

// eventsOf returns the newest events of a fact that asked for a run, without those that cannot be
// read.
func eventsOf(d *tidemill.RunRequested) (all []*thing) {
	for _, text := range slices.Backward(d.Events[max(0, len(d.Events)-shownAsked):]) {
		var v broker.View
		if broker.UnmarshalStructured(text, &v) == nil {
			all = append(all, ofEvent(&v))
		}
	}
	return all
}

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
