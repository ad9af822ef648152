package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
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
role approve.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill promote intent/bot-42@8", "a version that waits for a person"},
			{"tidemill promote intent/bot-42@newest --force --reason 'the test data was wrong'", "a version that the gate has refused"},
			{"tidemill promote intent/bot-42@8 --dry-run", "only check whether it is possible"},
		},
		Make: func() command.Program {
			return &promotion{action: tidemill.ActionPromote, version: true}
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
gate has refused before you pin it. It needs the role approve.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill pin intent/bot-42 --reason 'until the audit'", "the champion"},
			{"tidemill pin intent/bot-42@6", "an older version"},
		},
		Make: func() command.Program { return &promotion{action: tidemill.ActionPin} },
	}
}

func unpinCommand() command.Command {
	return command.Command{
		Name:    "models unpin",
		Short:   "unpin",
		Args:    "MODEL",
		Summary: "unpin a model: its gate decides again",
		About: `Versions that passed the gate during the pin still wait for a person. It needs the role
approve.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill unpin intent/bot-42", "its gate decides again"}},
		Make:     func() command.Program { return &promotion{action: tidemill.ActionUnpin} },
	}
}

// promotion is a call that changes the champion of a model, or its pin.
type promotion struct {
	connect.Gate
	action  tidemill.Action
	version bool // whether the call must name a version

	force, dryRun bool
	reason        string
}

func (p *promotion) Flags(f *command.FlagSet) {
	if p.action == tidemill.ActionPromote {
		f.Yes(&p.force, "force", "also a version that its gate has refused, or has not judged")
	}
	f.Text(&p.reason, "reason", "", "TEXT", "reason, shown later with the change")
	f.Yes(&p.dryRun, "dry-run", "only show what would be done")
	p.Gate.Flags(f)
}

func (p *promotion) Accept(positional []string) error {
	if err := command.WantsVersions(positional, "MODEL"); err != nil {
		return err
	}
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

func (p *promotion) Run(ctx context.Context, s *command.Session, positional []string) error {
	g, done, err := p.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	ask, whole, err := p.asked(ctx, g, positional[0])
	if err != nil {
		return err
	}
	got, err := g.Promote(ctx, p.action, ask)
	if err != nil {
		if hint := hintOn(p.action, whole, ask.Version); hint != "" && client.Status(err) == http.StatusConflict {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	}
	fmt.Fprintf(s.Stdout, "%s %s\n", show.Harmless(got.Model), show.Harmless(got.Done))
	if next := p.next(&got); next != "" {
		fmt.Fprintln(s.Stderr, next)
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
		which = tidemill.WhichPrevious
	case p.action == tidemill.ActionPin && which == "":
		which = tidemill.WhichChampion
	case p.action == tidemill.ActionUnpin:
		return ask, whole, nil
	}
	ask.Version, err = findVersion(whole, which)
	return ask, whole, err
}

// hintOn suggests what to do about a refusal.
func hintOn(action tidemill.Action, m *api.ModelWhole, version int) string {
	name, h := show.Harmless(m.Name), m.Find(version)
	switch {
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
		About:   connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill promotions", "a table"},
			{"tidemill promotions -o json", "for a script"},
		},
		Make: func() command.Program { return &standingList{list: listFreezes} },
	}
}

func listFreezes(ctx context.Context, g *client.Gateway) (any, [][]string, string, error) {
	all, err := g.Promotions(ctx)
	rows := [][]string{{"RECIPE", "FROZEN", "BY", ""}}
	for i := range all.Frozen {
		f := &all.Frozen[i]
		rows = append(rows, []string{frozenName(f.Recipe), ago(f.Since) + " ago", show.Harmless(orSomebody(f.By)), show.Harmless(f.Reason)})
	}
	return all.Frozen, rows, "No promotions are frozen: versions that pass their gate are promoted.", err
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
role approve, for all keys.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill promotions freeze --reason 'an incident'", "of all recipes"},
			{"tidemill promotions freeze --recipe intent", "of one"},
		},
		Make: func() command.Program {
			return &freezing{do: (*client.Gateway).FreezePromotions, done: "frozen", already: "were frozen already"}
		},
	}
}

func promotionsThawCommand() command.Command {
	return command.Command{
		Name:    "promotions thaw",
		Summary: "thaw promotions",
		About: `Versions that passed during the freeze still wait for a person: tidemill models
--awaiting lists them. It needs the role approve, for all keys.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill promotions thaw", "of all recipes"}, {"tidemill promotions thaw --recipe intent", "of one"}},
		Make: func() command.Program {
			return &freezing{do: (*client.Gateway).ThawPromotions, done: "thawed", already: "were not frozen"}
		},
	}
}

// freezing is a call that freezes or thaws promotions.
type freezing struct {
	connect.Gate
	ask           api.FreezeAsked
	do            func(*client.Gateway, context.Context, api.FreezeAsked) (api.Rested, error)
	done, already string
}

func (p *freezing) Flags(f *command.FlagSet) {
	f.Text(&p.ask.Recipe, "recipe", "r", "NAME", "only for this recipe (default: for all)")
	f.Text(&p.ask.Reason, "reason", "", "TEXT", "reason, shown later with the change")
	p.Gate.Flags(f)
}

func (*freezing) Accept(positional []string) error {
	if len(positional) == 1 {
		return command.Usagef("%q is one argument too many; give a recipe by --recipe %s", positional[0], positional[0])
	}
	return command.Wants(positional)
}

func (p *freezing) Run(ctx context.Context, s *command.Session, _ []string) error {
	g, done, err := p.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	got, err := p.do(g, ctx, p.ask)
	if err != nil {
		return err
	}
	if err := p.tell(s.Stdout, &got); err != nil {
		return err
	}
	all, err := g.Promotions(ctx)
	if err != nil {
		return err
	}
	adviseOnFreezes(s.Stderr, p.ask.Recipe, &all)
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
freeze promotions, to keep it.

Without MODEL, the flags select models. It skips models whose champion has not changed
since --since. A second call changes nothing. Freeze promotions before it (tidemill
promotions freeze), or the next version that passes replaces the champion. It skips keys
that you may not approve for. Both need the role approve.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill rollback intent/bot-42 --reason 'it answers greet to every message'", "to the previous champion"},
			{"tidemill rollback intent/bot-42@3", "to a given version"},
			{"tidemill rollback --recipe intent --since -2h --dry-run", "only list the models of a recipe"},
			{"tidemill rollback --recipe intent --since -2h --reason 'a bad image'", "promotions of the last two hours"},
			{"tidemill rollback --since '2026-11-22 02:00' --where \"subject LIKE 'bot-%'\" --dry-run", "by a condition"},
		},
		Make: func() command.Program { return &rollback{promotion: promotion{action: tidemill.ActionRollback}} },
	}
}

// rollback is a call that rolls back one model, or many.
type rollback struct {
	promotion
	ask   api.RollbackAsked // request for many
	since string
}

func (p *rollback) Flags(f *command.FlagSet) {
	f.Text(&p.since, "since", "", "TIME", "promotions since then: -1h or a time")
	f.Text(&p.ask.Recipe, "recipe", "r", "NAME", "only models of this recipe")
	f.Text(&p.ask.Key, "key", "", "KEY", "only models of this key")
	f.Text(&p.ask.Prefix, "prefix", "", "NAME", "only models whose names begin with this")
	f.Text(&p.ask.Where, "where", "", "CONDITION", "only models for which this is true, in CloudEvents SQL over subject (the key), recipe, model")
	f.Yes(&p.ask.All, "all", "all models")
	p.promotion.Flags(f)
}

func (p *rollback) Accept(positional []string) (err error) {
	selects := p.ask.Recipe+p.ask.Key+p.ask.Prefix+p.ask.Where != ""
	switch many := selects || p.ask.All || p.since != ""; {
	case len(positional) > 0 && many:
		return command.Usagef("give a model, or flags that select models, and not both")
	case len(positional) > 0:
		return p.promotion.Accept(positional)
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

func (p *rollback) Run(ctx context.Context, s *command.Session, positional []string) error {
	if len(positional) > 0 {
		return p.promotion.Run(ctx, s, positional)
	}
	p.ask.Reason, p.ask.DryRun = p.reason, p.dryRun
	return p.rollBackMany(ctx, s)
}

// rollBackMany rolls back the selected models, page by page.
func (p *rollback) rollBackMany(ctx context.Context, s *command.Session) error {
	g, done, err := p.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	named, sum := client.NewAsking(), promotionSum{out: s.Stdout}
	for again := true; again; again = p.ask.After != "" {
		got, err := g.RollbackModels(ctx, named, p.ask)
		if err != nil {
			return err
		}
		for i := range got.Models {
			sum.add(&got.Models[i])
		}
		p.ask.After = got.Next
	}
	if sum.total == 0 {
		fmt.Fprintf(s.Stderr, "No selected model has changed its champion since %s; tidemill models lists them, with --recipe, --key or --prefix.\n", clock(p.ask.Since))
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
