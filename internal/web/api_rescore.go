package web

import (
	"context"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
)

// Rescore scores a part of a scorer's stream once more, for as long as one answer
// may take, and tells how far it is. An error that wraps Unanswered says that it
// cannot be done.
type Rescore func(ctx context.Context, c config.Scorer, ask api.RescoreAsk, ranges []tidemill.Range) (api.Rescored, error)

// rescore begins one, or goes on with one that has been begun. It is done in parts:
// a caller asks until nothing is left, and one who stops leaves what can be gone
// on with.
func (g *Gateway) rescore(w http.ResponseWriter, r *request) *api.Problem {
	c, ok := g.opt.Config().Scorer(r.value)
	if !ok {
		return unknownScorer(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return forbidden("a scorer is for all keys, and you may operate on some: ask one who may on all")
	}
	var ask api.RescoreAsk
	if p := g.readAsk(r, &ask); p != nil {
		return p
	}
	ranges, p := g.rescoreRanges(r.Context(), &c, &ask)
	if p != nil {
		return p
	}
	if g.opt.Rescore == nil {
		return noScoring()
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	done, err := g.opt.Rescore(ctx, c, ask, ranges)
	if err != nil {
		return g.unscored(r.Context(), c.Name, err)
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// rescoreRanges turns words into offsets, for one that is begun.
func (g *Gateway) rescoreRanges(ctx context.Context, c *config.Scorer, ask *api.RescoreAsk) ([]tidemill.Range, *api.Problem) {
	if ask.Resume != "" {
		if ask.From+ask.To+ask.Version+ask.ToStream != "" {
			return nil, badParameter("resume", "it goes on as it was begun: leave the others out")
		}
		return nil, nil
	}
	if _, known := g.opt.Config().Stream(ask.ToStream); !known {
		return nil, badParameter("toStream", "name a stream of the config that the answers go to")
	}
	ask.Version = orElse(ask.Version, tidemill.WhichChampion)
	ranges, p := g.rangesOf(ctx, []string{c.From}, api.ReplayAsk{From: ask.From, To: ask.To})
	if p != nil {
		return nil, p
	}
	return ranges[c.From], nil
}
