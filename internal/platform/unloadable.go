package platform

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/champions"
)

// unloadableWithin is for how long it is tried to say that a champion cannot be
// loaded. The log has it besides.
const unloadableWithin = 30 * time.Second

// unloadable is what is to be said of a champion.
type unloadable struct {
	scorer, model string
	version, kept int
	champion      champions.Champion
	reason        error
}

// view is the fact. Its id follows from what it says, so that of several processes
// of a scorer each says the same; a version that is promoted again is another.
func (u unloadable) view(names tidemill.Names, at time.Time) (broker.View, error) {
	data, err := json.Marshal(tidemill.ModelUnloadable{Scorer: u.scorer, Version: u.version, Kept: u.kept, Error: u.reason.Error()})
	if err != nil {
		return broker.View{}, err
	}
	id := tidemill.ID(tidemill.TypeModelUnloadable, u.scorer, u.model, strconv.Itoa(u.version), strconv.FormatInt(u.champion.Turn, 10))
	return broker.View{ID: id, Source: names.Source("scorer/" + u.scorer), Type: tidemill.TypeModelUnloadable, Subject: u.champion.Key,
		Time: at.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeModelUnloadable),
		DataContentType: "application/json", Data: data, Key: []byte(tidemill.ModelKey(u.model)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: u.model}, {Name: tidemill.AttrModelVersion, Value: strconv.Itoa(u.version)},
			{Name: tidemill.AttrCorrelationID, Value: id}}}, nil
}

// sayUnloadable publishes it, and waits for nobody: who tells of it loads models.
func (p *Platform) sayUnloadable(on *scoring, u unloadable) {
	u.champion, _ = on.champions.Champion(u.model)
	v, err := u.view(p.names, time.Now())
	if err != nil {
		p.log.Error("a champion that cannot be loaded is not told of", "model", u.model, "version", u.version, "reason", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unloadableWithin)
	p.announcer.Send(ctx, tidemill.StreamFacts, &v, func(_ broker.Receipt, err error) {
		cancel()
		if err != nil {
			p.log.Error("a champion that cannot be loaded is not told of", "model", u.model, "version", u.version, "reason", err)
		}
	})
}
