package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
)

const linesType = "application/x-ndjson"

// agentFiles lists a tree's files. Which tree is asked for by its digest, and
// who knows that may have it.
func (g *Gateway) agentFiles(w http.ResponseWriter, r *request) *api.Problem {
	q, p := r.query([]string{"tree"})
	if p != nil {
		return p
	}
	tree := q.Get("tree")
	if badDigest(tree) != nil {
		return badParameter("tree", "give the tree that the order, or one of its inputs, names")
	}
	ctx := r.Context()
	o := g.newOutpour(w, linesType)
	err := g.opt.Store.Walk(ctx, tree, "", "", func(f api.File) error {
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		return o.line(ctx, line)
	})
	if err != nil {
		p = g.storeFault("list tree "+tree, err)
	}
	return o.end(ctx, err, p)
}

// agentEvents are the events that asked for the run, oldest first, one a line.
// They are read from the facts that asked, of which the ledger keeps the
// offsets; where those facts are gone, the newest event, which the ledger keeps
// itself, is better than none.
func (g *Gateway) agentEvents(w http.ResponseWriter, r *request) *api.Problem {
	ctx, run := r.Context(), r.attempt.run
	o := g.newOutpour(w, linesType)
	found, err := g.eachEvent(ctx, run, func(event []byte) error { return o.line(ctx, event) })
	if err != nil {
		return o.end(ctx, err, g.noEvents(ctx, run, err))
	}
	if found == 0 && run.Event != nil {
		err = o.line(ctx, oneLineOf(run.Event))
	}
	return o.end(ctx, err, nil)
}

func (g *Gateway) noEvents(ctx context.Context, run *tidemill.Run, err error) *api.Problem {
	if ctx.Err() == nil {
		g.log.Warn("the events that asked for a run cannot be read", "run", run.ID, "reason", err)
	}
	return unavailable("the events that asked for the run cannot be read now; ask again a little later")
}

// eachEvent calls fn with each event that asked for a run and says how many
// there were. No more is held than one read of Kafka brings.
func (g *Gateway) eachEvent(ctx context.Context, run *tidemill.Run, fn func(event []byte) error) (found int, err error) {
	err = g.factsAt(ctx, run.Partition, run.Asked, func(in *broker.Incoming) error {
		var d tidemill.RunRequested
		if in.Err != nil || in.Type != tidemill.TypeRunRequested || in.Subject != run.Key || json.Unmarshal(in.Data, &d) != nil {
			return nil // the fold has read it otherwise, so the log was made anew and it is another
		}
		for _, e := range d.Events {
			found++
			if err := fn(oneLineOf(e)); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// oneLineOf is JSON without the space around its parts.
func oneLineOf(text []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return bytes.ReplaceAll(text, []byte("\n"), []byte(" "))
	}
	return b.Bytes()
}
