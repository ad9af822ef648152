package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// Wish is a person's request about a model.
type Wish struct {
	Model   string
	Action  tidemill.Action
	Version int  // 0 means the previous champion for a rollback, the champion for a pin, the newest waiting version for a promotion or a refusal
	Basis   *int // champion that the person saw; nil means any
	Force   bool
	Reason  string
	By      string
	ID      string // name of the request, so that a repeated one is the same request; empty means a random name
	DryRun  bool   // whether nothing is put on the log, and the answer is a forecast
}

// Answer is the result of a Wish.
type Answer struct {
	Model   *fold.Model
	Version int // version that the request changes
	Before  int // previous champion
}

// Wish proposes a person's request, and announces it once the log has accepted it. Errors wrap
// ErrUnknown, ErrRefused (with the fold's reason) and ErrMoved.
//
// An accepted request counts even if it cannot be announced yet. In this case the error is logged,
// and Watch announces the request.
func (r *Registrar) Wish(ctx context.Context, w Wish) (Answer, error) {
	if w.ID == "" {
		w.ID = rand.Text()
	}
	a, err := r.wish(ctx, w)
	if err != nil {
		return a, fmt.Errorf("%s model %s: %w", w.Action, w.Model, err)
	}
	return a, nil
}

func (r *Registrar) wish(ctx context.Context, w Wish) (Answer, error) {
	m, err := r.o.Ledger.Model(ctx, w.Model)
	if err != nil {
		return Answer{}, err
	}
	if a := asked(m, wishID(w)); a != nil && w.Version == 0 && w.Basis == nil { // a repeat means the same
		w.Version, w.Basis = a.Version, &a.Basis
	}
	if w.Version == 0 && w.Basis == nil { // it refers to the present champion: a second rollback at the same time would take back the first
		w.Basis = &m.Champion
	}
	if w.Version == 0 { // decided once: after the end of a canary, a rollback would take back the champion
		w.Version = defaultVersion(m, w.Action)
	}
	for range mostTurns {
		f, done, err := r.proposalFor(ctx, m, w)
		if f == nil || err != nil {
			return done, err
		}
		r.step(toPropose)
		s, now, err := r.publish(ctx, f)
		if err != nil {
			return Answer{}, err
		}
		if m = now; wasAccepted(m, s.view.ID, w, done.Version) {
			return Answer{r.announceResult(ctx, m, s), done.Version, done.Before}, nil
		}
	}
	return Answer{}, errTurns
}

// proposalFor returns the proposal, and the answer if the log accepts it. The proposal is nil if
// nothing has to be put on the log, because of a dry run or because it is done already.
func (r *Registrar) proposalFor(ctx context.Context, m *fold.Model, w Wish) (*fact, Answer, error) {
	id := wishID(w)
	if a := asked(m, id); a != nil && a.Accepted {
		return nil, Answer{m, a.Version, a.Basis}, nil
	}
	if m.Last > 0 && isReached(m, w, w.Version) {
		return nil, Answer{m, w.Version, m.Champion}, nil
	}
	p, err := proposalOf(m, w)
	if err != nil {
		return nil, Answer{}, err
	}
	f := &fact{typ: tidemill.TypeModelPromotionProposed, id: id, source: r.o.Names.Source(byGateway), model: m.Name, key: m.Key,
		version: p.Version, recipe: m.Recipe, by: w.By, chain: chain{correlation: id}, data: p}
	then, verdict, err := r.foldAhead(m, f)
	switch {
	case err != nil:
		return nil, Answer{}, err
	case verdict.Result == fold.Refused:
		return nil, Answer{}, fmt.Errorf("%w: %s", ErrRefused, verdict.Reason)
	}
	a := Answer{then, p.Version, m.Champion}
	if verdict.Result == fold.Known {
		return nil, a, nil
	}
	if p.Version != 0 {
		v, err := r.record(ctx, m.Name, p.Version)
		if err != nil {
			return nil, Answer{}, err
		}
		if v != nil {
			p.Origin, p.Artifact, p.Run = &v.Origin, v.Artifact, v.Run
			if w.Action == tidemill.ActionRefuse {
				p.Judgement = refusedBy(v.Judgement, w)
			}
			f.recipe, f.run, f.data = v.Recipe, v.Run, p
			if err := r.checkServed(ctx, m, w, v.Artifact); err != nil {
				return nil, Answer{}, err
			}
		}
	}
	if w.DryRun {
		f = nil
	}
	return f, a, nil
}

// refusedBy returns the judgement of a version that passed, as a person has refused it; nil if it has none.
func refusedBy(j *tidemill.Judgement, w Wish) *tidemill.Judgement {
	if j == nil {
		return nil
	}
	refused := *j
	refused.Passed = false
	refused.Sentence += "; refused by " + cmp.Or(w.By, "a person")
	if w.Reason != "" {
		refused.Sentence += ": " + w.Reason
	}
	return &refused
}

// checkServed refuses to promote a version whose model cannot be served now, unless the person
// forces it. The state of the installation may have changed since the version was judged.
func (r *Registrar) checkServed(ctx context.Context, m *fold.Model, w Wish, artifact string) error {
	if w.Action != tidemill.ActionPromote || w.Force {
		return nil
	}
	t, err := r.try(ctx, m.Name, m.Key, artifact, &tidemill.Report{})
	if err != nil || t == nil {
		return err
	}
	if reason := cmp.Or(t.Error, lackReason(t)); reason != "" {
		return fmt.Errorf("%w: its model cannot be served: %s; --force promotes it anyway", ErrRefused, reason)
	}
	return nil
}

// proposalOf returns a request as a proposal against the present model.
func proposalOf(m *fold.Model, w Wish) (tidemill.PromotionProposed, error) {
	p := tidemill.PromotionProposed{Action: w.Action, Version: w.Version, Basis: m.Champion, Turn: m.Turn, Force: w.Force, Reason: w.Reason}
	if m.Last == 0 {
		return p, ErrUnknown
	}
	if w.Basis != nil && *w.Basis != m.Champion {
		return p, fmt.Errorf("%w: it is version %d, and you saw version %d; look again", ErrMoved, m.Champion, *w.Basis)
	}
	if w.Action == tidemill.ActionUnpin {
		p.Version = 0
		return p, nil
	}
	switch {
	case p.Version == 0:
		return p, fmt.Errorf("%w: %s", ErrRefused, noVersionText(w.Action))
	case m.Find(p.Version) == nil:
		return p, fmt.Errorf("%w: version %d is not kept", ErrUnknown, p.Version)
	}
	return p, checkPassed(m.Find(p.Version), w)
}

// checkPassed refuses to pin a version that has not passed its gate. The version must be promoted by
// force first, so that a wrong number in a pin does not let a refused version serve.
func checkPassed(h *fold.Held, w Wish) error {
	if w.Action == tidemill.ActionPin && (h.State == tidemill.VersionRefused || h.State == tidemill.VersionRegistered || h.State == tidemill.VersionTrial) {
		return fmt.Errorf("%w: version %d is %s, and has to be promoted before it can be pinned", ErrRefused, h.Number, h.State)
	}
	return nil
}

// defaultVersion returns the version that a request without a version means; 0 if there is none.
func defaultVersion(m *fold.Model, a tidemill.Action) int {
	switch a {
	case tidemill.ActionRollback:
		if m.Canary != nil {
			return m.Canary.Version
		}
		return m.Previous
	case tidemill.ActionPin:
		return m.Champion
	case tidemill.ActionPromote, tidemill.ActionRefuse:
		for _, h := range slices.Backward(m.Versions) {
			if h.State == tidemill.VersionAwaiting {
				return h.Number
			}
		}
	}
	return 0
}

func noVersionText(a tidemill.Action) string {
	switch a {
	case tidemill.ActionRollback:
		return "there is no previous champion; name a version"
	case tidemill.ActionPin:
		return "there is no champion to pin; name a version"
	}
	return "no version waits for a person; name one"
}

// foldAhead folds a fact into a copy of the model. The log decides the same if no other fact comes
// first.
func (r *Registrar) foldAhead(m *fold.Model, f *fact) (*fold.Model, fold.ModelVerdict, error) {
	then, text := &fold.Model{}, []byte(nil)
	text, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, then)
	}
	if err == nil {
		text, err = json.Marshal(f.data)
	}
	if err != nil {
		return nil, fold.ModelVerdict{}, fmt.Errorf("foresee what becomes of it: %w", err)
	}
	v := then.Apply(fold.Fact{Offset: m.Next, ID: f.id, Type: f.typ, Model: f.model, Key: f.key, Run: f.run, By: f.by, At: r.now(), Data: text})
	return then, v, nil
}

// wasAccepted reports whether the log has accepted a request, or the model has the requested state by another request.
func wasAccepted(m *fold.Model, id string, w Wish, version int) bool {
	a := asked(m, id)
	return a != nil && a.Accepted || isReached(m, w, version)
}

// wishID returns the id of a request's proposal.
func wishID(w Wish) string { return tidemill.ID("wished", w.Model, string(w.Action), w.ID) }

// asked returns a request that is on the log; nil if there is none.
func asked(m *fold.Model, id string) *fold.Asked {
	if i := slices.IndexFunc(m.Asked, func(a fold.Asked) bool { return a.Proposal == id }); i >= 0 {
		return &m.Asked[i]
	}
	return nil
}

// isReached reports whether a model has the state that a request asks for, as a repeat of a pin, an unpin or a refusal
// finds it.
func isReached(m *fold.Model, w Wish, version int) bool {
	switch w.Action {
	case tidemill.ActionPin:
		return m.Pin != nil && m.Champion == version
	case tidemill.ActionUnpin:
		return m.Pin == nil
	case tidemill.ActionRefuse:
		h := m.Find(version)
		return h != nil && h.State == tidemill.VersionRefused
	}
	return false
}

// announceResult announces an accepted request, and returns the model.
func (r *Registrar) announceResult(ctx context.Context, m *fold.Model, s publishedFact) *fold.Model {
	now, err := r.announce(ctx, m, s, func(o fold.Owed) bool { return o.Proposal == s.view.ID })
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			r.log.Warn("registrar: announcing a change of a champion failed; retrying", "model", m.Name, "reason", err)
		}
		return m
	}
	return now
}

// ErrNoTrial reports that a version is not on trial any more.
var ErrNoTrial = errors.New("the version is not on trial")

// Conclusion is the end of a trial.
type Conclusion struct {
	Verdict  tidemill.TrialVerdict
	Clauses  []tidemill.Clause // clauses of the trial with their results
	Sentence string            // the verdict in words
}

// Conclude proposes the end of a trial, and announces the version's promotion or refusal. The log accepts the
// first end of a trial, and only if the champion is the one that the candidate was compared with: otherwise the
// error is ErrMoved.
func (r *Registrar) Conclude(ctx context.Context, v *ledger.VersionRecord, c Conclusion) (*fold.Model, error) {
	m, err := r.conclude(ctx, v, c)
	if err != nil {
		return nil, fmt.Errorf("end the trial of %s: %w", tidemill.VersionName(v.Model, v.Number), err)
	}
	return m, nil
}

func (r *Registrar) conclude(ctx context.Context, v *ledger.VersionRecord, c Conclusion) (*fold.Model, error) {
	m, err := r.o.Ledger.Model(ctx, v.Model)
	if err != nil {
		return nil, err
	}
	switch h := m.Find(v.Number); {
	case h == nil || h.State != tidemill.VersionTrial:
		return nil, ErrNoTrial
	case m.Champion != c.Verdict.Champion:
		return nil, fmt.Errorf("%w: the candidate was compared with version %d, and version %d is the champion now", ErrMoved, c.Verdict.Champion, m.Champion)
	}
	f := r.concludedFact(m, v, c)
	r.step(toPropose)
	ours, m, err := r.publish(ctx, f)
	if err != nil {
		return nil, err
	}
	if h := m.Find(v.Number); h != nil && h.State == tidemill.VersionTrial {
		return nil, ErrMoved
	}
	return r.announce(ctx, m, ours, func(o fold.Owed) bool { return o.Version == v.Number })
}

func (r *Registrar) concludedFact(m *fold.Model, v *ledger.VersionRecord, c Conclusion) *fact {
	var j tidemill.Judgement
	if v.Judgement != nil {
		j = *v.Judgement
	}
	j.Clauses = append(slices.Clone(j.Clauses), c.Clauses...)
	j.Passed, j.Sentence, j.Trial, j.Against = c.Verdict.Outcome == tidemill.TrialPassed, c.Sentence, &c.Verdict, m.Champion
	if j.Passed {
		j.Hold = holdReason(v.Judge.Promote, &v.Origin, r.o.Asked())
	}
	registered := tidemill.Cause{Source: r.o.Names.Source(byPromote), ID: tidemill.ID("registered", v.Model, v.Run)}
	return &fact{typ: tidemill.TypeModelPromotionProposed, id: tidemill.ID("concluded", m.Name, v.Run, strconv.FormatInt(m.Turn, 10)),
		source: r.o.Names.Source(byTrial), model: m.Name, key: m.Key, version: v.Number, recipe: v.Recipe, run: v.Run,
		chain: chain{cause: registered, correlation: registered.ID},
		data: tidemill.PromotionProposed{Action: tidemill.ActionConclude, Version: v.Number, Run: v.Run, Basis: m.Champion, Turn: m.Turn,
			Hold: j.Hold, Canary: v.Judge.Canary, Judgement: &j, Origin: &v.Origin, Artifact: v.Artifact}}
}

// Settle proposes the end of a canary: its promotion if the judgement has passed, else its refusal. It does nothing if
// the version is not the canary any more, and a second call changes nothing.
func (r *Registrar) Settle(ctx context.Context, model string, version int, j tidemill.Judgement) error {
	m, err := r.o.Ledger.Model(ctx, model)
	if err != nil || m.Canary == nil || m.Canary.Version != version {
		return err
	}
	v, err := r.record(ctx, model, version)
	if err != nil || v == nil {
		return err
	}
	p := tidemill.PromotionProposed{Action: tidemill.ActionSettle, Version: version, Run: v.Run, Basis: m.Champion, Turn: m.Turn, Judgement: &j, Origin: &v.Origin, Artifact: v.Artifact}
	if j.Passed {
		p.Hold = holdReason(v.Judge.Promote, &v.Origin, r.o.Asked())
	}
	id := tidemill.ID("settled", model, v.Run, strconv.FormatInt(m.Turn, 10))
	s, now, err := r.publish(ctx, &fact{typ: tidemill.TypeModelPromotionProposed, id: id, source: r.o.Names.Source(byPromote), model: model, key: m.Key,
		version: version, recipe: v.Recipe, run: v.Run, chain: chain{correlation: id}, data: p})
	if err != nil {
		return fmt.Errorf("settle the canary of model %s: %w", model, err)
	}
	_, err = r.announce(ctx, now, s, func(o fold.Owed) bool { return o.Proposal == id })
	return err
}
