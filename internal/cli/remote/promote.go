package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func promoteCommand() command.Command {
	return command.Command{
		Name:    "models promote",
		Daily:   true,
		Short:   "promote",
		Args:    "MODEL@VERSION",
		Summary: "make a version the champion by hand",
		About: `The version waits for a person, or was the champion before. A version that its gate has
refused needs --force. If the champion changes meanwhile, nothing is done. It needs the
role approve.`,
		Examples: []command.Example{
			{"tidemill promote intent/bot-42@8", "a version that waits for a person"},
			{"tidemill promote intent/bot-42@newest --force --reason 'the test data was wrong'", "a version that the gate has refused"},
			{"tidemill promote intent/bot-42@8 --dry-run", "only check whether it is possible"},
		},
		Make: func() command.Program {
			return changing(&promotion{action: tidemill.ActionPromote, version: true})
		},
	}
}

func refuseCommand() command.Command {
	return command.Command{
		Name:    "models refuse",
		Short:   "refuse",
		Args:    "MODEL@VERSION",
		Summary: "refuse a version that waits for a person",
		About: `The champion stays. A canary can be refused as well. The reason is kept with the judgement
of the version, and in the event tidemill.model.refused. It needs the role approve.`,
		Examples: []command.Example{
			{"tidemill refuse intent/bot-42@8 --reason 'too few examples of refunds'", "a version that waits for a person"},
			{"tidemill refuse intent/bot-42@8 --dry-run", "only check whether it is possible"},
		},
		Make: func() command.Program {
			return changing(&promotion{action: tidemill.ActionRefuse, version: true})
		},
	}
}

func pinCommand() command.Command {
	return command.Command{
		Name:    "models pin",
		Short:   "pin",
		Args:    "MODEL[@VERSION]",
		Summary: "pin the champion of a model, or a version as its champion",
		About: `Versions that pass their gate meanwhile wait for a person. Promote a version that its
gate has refused before you pin it. It needs the role approve.`,
		Examples: []command.Example{
			{"tidemill pin intent/bot-42 --reason 'until the audit'", "the champion"},
			{"tidemill pin intent/bot-42@6", "an older version"},
		},
		Make: func() command.Program { return changing(&promotion{action: tidemill.ActionPin}) },
	}
}

func unpinCommand() command.Command {
	return command.Command{
		Name:    "models unpin",
		Short:   "unpin",
		Args:    "MODEL",
		Summary: "unpin a model: its gate decides again",
		About: `Versions that passed the gate during the pin still wait for a person. It needs the role
approve.`,
		Examples: []command.Example{{"tidemill unpin intent/bot-42", "its gate decides again"}},
		Make:     func() command.Program { return changing(&promotion{action: tidemill.ActionUnpin}) },
	}
}

// promotion is a call that changes the champion of a model, or its pin.
type promotion struct {
	action  tidemill.Action
	version bool // whether the call must name a version

	force, dryRun bool
	reason        string
}

// changing is the command of a promotion.
func changing(p *promotion) command.Program {
	return &request{flags: p.flags, accept: p.accept, do: p.do}
}

func (p *promotion) flags(f *command.FlagSet) {
	if p.action == tidemill.ActionPromote {
		f.Yes(&p.force, "force", "also a version that its gate has refused, or has not judged")
	}
	reasonFlag(f, &p.reason)
	f.Yes(&p.dryRun, "dry-run", "only show what would be done")
}

func (p *promotion) accept(positional []string) error {
	model, which, err := versionArg(positional[0])
	switch {
	case err != nil:
		return err
	case p.version && which == "":
		return command.Usagef("say which version: %s@newest, or one of those that tidemill models show %[1]s lists", model)
	case p.action == tidemill.ActionUnpin && which != "":
		return command.Usagef("give the model without a version: tidemill unpin %s", model)
	}
	return nil
}

func (p *promotion) do(ctx context.Context, c *call) error {
	ask, whole, err := p.asked(ctx, c.g, c.positional[0])
	if err != nil {
		return err
	}
	got, err := c.g.Promote(ctx, p.action, ask)
	if err != nil {
		if hint := hintOn(p.action, whole, ask.Version); hint != "" && client.Status(err) == http.StatusConflict {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	}
	fmt.Fprintf(c.Stdout, "%s %s\n", show.Harmless(got.Model), show.Harmless(got.Done))
	if next := p.next(&got); next != "" {
		fmt.Fprintln(c.Stderr, next)
	}
	return nil
}

// asked names the version by its number, and the champion that is seen now. The gateway refuses the
// request if the champion changes before.
func (p *promotion) asked(ctx context.Context, g *client.Gateway, name string) (ask api.PromotionAsked, whole *api.ModelWhole, err error) {
	model, which, err := versionArg(name)
	if err != nil {
		return ask, nil, err
	}
	found, err := g.Model(ctx, model, "")
	if err != nil {
		return ask, nil, err
	}
	whole = &found
	ask = api.PromotionAsked{Model: model, Basis: &whole.Champion, Force: p.force, Reason: p.reason, DryRun: p.dryRun}
	switch {
	case p.action == tidemill.ActionRollback && which == "":
		which = rollbackTo(whole)
	case p.action == tidemill.ActionPin && which == "":
		which = tidemill.WhichChampion
	case p.action == tidemill.ActionUnpin:
		return ask, whole, nil
	}
	ask.Version, err = findVersion(whole, which)
	return ask, whole, err
}

// rollbackTo returns the version that a rollback without a version is about: the canary, which it ends, or the previous
// champion.
func rollbackTo(m *api.ModelWhole) string {
	if m.Canary != nil {
		return strconv.Itoa(m.Canary.Version)
	}
	return tidemill.WhichPrevious
}

// hintOn suggests what to do about a refusal.
func hintOn(action tidemill.Action, m *api.ModelWhole, version int) string {
	name, h := show.Harmless(m.Name), m.Find(version)
	switch {
	case action == tidemill.ActionRefuse:
		return "tidemill models --awaiting lists those that wait for a person"
	case version != 0 && version == m.Champion:
		return "nothing needs to be done"
	case m.Pin != nil && action != tidemill.ActionPin:
		return "tidemill unpin " + name + " first"
	case action == tidemill.ActionUnpin:
		return ""
	case h == nil:
		return "tidemill models show " + name + " lists those that are stored"
	case action == tidemill.ActionPin && forceOf(h) != "":
		return fmt.Sprintf("tidemill models show %s@%d shows why; tidemill promote %[1]s@%[2]d --force promotes it anyway, and tidemill pin %[1]s keeps it", name, version)
	case action == tidemill.ActionRollback:
		return fmt.Sprintf("tidemill promote %s@%d%s promotes one that was never the champion", name, version, forceOf(h))
	case action == tidemill.ActionPromote && forceOf(h) != "":
		return fmt.Sprintf("tidemill models show %s@%d shows why, and --force promotes it anyway", name, version)
	}
	return ""
}

// next suggests the next command.
func (p *promotion) next(got *api.PromotionDone) string {
	name := show.Harmless(got.Model)
	switch {
	case p.dryRun:
		return "Next: the same without --dry-run."
	case p.action == tidemill.ActionPromote && got.Before != 0:
		return "Next: tidemill rollback " + name + " undoes it."
	case p.action == tidemill.ActionRefuse, p.action == tidemill.ActionRollback && got.Version != got.Champion:
		return fmt.Sprintf("Next: tidemill promote %s@%d --force promotes it anyway.", name, got.Version)
	case p.action == tidemill.ActionRollback:
		return fmt.Sprintf("Next: tidemill pin %s keeps it; otherwise the next version that passes replaces it.\n      The previous champion is now version %d: a rollback returns to it.", name, got.Before)
	case p.action == tidemill.ActionPin:
		return "Next: tidemill unpin " + name + " ends it."
	}
	return ""
}

func promotionsCommand() command.Command {
	return command.Command{
		Name:    "promotions",
		Lists:   true,
		Watched: true,
		Summary: "list the recipes with frozen promotions",
		Examples: []command.Example{
			{"tidemill promotions", "a table"},
			{"tidemill promotions -o json", "for a script"},
		},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) ([]api.Freeze, error) {
				all, err := g.Promotions(ctx)
				return all.Frozen, err
			}, freezeTable)
		},
	}
}

func freezeTable(all *[]api.Freeze) table {
	return table{none: "No promotions are frozen: versions that pass their gate are promoted.", rows: rowsOf(*all, func(f *api.Freeze) []string {
		return []string{frozenName(f.Recipe), ago(f.Since) + " ago", show.Harmless(orSomebody(f.By)), show.Harmless(f.Reason)}
	}, "RECIPE", "FROZEN", "BY", "")}
}

func frozenName(recipe string) string {
	if recipe == tidemill.AllRecipes {
		return "all recipes"
	}
	return show.Harmless(recipe)
}

func promotionsFreezeCommand() command.Command {
	return command.Command{
		Name:    "promotions freeze",
		Summary: "freeze promotions by gates",
		About: `It is for one recipe or for all. Runs continue and are judged. Versions that pass wait
for a person. Promotions, rollbacks and pins by hand are still possible. It needs the
role approve, for all keys.`,
		Examples: []command.Example{
			{"tidemill promotions freeze --reason 'an incident'", "of all recipes"},
			{"tidemill promotions freeze --recipe intent", "of one"},
		},
		Make: func() command.Program {
			return freezing((*client.Gateway).FreezePromotions, "frozen", "were frozen already")
		},
	}
}

func promotionsThawCommand() command.Command {
	return command.Command{
		Name:    "promotions thaw",
		Summary: "thaw promotions",
		About: `Versions that passed during the freeze still wait for a person: tidemill models
--awaiting lists them. It needs the role approve, for all keys.`,
		Examples: []command.Example{{"tidemill promotions thaw", "of all recipes"}, {"tidemill promotions thaw --recipe intent", "of one"}},
		Make: func() command.Program {
			return freezing((*client.Gateway).ThawPromotions, "thawed", "were not frozen")
		},
	}
}

// freezing is a command that freezes or thaws promotions.
func freezing(do func(*client.Gateway, context.Context, api.FreezeAsked) (api.Rested, error), done, already string) command.Program {
	var ask api.FreezeAsked
	flags := func(f *command.FlagSet) {
		f.Text(&ask.Recipe, "recipe", "r", "NAME", "only for this recipe (default: for all)")
		reasonFlag(f, &ask.Reason)
	}
	return &request{flags: flags, do: func(ctx context.Context, c *call) error {
		got, err := do(c.g, ctx, ask)
		if err != nil {
			return err
		}
		if err := tellSwitched(c.Stdout, &got, "promotions of "+frozenName(got.Name), done, already); err != nil {
			return err
		}
		all, err := c.g.Promotions(ctx)
		if err != nil {
			return err
		}
		adviseOnFreezes(c.Stderr, ask.Recipe, &all)
		return nil
	}}
}

// adviseOnFreezes says what else is frozen: a freeze of all recipes and a freeze of one recipe are
// independent.
func adviseOnFreezes(w io.Writer, recipe string, all *api.Promotions) {
	for _, f := range all.Frozen {
		switch {
		case f.Recipe == tidemill.AllRecipes && recipe != "":
			fmt.Fprintf(w, "Promotions of all recipes are still frozen, by %s: tidemill promotions thaw ends that.\n", show.Harmless(orSomebody(f.By)))
		case f.Recipe != tidemill.AllRecipes && recipe == "":
			fmt.Fprintf(w, "Promotions of recipe %s are also frozen separately, by %s.\n", show.Harmless(f.Recipe), show.Harmless(orSomebody(f.By)))
		}
	}
}

func rollbackCommand() command.Command {
	return command.Command{
		Name:    "models rollback",
		Short:   "rollback",
		Daily:   true,
		Args:    "[MODEL[@VERSION]]",
		Summary: "roll back a model, or all promotions since a time",
		About: `With MODEL, its previous champion becomes the champion again, or VERSION, which must have
been the champion before. The next version that passes its gate replaces it: pin it, or
freeze promotions, to keep it. If the model has a canary, MODEL alone ends the canary, and
the champion stays.

Without MODEL, the flags select models. It skips models whose champion has not changed
since --since. A second call changes nothing. Freeze promotions before it (tidemill
promotions freeze), or the next version that passes replaces the champion. It skips keys
that you may not approve for. Both need the role approve.`,
		Examples: []command.Example{
			{"tidemill rollback intent/bot-42 --reason 'it answers greet to every message'", "to the previous champion"},
			{"tidemill rollback intent/bot-42@3", "to a given version"},
			{"tidemill rollback --recipe intent --since -2h --dry-run", "only list the models of a recipe"},
			{"tidemill rollback --recipe intent --since -2h --reason 'a bad image'", "promotions of the last two hours"},
			{"tidemill rollback --since '2026-11-22 02:00' --where \"subject LIKE 'bot-%'\" --dry-run", "by a condition"},
		},
		Make: func() command.Program {
			p := &rollback{promotion: promotion{action: tidemill.ActionRollback}}
			return &request{flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

// rollback is a call that rolls back one model, or many.
type rollback struct {
	promotion
	ask   api.RollbackAsked // request for many
	since string
}

func (p *rollback) flags(f *command.FlagSet) {
	f.Text(&p.since, "since", "", "TIME", "promotions since then: -1h or a time")
	modelFlags(f, &p.ask.Recipe, &p.ask.Key, &p.ask.Prefix)
	f.Text(&p.ask.Where, "where", "", "CONDITION", "only models for which this is true, in CloudEvents SQL over subject (the key), recipe, model")
	f.Yes(&p.ask.All, "all", "all models")
	p.promotion.flags(f)
}

func (p *rollback) accept(positional []string) (err error) {
	selects := p.ask.Recipe+p.ask.Key+p.ask.Prefix+p.ask.Where != ""
	switch many := selects || p.ask.All || p.since != ""; {
	case len(positional) > 0 && many:
		return command.Usagef("give a model, or flags that select models, and not both")
	case len(positional) > 0:
		return p.promotion.accept(positional)
	case !many:
		return command.Usagef("MODEL is missing; to roll back many, give --since -2h and a flag such as --recipe NAME")
	case p.since == "":
		return command.Usagef("--since is missing: promotions after it are rolled back; give --since -2h, or a time")
	case p.ask.All == selects:
		return command.Usagef("say which models: a flag such as --recipe NAME, or --all and nothing else")
	}
	if _, err := parseFilter(p.ask.Where); err != nil {
		return err
	}
	if p.ask.Since, err = follow.ParseTime(p.since, time.Now()); err != nil {
		return command.Usagef("--since %v", err)
	}
	return nil
}

// do rolls back one model, or the selected ones page by page.
func (p *rollback) do(ctx context.Context, c *call) error {
	if len(c.positional) > 0 {
		return p.promotion.do(ctx, c)
	}
	p.ask.Reason, p.ask.DryRun = p.reason, p.dryRun
	named, sum := client.NewAsking(), promotionSum{out: c.Stdout}
	for again := true; again; again = p.ask.After != "" {
		got, err := c.g.RollbackModels(ctx, named, p.ask)
		if err != nil {
			if !p.ask.DryRun {
				sum.end(false)
			}
			return err
		}
		for i := range got.Models {
			sum.add(&got.Models[i])
		}
		p.ask.After = got.Next
	}
	if sum.total == 0 {
		fmt.Fprintf(c.Stderr, "No selected model has changed its champion since %s; tidemill models lists them, with --recipe, --key or --prefix.\n", clock(p.ask.Since))
		return nil
	}
	sum.end(p.ask.DryRun)
	if p.ask.DryRun {
		return nil // refusals are no failure of a dry run
	}
	return sum.failure()
}

// promotionSum prints the first results, and counts all.
type promotionSum struct {
	out            io.Writer
	total, refused int
}

func (m *promotionSum) add(d *api.PromotionDone) {
	if m.total++; m.total <= listedRuns {
		done := show.Harmless(d.Done)
		if d.Refused {
			done = "skipped: " + done
		}
		fmt.Fprintf(m.out, "%s  %s\n", show.Harmless(d.Model), done)
	}
	if d.Refused {
		m.refused++
	}
}

// end prints the totals, if there is more than one result.
func (m *promotionSum) end(dryRun bool) {
	if m.total > listedRuns {
		fmt.Fprintf(m.out, "… and %s more\n", show.Thousands(int64(m.total-listedRuns)))
	}
	what := "rolled back"
	if dryRun {
		what = "would be rolled back"
	}
	if m.total > 1 {
		fmt.Fprintf(m.out, "%s: %s %s, %s skipped.\n", show.Count(m.total, "model"), show.Thousands(int64(m.total-m.refused)), what, show.Thousands(int64(m.refused)))
	}
	if dryRun && m.refused < m.total {
		fmt.Fprintln(m.out, "Next: the same without --dry-run, after tidemill promotions freeze.")
	}
}

// failure returns an error if all were refused.
func (m *promotionSum) failure() error {
	if m.total > 0 && m.refused == m.total {
		return command.ErrReported
	}
	return nil
}
