package lineage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/api"
)

func numbered(n int) ref { return ref{api.KindRun, fmt.Sprintf("run-%05d", n), ""} }

// chainedRun returns a run that the run before has made, and that makes the next.
func chainedRun(n int) *thing {
	t := newThing(numbered(n), fmt.Sprint("run ", n))
	t.key = "k"
	t.cause(api.EdgeMade, numbered(n-1), nil)
	t.effect(api.EdgeMade, numbered(n+1), nil)
	return t
}

func everything(*thing) bool { return true }

func numberOf(r ref) (n int) {
	_, _ = fmt.Sscanf(r.of, "run-%d", &n)
	return n
}

func lookChain(_ context.Context, l link, _ bool) (*thing, error) {
	return chainedRun(numberOf(l.to)), nil
}

func TestAWalkEnds(t *testing.T) {
	t.Parallel()
	g, err := walkFrom(t.Context(), chainedRun(1000), oneByOne(lookChain), everything)
	if err != nil || len(g.Nodes) != 1+2*mostSteps || len(g.Edges) != 2*mostSteps {
		t.Errorf("%v: %d nodes, %d edges", err, len(g.Nodes), len(g.Edges))
	}
	if want := []string{"2 things or more are more than 12 steps away: left out; ask about one that is nearer"}; !slices.Equal(g.Notes, want) {
		t.Errorf("it notes %q", g.Notes)
	}
}

// The limits of a thing with very many causes and effects leave room for both sides.
func TestAWalkIsBounded(t *testing.T) {
	t.Parallel()
	hub := newThing(numbered(0), "hub")
	for i := range 1000 {
		hub.cause(api.EdgeTaught, numbered(1+i), nil)
		hub.effect(api.EdgeMade, numbered(2001+i), nil)
	}
	leaf := func(_ context.Context, l link, back bool) (*thing, error) {
		t := newThing(l.to, "a leaf")
		if !back {
			for i := range 1000 {
				t.effect(api.EdgeMade, numbered(10_000*numberOf(l.to)+i), nil)
			}
		}
		return t, nil
	}
	g, err := walkFrom(t.Context(), hub, oneByOne(leaf), everything)
	if err != nil || len(g.Nodes) != mostNodes {
		t.Errorf("%v: %d nodes", err, len(g.Nodes))
	}
	ahead := 0
	for _, e := range g.Edges {
		if e.From == hub.node.ID {
			ahead++
		}
	}
	notes := strings.Join(g.Notes, "\n")
	if ahead != mostEffects || !strings.Contains(notes, "960 more effects of hub are left out") || !strings.Contains(notes, "are left out: at most 200 are shown at once") {
		t.Errorf("%d came of the hub; it notes %q", ahead, g.Notes)
	}
}

func TestWhatMayNotBeReadIsNotGoneThrough(t *testing.T) {
	t.Parallel()
	find := func(_ context.Context, l link, _ bool) (*thing, error) {
		next := chainedRun(numberOf(l.to))
		if numberOf(l.to) == 997 {
			next.key = "another's"
		}
		return next, nil
	}
	g, err := walkFrom(t.Context(), chainedRun(1000), oneByOne(find), func(t *thing) bool { return t.key == "k" })
	if err != nil || !slices.Contains(g.Notes, "one thing belongs to a key that you may not read: left out") {
		t.Errorf("%v, %q", err, g.Notes)
	}
	for _, n := range g.Nodes {
		if n.ID <= "run/run-00997" {
			t.Errorf("it tells of %s", n.ID)
		}
	}
}

// A thing that others name and no source knows is shown with its name, or with the data of the
// others.
func TestWhatIsLostIsNamed(t *testing.T) {
	t.Parallel()
	subject := newThing(numbered(0), "subject")
	known := newThing(numbered(2), "what is known of 2")
	subject.cause(api.EdgeMade, numbered(1), nil)
	subject.cause(api.EdgeMade, numbered(2), known)
	subject.causes = append(subject.causes, link{to: numbered(3), what: api.EdgeJudged, leaf: true})
	find := func(_ context.Context, l link, _ bool) (*thing, error) {
		if numberOf(l.to) == 3 {
			return chainedRun(3), nil
		}
		return nil, nil
	}
	g, err := walkFrom(t.Context(), subject, oneByOne(find), everything)
	if err != nil || len(g.Nodes) != 4 || g.Nodes[1].Title != "run/run-00001" || g.Nodes[2].Title != "what is known of 2" || len(g.Notes) != 2 {
		t.Errorf("%v, %+v", err, g)
	}
	failed := errors.New("no Redis")
	if _, err := walkFrom(t.Context(), chainedRun(1), oneByOne(func(context.Context, link, bool) (*thing, error) { return nil, failed }), everything); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// oneByOne returns hooks that do nothing before a lookUp.
func oneByOne(l lookUp) lookUpHooks {
	return lookUpHooks{func(context.Context, []link, bool) error { return nil }, l}
}
