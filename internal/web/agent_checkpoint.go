package web

import (
	"context"
	"net/http"

	"tidemill.dev/internal/api"
)

// agentCheckpoint has the run go on from what its attempt has saved.
//
// To make a tree of many files takes a while, so the ledger is asked again
// before the run's checkpoint is set. What is left is the instant between that
// answer and the store's: an attempt that is superseded in it may set a
// checkpoint after its successor has read the one before. The successor then
// goes on from an older one, as if the newer had come too late; and SetCheckpoint
// knows the attempt, so that it never takes the place of one that the successor
// has set.
func (g *Gateway) agentCheckpoint(w http.ResponseWriter, r *request) *api.Problem {
	var taken api.CheckpointTaken
	if p := g.readSaid(r, &taken); p != nil {
		return p
	}
	ctx, cancel := g.toTheEnd(r)
	defer cancel()
	tree, p := g.treeOf(ctx, r, taken.Files)
	if p != nil {
		return p
	}
	if p := g.stillUnderWay(ctx, r); p != nil {
		return p
	}
	if err := g.opt.Store.SetCheckpoint(ctx, r.attempt.run.ID, r.attempt.number, tree); err != nil {
		return g.storeFault("set the checkpoint of run "+r.attempt.run.ID, err)
	}
	writeJSON(w, http.StatusOK, tree)
	return nil
}

// treeOf makes the tree of files whose objects have been put.
func (g *Gateway) treeOf(ctx context.Context, r *request, files []api.File) (api.TreeRef, *api.Problem) {
	tree, err := g.opt.Store.Tree(ctx, files)
	if err != nil {
		return tree, g.storeFault("make a tree of what run "+r.attempt.run.ID+" has put", err)
	}
	return tree, nil
}

// stillUnderWay asks the ledger again.
func (g *Gateway) stillUnderWay(ctx context.Context, r *request) *api.Problem {
	run, p := g.runOf(ctx, r.attempt.run.ID)
	if p != nil {
		return p
	}
	if run != nil {
		r.attempt.run = run
	}
	if run == nil || !isUnderWay(run, r.attempt.number) {
		return g.superseded(r.attempt)
	}
	return nil
}
