package connect

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/gateway/client"
)

// completed limits the number of names that completion asks for.
const completed = 500

// lister lists names that the gateway knows.
type lister func(ctx context.Context, g *client.Gateway, prefix string) ([]string, error)

// listers returns the lister of each kind of argument.
func listers() map[string]lister {
	return map[string]lister{
		"streams": streamNames, "triggers": triggerNames, "schedules": scheduleNames, "recipes": recipeNames, "pools": poolNames,
		"scorers": scorerNames, "datasets": datasetNames, "models": modelNames, "keys": keyNames, "runs": runNames,
	}
}

// namesOf returns the name of each item.
func namesOf[T any](all []T, name func(*T) string) []string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = name(&all[i])
	}
	return names
}

func streamNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Streams(ctx)
	return namesOf(all, func(s *api.Stream) string { return s.Name }), err
}

func triggerNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Triggers(ctx)
	return namesOf(all.Triggers, func(t *api.Trigger) string { return t.Name }), err
}

func scheduleNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Schedules(ctx)
	return namesOf(all.Schedules, func(s *api.Schedule) string { return s.Name }), err
}

func recipeNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Recipes(ctx)
	return namesOf(all.Recipes, func(r *api.Recipe) string { return r.Name }), err
}

func poolNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Pools(ctx)
	return namesOf(all.Pools, func(p *api.Pool) string { return p.Name }), err
}

func scorerNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Scorers(ctx)
	return namesOf(all.Scorers, func(s *api.Scorer) string { return s.Name }), err
}

func datasetNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	all, err := g.Datasets(ctx, prefix)
	return namesOf(all.Datasets, func(d *api.Dataset) string { return d.Name }), err
}

func modelNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	all, err := g.Models(ctx, client.ModelQuery{Prefix: prefix, Limit: completed})
	return namesOf(all.Models, func(m *api.ModelShown) string { return m.Name }), err
}

func runNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	page, err := g.Runs(ctx, client.RunQuery{Limit: completed})
	return namesOf(page.Runs, func(r *api.RunShown) string { return r.ID }), err
}

// keyNames returns the keys of models, and those that have only runs. If the runs cannot be listed,
// the keys of models are enough.
func keyNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	models, err := g.Models(ctx, client.ModelQuery{Limit: completed})
	runs, _ := g.Runs(ctx, client.RunQuery{Limit: completed})
	return append(namesOf(models.Models, func(m *api.ModelShown) string { return m.Key }), namesOf(runs.Runs, func(r *api.RunShown) string { return r.Key })...), err
}

// Names asks the gateway that the command would ask for names of a kind. An error gives no names.
func (r *Reach) Names(ctx context.Context, s *command.Session, kind, prefix string) []string {
	list, known := listers()[kind]
	if !known {
		return nil
	}
	w, err := r.Choose(s.Getenv)
	if err != nil || w.URL == "" {
		return nil
	}
	g, err := r.dial(ctx, s, w, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	defer g.Close()
	names, err := list(ctx, g, prefix)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	slices.Sort(names)
	return slices.Compact(names)
}
