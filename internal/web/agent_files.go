package web

import (
	"encoding/json"
	"net/http"

	"tidemill.dev/internal/api"
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
