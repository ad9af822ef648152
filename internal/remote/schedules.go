package remote

import (
	"context"

	"tidemill.dev/internal/api"
)

// Schedules are those of the config, as they stand now.
func (g *Gateway) Schedules(ctx context.Context) (all api.Schedules, err error) {
	err = g.get(ctx, "list the schedules", &all, nil, "schedules")
	return all, err
}

// PauseSchedule has a schedule not tick.
func (g *Gateway) PauseSchedule(ctx context.Context, name string) (done api.ScheduleDone, err error) {
	err = g.post(ctx, "pause schedule "+name, nil, &done, "schedules", name, "pause")
	return done, err
}

// ResumeSchedule ends that.
func (g *Gateway) ResumeSchedule(ctx context.Context, name string) (done api.ScheduleDone, err error) {
	err = g.post(ctx, "resume schedule "+name, nil, &done, "schedules", name, "resume")
	return done, err
}
