package lineage

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// Sources are the sources of an answer.
type Sources struct {
	Ledger  *ledger.Ledger
	Broker  *broker.Broker
	Store   *store.Store // nil if there is none: then commits are shown as their runs know them
	Names   tidemill.Names
	Config  *config.Config        // source of the scorers, whose answers are found by the places of their inputs
	MayRead func(key string) bool // reports whether the caller may read the data of a key; an empty key means all keys
	// MayReadData reports the same of a dataset, whose keys follow from the config.
	MayReadData func(dataset string) bool

	at *recordSet // records gathered for one answer
}

// mayRead reports whether the caller may read a thing.
func (s *Sources) mayRead(t *thing) bool {
	if t.dataset != "" {
		return s.MayReadData(t.dataset)
	}
	return s.MayRead(t.key)
}

// Of returns the graph of a thing: its causes and effects. The thing is named as run/ID,
// model/NAME[@VERSION], commit/DATASET@COMMIT or event/ID. Errors wrap ErrRef, ErrUnknown, and the
// errors of the ledger and the store for a name that fits several things.
func Of(ctx context.Context, s Sources, name string) (api.Graph, error) {
	r, err := parseRef(name)
	if err != nil {
		return api.Graph{}, err
	}
	s.at = newGathered()
	subject, err := s.subject(ctx, r)
	if err != nil {
		return api.Graph{}, fmt.Errorf("trace %s: %w", name, err)
	}
	if subject == nil || !s.mayRead(subject) {
		return api.Graph{}, fmt.Errorf("%q: %w, or you may not see it; %s", shorten(name), ErrUnknown, knownKinds(r))
	}
	g, err := walkFrom(ctx, subject, lookUpHooks{s.gather, s.find}, s.mayRead)
	if err != nil {
		return g, fmt.Errorf("trace %s: %w", name, err)
	}
	return g, nil
}

// knownKinds describes which things of a kind are known, and where to look for others.
func knownKinds(r ref) string {
	switch r.kind {
	case api.KindRun:
		return fmt.Sprintf("of each recipe and key the newest %d runs are known, and those whose version is kept; older ones are on the stream facts", fold.KeptRuns)
	case api.KindModel:
		return "a model's newest versions are kept, with its champion and the one before"
	case api.KindCommit:
		return "give it as commit/DATASET@COMMIT; without the dataset, give its whole id, and a run must have used it"
	}
	return "only the first and the newest causes of a run are known; a scored event is found by its id, STREAM/PARTITION/OFFSET of its input, while the input is on its stream; a tail of its stream finds others"
}

// subject returns the thing that a person asks about, with both sides. Its name may be the
// beginning of an id.
func (s *Sources) subject(ctx context.Context, r ref) (*thing, error) {
	switch r.kind {
	case api.KindRun:
		return s.runBeginning(ctx, r.of)
	case api.KindModel:
		return s.version(ctx, r)
	case api.KindCommit:
		return s.commitNamed(ctx, r)
	}
	return s.event(ctx, r)
}

// find returns the thing to which a link leads.
func (s *Sources) find(ctx context.Context, l link, back bool) (*thing, error) {
	switch l.to.kind {
	case api.KindRun:
		return s.run(ctx, l, wantedSides{back: back, ahead: !back})
	case api.KindModel:
		return s.version(ctx, l.to)
	case api.KindCommit:
		return s.commit(ctx, l, !back)
	case api.KindEvent:
		if back || l.linked == nil {
			return l.linked, nil // the event as the run that it asked for knows it
		}
		return s.withEffects(ctx, l.linked)
	}
	return l.linked, nil
}

// runBeginning finds a run by the beginning of its id. If the ledger has forgotten the run, a
// version may still describe it.
func (s *Sources) runBeginning(ctx context.Context, id string) (*thing, error) {
	r, err := s.Ledger.Find(ctx, id)
	if errors.Is(err, ledger.ErrUnknown) {
		return s.runOfVersion(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	return s.tellRun(ctx, runData{run: *r}, both())
}

func (s *Sources) runOfVersion(ctx context.Context, id string) (*thing, error) {
	names, err := s.Ledger.Links(ctx, runRef(id).String())
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		to, err := parseRef(name)
		if err != nil || to.kind != api.KindModel {
			continue
		}
		v, err := s.version(ctx, to)
		if err != nil || v == nil {
			return nil, err
		}
		return s.run(ctx, v.causes[0], both())
	}
	return nil, nil
}

// run is the run that a link leads to.
func (s *Sources) run(ctx context.Context, l link, of wantedSides) (*thing, error) {
	r, err := s.runOf(ctx, l.to.of)
	switch {
	case err != nil:
		return nil, err
	case r != nil:
		return s.tellRun(ctx, runData{run: *r}, of)
	case l.origin == nil:
		return l.linked, nil
	}
	return s.tellRun(ctx, ofOrigin(l.origin), of)
}

// wantedSides are the wanted sides of a thing: its causes (back) and its effects (ahead).
type wantedSides struct{ back, ahead bool }

func both() wantedSides { return wantedSides{true, true} }

// tellRun adds the wanted data of the log and the links to a run. Each fact is a request to Kafka.
func (s *Sources) tellRun(ctx context.Context, k runData, of wantedSides) (_ *thing, err error) {
	gone := false
	if of.back || k.run.Commit != "" {
		if k.plan, gone, err = s.planOf(ctx, &k.run); err != nil {
			return nil, err
		}
	}
	if of.back {
		if k.asked, err = s.askedFor(ctx, &k.run); err != nil {
			return nil, err
		}
	}
	if of.ahead {
		if k.made, err = s.linksOf(ctx, runRef(k.run.ID).String()); err != nil {
			return nil, err
		}
	}
	t := ofRun(k, of)
	if gone {
		t.note(fmt.Sprintf("the log no longer has the plan of run %s", shortID(k.run.ID)))
	}
	return t, nil
}

// version returns a version of a model; nil if it is not kept.
func (s *Sources) version(ctx context.Context, r ref) (*thing, error) {
	m, err := s.modelOf(ctx, r.of)
	if err != nil {
		return nil, err
	}
	h := m.Find(m.Which(r.at))
	if h == nil {
		return nil, nil
	}
	v, err := s.versionOf(ctx, m, h)
	if err != nil || v == nil {
		return nil, err
	}
	return ofVersion(m, v), nil
}

// withEffects adds the effects to an event that is known already.
func (s *Sources) withEffects(ctx context.Context, t *thing) (*thing, error) {
	runs, err := s.Ledger.Links(ctx, string(api.KindEvent)+"/"+t.ref.at)
	for _, name := range runs {
		if to, err := parseRef(name); err == nil && to.kind == api.KindRun {
			t.effect(api.EdgeAsked, to, nil)
		}
	}
	return t, err
}

// event returns an event that was scored, or that asked for runs: the facts of the runs describe
// it.
func (s *Sources) event(ctx context.Context, r ref) (*thing, error) {
	if at, is := broker.ParsePlace(r.at); is {
		if found, err := s.scored(ctx, r, at); err != nil || found != nil {
			return found, err
		}
	}
	names, err := s.Ledger.Links(ctx, string(api.KindEvent)+"/"+r.at)
	if err != nil {
		return nil, err
	}
	names = names[:min(len(names), mostEffects)]
	if err := s.gather(ctx, linksTo(names), true); err != nil {
		return nil, err
	}
	var e *thing
	for _, name := range names {
		found, err := s.eventOf(ctx, name, r)
		switch {
		case err != nil:
			return nil, err
		case found == nil:
			continue
		case e == nil:
			e = found
		case e.ref != found.ref:
			e.note(found.ref.String() + " is another event of the same id: ask for it with its source")
			continue
		}
		e.effect(api.EdgeAsked, runRef(name[len(api.KindRun)+1:]), nil)
	}
	return e, nil
}

// eventOf returns an event as a run that it asked for knows it; nil if the run does not name it, or
// the caller may not see the run.
func (s *Sources) eventOf(ctx context.Context, name string, r ref) (*thing, error) {
	to, err := parseRef(name)
	if err != nil || to.kind != api.KindRun {
		return nil, nil
	}
	run, err := s.runOf(ctx, to.of)
	if err != nil || run == nil || !s.MayRead(tidemill.OwnerOf(run.Recipe, run.Key)) {
		return nil, err
	}
	read, err := s.askedFor(ctx, run)
	if err != nil {
		return nil, err
	}
	for _, e := range ofAsked(run, read) {
		if e.ref.at == r.at && (r.of == "" || r.of == e.ref.of) {
			return e, nil
		}
	}
	return nil, nil
}

// commitNamed finds a commit by the name of a branch, or by the beginning of an id. Without the
// dataset, only a run that learnt from the commit can give the dataset.
func (s *Sources) commitNamed(ctx context.Context, r ref) (*thing, error) {
	if r.of == "" {
		var err error
		if r.of, err = s.datasetOf(ctx, r.at); err != nil || r.of == "" {
			return nil, err
		}
	}
	if s.Store == nil || !s.MayReadData(r.of) {
		return nil, nil
	}
	c, err := s.Store.Head(ctx, r.of, r.at)
	if errors.Is(err, store.ErrNotFound) {
		c, err = s.Store.FindCommit(ctx, r.of, r.at)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.tellCommit(ctx, &c, true)
}

func (s *Sources) datasetOf(ctx context.Context, commit string) (string, error) {
	names, err := s.Ledger.Links(ctx, commitRef("", commit).String())
	if err != nil || len(names) == 0 {
		return "", err
	}
	to, err := parseRef(names[0])
	if err != nil || to.kind != api.KindRun {
		return "", nil
	}
	run, err := s.run(ctx, link{to: to}, wantedSides{back: true})
	if err != nil || run == nil {
		return "", err
	}
	for _, l := range run.causes {
		if l.to.kind == api.KindCommit && l.to.at == commit {
			return l.to.of, nil
		}
	}
	return "", nil
}

// commit returns the commit to which a link leads. It accepts only a whole id, because any client
// can publish an event that names a commit, and the beginning of an id may fit several.
func (s *Sources) commit(ctx context.Context, l link, onwards bool) (*thing, error) {
	if s.Store == nil || l.to.of == "" {
		return l.linked, nil
	}
	c, err := s.Store.FindCommit(ctx, l.to.of, l.to.at)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) || err == nil && c.ID != l.to.at {
		if l.linked != nil {
			l.linked.note(fmt.Sprintf("%s is no longer in the store: it is shown from the data of its run", l.linked.node.Title))
		}
		return l.linked, nil
	}
	if err != nil {
		return nil, err
	}
	return s.tellCommit(ctx, &c, onwards)
}

// tellCommit returns a commit, with its effects if they are wanted.
func (s *Sources) tellCommit(ctx context.Context, c *api.Commit, onwards bool) (*thing, error) {
	t := ofCommit(c)
	if !onwards {
		return t, nil
	}
	runs, err := s.Ledger.Links(ctx, commitRef("", c.ID).String())
	if err != nil {
		return nil, err
	}
	for _, name := range runs {
		if to, err := parseRef(name); err == nil && to.kind == api.KindRun {
			t.effect(api.EdgeTaught, to, nil)
		}
	}
	event := announcementOf(s.Names, c)
	heard, err := s.Ledger.Links(ctx, string(api.KindEvent)+"/"+event.ref.at)
	if err == nil && len(heard) > 0 {
		t.effect(api.EdgeTold, event.ref, event)
	}
	return t, err
}
