package registry

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
)

// threeVersions makes a model of three versions: the first was the champion, the second is, and the
// third was refused.
func threeVersions(t *testing.T) (*world, *Registrar) {
	t.Helper()
	w := newWorld(t)
	r := w.registrar()
	good := []string{"metrics.accuracy > 0.5"}
	w.finish(r, runEnd{model: "m", accuracy: 0.6, gate: good})
	w.finish(r, runEnd{model: "m", accuracy: 0.7, gate: good})
	w.finish(r, runEnd{model: "m", accuracy: 0.1, gate: good})
	if m := w.model(r, "m"); m.Champion != 2 || m.Previous != 1 || m.Last != 3 {
		t.Fatalf("the model is %+v", m)
	}
	return w, r
}

func basis(n int) *int { return &n }

// Each request is first a dry run, which has the same result and writes nothing to the log.
func TestWishes(t *testing.T) {
	t.Parallel()
	w, r := threeVersions(t)
	for _, c := range []struct {
		name     string
		wish     Wish
		err      error
		says     string
		champion int
		version  int
	}{
		{"of no model", Wish{Model: "none", Action: tidemill.ActionPromote, Version: 1}, ErrUnknown, "", 0, 0},
		{"of no version", Wish{Action: tidemill.ActionPromote, Version: 9}, ErrUnknown, "version 9", 2, 0},
		{"nothing awaits", Wish{Action: tidemill.ActionPromote}, ErrRefused, "no version waits", 2, 0},
		{"the champion again", Wish{Action: tidemill.ActionPromote, Version: 2}, ErrRefused, "is the champion", 2, 0},
		{"a refused one", Wish{Action: tidemill.ActionPromote, Version: 3}, ErrRefused, "it was not forced", 2, 0},
		{"seen another", Wish{Action: tidemill.ActionRollback, Basis: basis(1)}, ErrMoved, "you saw version 1", 2, 0},
		{"nothing is pinned", Wish{Action: tidemill.ActionUnpin}, nil, "", 2, 0},
		{"rollback", Wish{Action: tidemill.ActionRollback, Basis: basis(2), Reason: "it hurts", By: "ada"}, nil, "", 1, 1},
		{"pin a refused one", Wish{Action: tidemill.ActionPin, Version: 3, By: "ada"}, ErrRefused, "promoted before it can be pinned", 1, 0},
		{"forced", Wish{Action: tidemill.ActionPromote, Version: 3, Force: true, By: "ada"}, nil, "", 3, 3},
		{"pin", Wish{Action: tidemill.ActionPin, By: "ada"}, nil, "", 3, 3},
		{"pinned already", Wish{Action: tidemill.ActionPin, By: "bob"}, nil, "", 3, 3},
		{"while pinned", Wish{Action: tidemill.ActionRollback}, ErrRefused, "is pinned", 3, 0},
		{"pin another", Wish{Action: tidemill.ActionPin, Version: 2, By: "ada"}, nil, "", 2, 2},
		{"unpin", Wish{Action: tidemill.ActionUnpin, By: "ada"}, nil, "", 2, 0},
	} {
		if c.wish.Model == "" {
			c.wish.Model = "m"
		}
		dry := c.wish
		dry.DryRun = true
		before := len(w.factsOf("m"))
		would, wouldErr := r.Wish(w.ctx(), dry)
		if len(w.factsOf("m")) != before {
			t.Errorf("%s: a dry run is on the log", c.name)
		}
		a, err := r.Wish(w.ctx(), c.wish)
		if !errors.Is(err, c.err) || (err == nil) != (wouldErr == nil) || err != nil && (!strings.Contains(err.Error(), c.says) || err.Error() != wouldErr.Error()) {
			t.Errorf("%s: %v, and a dry run: %v", c.name, err, wouldErr)
			continue
		}
		if err != nil {
			if len(w.factsOf("m")) != before {
				t.Errorf("%s: what is refused is on the log", c.name)
			}
			continue
		}
		if a.Model.Champion != c.champion || a.Version != c.version || would.Version != a.Version || would.Before != a.Before || would.Model.Champion != c.champion {
			t.Errorf("%s: %+v of model %+v, and a dry run %+v", c.name, a, a.Model, would)
		}
	}
	m := w.model(r, "m")
	if m.Champion != 2 || m.Pin != nil || len(m.Owed) > 0 {
		t.Errorf("the model is %+v", m)
	}
	w.checkWishes()
}

// checkWishes checks the announcements of people's requests.
func (w *world) checkWishes() {
	w.Helper()
	all := w.factsOf("m")
	n := types(all)
	if n["rolled-back"] != 1 || n["pinned"] != 2 || n["unpinned"] != 1 || n["promoted"] != 3 {
		w.Errorf("the log tells of %v", n)
	}
	back := one(all, tidemill.TypeModelRolledBack)
	by, _ := back.Attribute(tidemill.AttrAuthID)
	number, _ := back.Attribute(tidemill.AttrModelVersion)
	if by != "ada" || number != "1" || back.Source != "/tidemill/tidemill/gateway" || !strings.Contains(string(back.Data), "it hurts") || !strings.Contains(string(back.Data), "artifact") {
		w.Errorf("the rollback is told as %+v %s", back, back.Data)
	}
}

// A request that is repeated because its answer was lost is one request.
func TestAWishSaidAgainIsOne(t *testing.T) {
	t.Parallel()
	w, r := threeVersions(t)
	back := Wish{Model: "m", Action: tidemill.ActionRollback, ID: "w1", By: "ada"}
	first, err := r.Wish(w.ctx(), back)
	w.must(err)
	again, err := w.registrar().Wish(w.ctx(), back)
	if err != nil || again.Version != 1 || again.Before != 2 || again.Model.Champion != 1 || again.Model.Turn != first.Model.Turn {
		t.Errorf("said again it is %+v: %v", again, err)
	}
	if n := types(w.factsOf("m")); n["rolled-back"] != 1 {
		t.Errorf("the log tells of %v", n)
	}
}

// A repeat finds its state reached, also after another change of the champion, and changes nothing.
func TestARepeatedUnpinOrRefusalIsDone(t *testing.T) {
	t.Parallel()
	w, r := threeVersions(t)
	w.finish(r, runEnd{model: "m", accuracy: 0.9, promote: tidemill.PromoteManual})
	ask := func(wish Wish) (Answer, error) {
		wish.Model = "m"
		return r.Wish(w.ctx(), wish)
	}
	unpin := Wish{Action: tidemill.ActionUnpin, Basis: basis(2), ID: "u"}
	refuse := Wish{Action: tidemill.ActionRefuse, Version: 4, Basis: basis(2), ID: "r"}
	for _, wish := range []Wish{{Action: tidemill.ActionPin}, unpin, refuse, {Action: tidemill.ActionPromote, Version: 3, Force: true}} {
		_, err := ask(wish)
		w.must(err)
	}
	for _, wish := range []Wish{unpin, refuse} {
		if a, err := ask(wish); err != nil || a.Version != wish.Version || a.Model.Champion != 3 {
			t.Errorf("the repeat of %s: %+v: %v", wish.Action, a, err)
		}
	}
	if n := types(w.factsOf("m")); n["unpinned"] != 1 || n["refused"] != 2 {
		t.Errorf("the log tells of %v", n)
	}
	if _, err := r.Wish(w.ctx(), Wish{Model: "none", Action: tidemill.ActionUnpin}); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unpin of no model: %v", err)
	}
}

// A rollback without a version that ends a canary does nothing else: neither if it is repeated, nor if another
// process ends the canary at the same time.
func TestARollbackEndsOnlyTheCanary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, other := w.registrar(), w.registrar()
	w.finish(r, runEnd{model: "m"})
	w.finish(r, runEnd{model: "m"})
	roll := func(r *Registrar, id string) (Answer, error) {
		return r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionRollback, ID: id})
	}
	for i, c := range []struct {
		meanwhile func() error // what another process does before the request is on the log
		err       error
	}{
		{func() error { return nil }, nil},
		{func() error { _, err := roll(other, "w1"); return err }, nil},
		{func() error { _, err := roll(other, "other"); return err }, ErrRefused},
		{func() error { return other.Settle(w.ctx(), "m", 6, tidemill.Judgement{}) }, ErrRefused},
	} {
		id, version := fmt.Sprint("w", i), i+3
		w.finish(r, runEnd{model: "m", canary: &tidemill.Canary{Share: 0.1}})
		r.step = func(s step) {
			if s == toPropose {
				r.step = func(step) {}
				w.must(c.meanwhile())
			}
		}
		for _, r := range []*Registrar{r, other} { // the second request repeats the first
			a, err := roll(r, id)
			if m := w.model(r, "m"); !errors.Is(err, c.err) || err == nil && a.Version != version || m.Champion != 2 || m.Canary != nil {
				t.Fatalf("version %d: %+v: %v; the model is %+v", version, a, err, m)
			}
		}
	}
}

// A repeat changes nothing, also after another request has undone what the first one did.
func TestARepeatDoesNotUndoWhatCameLater(t *testing.T) {
	t.Parallel()
	w, r := threeVersions(t)
	pin := Wish{Model: "m", Action: tidemill.ActionPin, ID: "p"}
	unpin := Wish{Model: "m", Action: tidemill.ActionUnpin, ID: "p"} // another action with the same key is another request
	pinAgain := Wish{Model: "m", Action: tidemill.ActionPin, ID: "p2"}
	for i, wish := range []Wish{pin, unpin, pin, pinAgain, unpin, pin} {
		if _, err := r.Wish(w.ctx(), wish); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if m := w.model(r, "m"); (m.Pin != nil) != slices.Contains([]int{0, 3, 4, 5}, i) {
			t.Errorf("after request %d the pin is %v", i, m.Pin)
		}
	}
	if n := types(w.factsOf("m")); n["pinned"] != 2 || n["unpinned"] != 1 {
		t.Errorf("the log tells of %v", n)
	}
}

// Two people ask for different champions at the same time. A request may name the champion that its
// author saw. Such a request fails if another request has changed the champion meanwhile; a request
// that names none succeeds.
func TestWishesRace(t *testing.T) {
	t.Parallel()
	w, r := threeVersions(t)
	other := w.registrar()
	between := func(then Wish) {
		r.step = func(s step) {
			if s == toPropose {
				r.step = func(step) {}
				_, err := other.Wish(w.ctx(), then)
				w.must(err)
			}
		}
	}
	between(Wish{Model: "m", Action: tidemill.ActionRollback})
	if _, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote, Version: 3, Force: true, Basis: basis(2)}); !errors.Is(err, ErrMoved) {
		t.Errorf("who saw version 2 is told %v", err)
	}
	between(Wish{Model: "m", Action: tidemill.ActionPromote, Version: 2})
	a, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote, Version: 3, Force: true})
	if err != nil || a.Before != 2 || a.Model.Champion != 3 {
		t.Errorf("who did not say gets %+v: %v", a, err)
	}
	between(Wish{Model: "m", Action: tidemill.ActionRollback})
	if a, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionRollback}); !errors.Is(err, ErrMoved) {
		t.Errorf("who wants back from what somebody else has taken back gets %+v: %v", a, err)
	}
}

// A version that passes waits for a person if promotions are frozen or manual. The test then
// refuses one version and promotes the other, as a person.
func TestWhatIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	w.act(tidemill.TypePromotionsFrozen, "intent", "ada")
	w.finish(r, runEnd{model: "m", accuracy: 0.9})
	if v := w.versionRecord(r, "m", 1); v.State != tidemill.VersionAwaiting || !strings.Contains(v.Judgement.Sentence, "frozen by ada since 2026-11-22T03:00:00Z") {
		t.Errorf("frozen it is %s: %+v", v.State, v.Judgement)
	}
	w.act(tidemill.TypePromotionsThawed, "intent", "ada")
	w.finish(r, runEnd{model: "m", accuracy: 0.9, promote: tidemill.PromoteManual})
	if v := w.versionRecord(r, "m", 2); v.State != tidemill.VersionAwaiting || !strings.Contains(v.Judgement.Sentence, "promote: manual") {
		t.Errorf("by hand it is %s: %+v", v.State, v.Judgement)
	}
	no := Wish{Model: "m", Action: tidemill.ActionRefuse, Version: 1, By: "bob", Reason: "too few refunds"}
	would := no
	would.DryRun = true
	for _, wish := range []Wish{would, no, no} { // the second refusal changes nothing
		if a, err := r.Wish(w.ctx(), wish); err != nil || a.Version != 1 || a.Model.Champion != 0 {
			t.Errorf("refused it is %+v: %v", a, err)
		}
	}
	if v := w.versionRecord(r, "m", 1); v.State != tidemill.VersionRefused || v.Judgement.Passed || !strings.HasSuffix(v.Judgement.Sentence, "; refused by bob: too few refunds") {
		t.Errorf("refused it is %s: %+v", v.State, v.Judgement)
	}
	a, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote, By: "ada"})
	if err != nil || a.Model.Champion != 2 {
		t.Errorf("the newest that awaits a promotion: %+v: %v", a, err)
	}
	if n := types(w.factsOf("m")); n["awaiting"] != 2 || n["promoted"] != 1 || n["refused"] != 1 {
		t.Errorf("the log tells of %v", n)
	}
	if _, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionRefuse, Version: 2}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "is promoted, and only a version that waits") {
		t.Errorf("refusing the champion: %v", err)
	}
}
