package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// followLog prints what the run says until it has ended. The gateway is in this
// process, and lets everybody on this machine in.
func followLog(ctx context.Context, g *remote.Gateway, id string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL()+"/api/v1/runs/"+id+"/log?follow=true", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{}} // no proxy stands between us
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("follow the log of run %s: %w", id, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("follow the log of run %s: the gateway answers %s", id, res.Status)
	}
	log := &logOutput{to: out, seen: onScreen(out)}
	if _, err := io.Copy(log, res.Body); err != nil {
		return fmt.Errorf("follow the log of run %s: %w", id, err)
	}
	return log.flush()
}

// tell prints how the run ended.
func (p *trying) tell(out io.Writer, whole *api.RunWhole) error {
	rows := [][]string{{"outcome", string(whole.State)}}
	say := func(what, text string) {
		if text != "" {
			rows = append(rows, []string{what, text})
		}
	}
	say("reason", whole.Reason)
	say("took", tookOf(&whole.RunShown, time.Now()))
	if r := whole.Result; r != nil {
		say("stages", stagesText(r.Stages))
		sayResult(say, &whole.RunShown)
	}
	if whole.Plan != nil && whole.State == tidemill.RunSucceeded {
		say("would be", madeAs(whole.Plan))
	}
	for i := range rows {
		rows[i][1] = harmless(rows[i][1])
	}
	fmt.Fprintln(out)
	if err := columns(out, rows); err != nil {
		return err
	}
	return failedTry(whole)
}

// madeAs is what the output would have become.
func madeAs(p *tidemill.Plan) string {
	switch {
	case p.Model != "":
		return "a version of model " + p.Model
	case p.Dataset != "":
		return "a commit on dataset " + p.Dataset + " at " + p.Branch
	}
	return "nothing that is kept"
}
