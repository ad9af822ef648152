package platform

import (
	"context"
	"path/filepath"

	"tidemill.dev/config"
	"tidemill.dev/functions/outcomes"
)

// outcomeTasks returns a task for each scorer with labels: it joins the scorer's answers with their labels.
func (p *Platform) outcomeTasks(c *config.Config) (all []observerTask) {
	for _, s := range c.Scorers {
		if s.Labels == nil {
			continue
		}
		o := outcomes.Options{Broker: p.broker, Names: p.names, Config: s, Registerer: p.telemetry.Registry(), Logger: p.log}
		if p.models.Dir != "" {
			o.Dir = filepath.Join(p.models.Dir, "outcomes", s.Name)
		}
		all = append(all, observerTask{name: "outcomes." + s.Name, config: outcomes.Settings(s),
			run: func(ctx context.Context) error { return outcomes.Run(ctx, o) }})
	}
	return all
}
