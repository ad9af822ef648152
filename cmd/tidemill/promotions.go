package main

import (
	"context"
	"fmt"
	"io"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func promotionsCommand() command {
	return command{
		name:    "promotions",
		summary: "say whose promotions are frozen",
		about:   atTheGate,
		examples: []example{
			{"tidemill promotions", "a table"},
			{"tidemill promotions -o json", "for a script"},
		},
		make: func() program { return &standingList{output: "text", list: listFreezes} },
	}
}

func listFreezes(ctx context.Context, g *remote.Gateway) (any, [][]string, string, error) {
	all, err := g.Promotions(ctx)
	rows := [][]string{{"RECIPE", "FROZEN", "BY", ""}}
	for i := range all.Frozen {
		f := &all.Frozen[i]
		rows = append(rows, []string{frozenName(f.Recipe), ago(f.Since) + " ago", harmless(orSomebody(f.By)), harmless(f.Reason)})
	}
	return all.Frozen, rows, "No promotions are frozen: what passes its gate is promoted.", err
}

func frozenName(recipe string) string {
	if recipe == tidemill.AllRecipes {
		return "all recipes"
	}
	return harmless(recipe)
}

func promotionsFreezeCommand() command {
	return command{
		name:    "promotions freeze",
		summary: "have no gate promote anything until it is thawed",
		about: `Of a recipe, or of all. Runs go on and are judged; what passes awaits a person. Promotions,
rollbacks and pins by hand go on too. It needs the role approve, for all keys.

` + atTheGate,
		examples: []example{
			{"tidemill promotions freeze --reason 'an incident'", "of all recipes"},
			{"tidemill promotions freeze --recipe intent", "of one"},
		},
		make: func() program {
			return &freezing{do: (*remote.Gateway).FreezePromotions, done: "frozen", already: "were frozen already"}
		},
	}
}

func promotionsThawCommand() command {
	return command{
		name:    "promotions thaw",
		summary: "have gates promote again",
		about: `What has passed meanwhile still awaits a person: tidemill models --awaiting lists it. It
needs the role approve, for all keys.

` + atTheGate,
		examples: []example{{"tidemill promotions thaw", "of all recipes"}, {"tidemill promotions thaw --recipe intent", "of one"}},
		make: func() program {
			return &freezing{do: (*remote.Gateway).ThawPromotions, done: "thawed", already: "were not frozen"}
		},
	}
}

// freezing is a call that freezes or thaws.
type freezing struct {
	gate
	ask           api.FreezeAsked
	do            func(*remote.Gateway, context.Context, api.FreezeAsked) (api.Rested, error)
	done, already string
}

func (p *freezing) flags(f *flagSet) {
	f.text(&p.ask.Recipe, "recipe", "r", "NAME", "of this recipe alone")
	f.text(&p.ask.Reason, "reason", "", "TEXT", "why, for whoever looks at it later")
	p.gate.flags(f)
}

func (*freezing) accept(positional []string) error {
	if len(positional) == 1 {
		return usagef("%q is one argument too many; a recipe is given by --recipe %s", positional[0], positional[0])
	}
	return wants(positional)
}

func (p *freezing) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	got, err := p.do(g, ctx, p.ask)
	if err != nil {
		return err
	}
	if err := p.tell(s.stdout, &got); err != nil {
		return err
	}
	all, err := g.Promotions(ctx)
	if err != nil {
		return err
	}
	adviseOnFreezes(s.stderr, p.ask.Recipe, &all)
	return nil
}

func (p *freezing) tell(w io.Writer, got *api.Rested) error {
	what := "promotions of " + frozenName(got.Name)
	if got.Changed {
		_, err := fmt.Fprintf(w, "%s %s\n", p.done, what)
		return err
	}
	_, err := fmt.Fprintf(w, "%s %s\n", what, p.already)
	return err
}

// adviseOnFreezes says what is frozen all the same: a recipe's freeze and that of
// all are two.
func adviseOnFreezes(w io.Writer, recipe string, all *api.Promotions) {
	for _, f := range all.Frozen {
		switch {
		case f.Recipe == tidemill.AllRecipes && recipe != "":
			fmt.Fprintf(w, "Those of all recipes are frozen, by %s: tidemill promotions thaw ends that.\n", harmless(orSomebody(f.By)))
		case f.Recipe != tidemill.AllRecipes && recipe == "":
			fmt.Fprintf(w, "Those of recipe %s are frozen by themselves, by %s.\n", harmless(f.Recipe), harmless(orSomebody(f.By)))
		}
	}
}
