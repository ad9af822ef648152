package main

import (
	"context"
	"fmt"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// becameOfRun is what became of the version that a run has made, in words; empty
// where it has made none.
func becameOfRun(ctx context.Context, g *remote.Gateway, whole *api.RunWhole) (string, error) {
	if whole.Plan == nil || whole.Plan.Model == "" || whole.State != tidemill.RunSucceeded {
		return "", nil
	}
	m, err := g.Model(ctx, whole.Plan.Model, "")
	switch {
	case remote.Status(err) == http.StatusNotFound:
		return "not registered yet", nil
	case err != nil:
		return "", err
	}
	return becameText(&m, whole.ID), nil
}

func becameText(m *api.ModelWhole, run string) string {
	for i := range m.All {
		if v := &m.All[i]; v.Run == run {
			return fmt.Sprintf("version %d of %s (%s): %s", v.Number, m.Name, stateOfVersion(m, v), shortSentence(v))
		}
	}
	return "a version that is not registered yet, or no longer kept"
}
