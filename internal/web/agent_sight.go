package web

import (
	"context"

	"tidemill.dev/internal/api"
)

// awaitSight waits a little for what a keeper has seen of an attempt that ends
// sooner than its node has told of it: what has ended changes no more, and a
// model whose image nobody knows could not be made again. An attempt that was
// under way for more than a moment waits for nothing.
func (g *Gateway) awaitSight(ctx context.Context, r *request, said *api.Finish) {
	if !said.Inside || said.Where.Image != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Sight)
	defer cancel()
	for {
		changed := g.opt.Ledger.Changed()
		run, err := g.opt.Ledger.Run(ctx, r.attempt.run.ID)
		if err != nil || !isUnderWay(run, r.attempt.number) {
			return // the end is told all the same
		}
		if a, _ := attemptOf(run, r.attempt.number); a.Image != "" {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
