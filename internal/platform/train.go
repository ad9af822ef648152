package platform

import (
	"net/http"
	"sync"

	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/functions/train"
)

const trainFunction = "train"

// usesTrain reports whether a trigger's target is the function of ours that asks
// for runs.
func usesTrain(to config.Target) bool { return to.Function == trainFunction && to.Recipe != "" }

// trains are the functions that ask for runs, one a recipe.
type trains struct {
	mu  sync.Mutex
	all map[string]http.Handler
}

// train calls the function of the recipe that the path names.
func (p *Platform) train(w http.ResponseWriter, r *http.Request) {
	p.trainOf(r.PathValue("recipe")).ServeHTTP(w, r)
}

// trainOf makes none for what is no recipe: the path is anybody's who calls.
func (p *Platform) trainOf(recipe string) http.Handler {
	if _, ok := p.Config().Recipe(recipe); !ok {
		return http.NotFoundHandler()
	}
	p.trains.mu.Lock()
	defer p.trains.mu.Unlock()
	if p.trains.all == nil {
		p.trains.all = map[string]http.Handler{}
	}
	if p.trains.all[recipe] == nil {
		f := train.New(train.Options{Config: p.Config, Asker: p.works.foreman, Keys: p.works.ledger.Keys}, recipe)
		p.trains.all[recipe] = functions.Handler(f, functions.Options{Logger: p.log})
	}
	return p.trains.all[recipe]
}
