package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// versionArg reads the name of a version as people give it: intent/bot-42@7,
// @champion, @previous, @newest, or the model alone.
func versionArg(name string) (model, which string, err error) {
	if model, which, err = tidemill.CutVersionName(name); err != nil {
		return "", "", usagef("%v; tidemill models lists models, and tidemill models show MODEL its versions", err)
	}
	if strings.HasSuffix(name, "@") {
		return "", "", usagef("%q: behind the @ stands a number, %s, %s or %s", name, tidemill.WhichChampion, tidemill.WhichPrevious, tidemill.WhichNewest)
	}
	return model, which, nil
}

// findVersion is the number of a version of a model.
func findVersion(whole *api.ModelWhole, which string) (int, error) {
	n := whole.Which(which)
	switch {
	case n != 0:
		return n, nil
	case len(whole.Versions) == 0:
		return 0, fmt.Errorf("model %s has no version: its next run registers one", harmless(whole.Name))
	case which == tidemill.WhichChampion:
		return 0, fmt.Errorf("model %s has no champion; tidemill models show %[1]s@newest says why the newest is none, tidemill promote %[1]s@newest%s makes it one", harmless(whole.Name), forceOf(whole.Find(whole.Which(tidemill.WhichNewest))))
	case which == tidemill.WhichPrevious:
		return 0, fmt.Errorf("model %s had no champion before; tidemill models show %[1]s lists its versions", harmless(whole.Name))
	}
	return 0, fmt.Errorf("model %s has no version %s, or keeps it no longer; there are %s", harmless(whole.Name), harmless(which), versionNumbers(whole))
}

// forceOf is the flag that a promotion of a version needs; one that awaits a
// person needs none.
func forceOf(h *tidemill.Held) string {
	if h != nil && (h.State == tidemill.VersionRefused || h.State == tidemill.VersionRegistered) {
		return " --force"
	}
	return ""
}

func versionNumbers(whole *api.ModelWhole) string {
	var all []string
	for _, h := range whole.Versions {
		all = append(all, strconv.Itoa(h.Number))
	}
	if len(all) > 12 {
		all = append(append(all[:3:3], "…"), all[len(all)-8:]...)
	}
	return strings.Join(all, ", ")
}

// lookedAt is a version with what was measured of it.
type lookedAt struct {
	model   *api.ModelWhole
	version *api.ModelVersion
}

// lookAtVersion finds a version and its report.
func lookAtVersion(ctx context.Context, g *remote.Gateway, name string) (lookedAt, error) {
	model, which, err := versionArg(name)
	if err != nil {
		return lookedAt{}, err
	}
	whole, err := g.Model(ctx, model, "")
	if err != nil {
		return lookedAt{}, err
	}
	n, err := findVersion(&whole, which)
	if err != nil {
		return lookedAt{}, err
	}
	return measuredVersion(ctx, g, &whole, n)
}

func measuredVersion(ctx context.Context, g *remote.Gateway, whole *api.ModelWhole, n int) (lookedAt, error) {
	one, err := g.Model(ctx, whole.Name, strconv.Itoa(n))
	if err != nil {
		return lookedAt{}, err
	}
	if len(one.All) != 1 {
		return lookedAt{}, fmt.Errorf("model %s: version %d has gone meanwhile; ask again", harmless(whole.Name), n)
	}
	return lookedAt{whole, &one.All[0]}, nil
}
