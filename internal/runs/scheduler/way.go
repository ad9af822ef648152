package scheduler

import (
	"crypto/hmac"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/config"
)

// wayOf returns the recipe in the way of a run of the key, and the rollout in which the run takes part. A key outside
// the cohort keeps the way before the rollout. An error means that the run waits.
func (f *Foreman) wayOf(r config.Recipe, key string) (config.Recipe, string, error) {
	if r.Rollout == nil {
		return r, "", nil
	}
	choice := f.asked().Rollout(r.Name).Choose(r.Way().Hash, key)
	if choice.Base == nil {
		return r, choice.Rollout, nil
	}
	if f.opt.Tokens == nil || !f.opt.Tokens.SignedWay(r.Name, choice.Base) {
		return r, "", fmt.Errorf("the recipe has changed, and key %q keeps the way before its rollout, which was not written with the present run secret of this install: "+
			"the secret was replaced since, or another client of Kafka has written it; to give all keys the present way, remove rollout from the recipe and add it again", key)
	}
	r, err := r.In(*choice.Base)
	return r, "", err
}

// waySpace is part of the input of each way's MAC, as tokenSpace is of each token.
const waySpace = "tidemill way 1"

// SignWay returns a way of a recipe with its MAC. Without the install's secret no client of Kafka can make it.
func (t *Tokens) SignWay(recipe string, w tidemill.Way) tidemill.Way {
	w.MAC = t.macOfWay(recipe, &w)
	return w
}

// SignedWay reports whether a controller of the install has written a way of a recipe.
func (t *Tokens) SignedWay(recipe string, w *tidemill.Way) bool {
	return hmac.Equal([]byte(w.MAC), []byte(t.macOfWay(recipe, w)))
}

func (t *Tokens) macOfWay(recipe string, w *tidemill.Way) string {
	return t.mac([]byte(waySpace), []byte(recipe), []byte(w.Hash), w.Made)
}
