package lineage

import (
	"context"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
)

// gathered is what the ledger was asked for at once, because links lead there: to
// ask for each of a hundred runs, what came of them and their versions would be
// hundreds of questions. What is not here is asked for when it is its turn.
type gathered struct {
	runs     map[string]*tidemill.Run // nil if it is not known
	links    map[string][]string
	models   map[string]*tidemill.Model
	versions map[string]*ledger.VersionRecord // by model@number; nil if it is not kept
}

func newGathered() *gathered {
	return &gathered{runs: map[string]*tidemill.Run{}, links: map[string][]string{}, models: map[string]*tidemill.Model{}, versions: map[string]*ledger.VersionRecord{}}
}

// gather asks for what some links lead to.
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

// linksTo lead to things by their names.
func linksTo(names []string) (all []link) {
	for _, name := range names {
		if to, err := parseRef(name); err == nil {
			all = append(all, link{to: to})
		}
	}
	return all
}

// runOf is a run; nil if it is not known.
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

func (s *Sources) modelOf(ctx context.Context, name string) (*tidemill.Model, error) {
	if m := s.at.models[name]; m != nil {
		return m, nil
	}
	return s.Ledger.Model(ctx, name)
}

// versionOf is a version that a model holds; nil if it is let go meanwhile.
func (s *Sources) versionOf(ctx context.Context, m *tidemill.Model, h *tidemill.Held) (*ledger.VersionRecord, error) {
	if v, asked := s.at.versions[tidemill.VersionName(m.Name, h.Number)]; asked {
		return v, nil
	}
	all, err := s.Ledger.VersionsOf(ctx, []ledger.HeldBy{{Model: m.Name, Held: *h}})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}
