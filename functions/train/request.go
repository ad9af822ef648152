package train

import (
	"encoding/json"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs"
)

const (
	// maxData is how much of an event's data is kept with the run that it asked
	// for. Facts never expire, and a run needs of an event what it is about.
	maxData = 64 << 10
	// attrLeftOut says in place of larger data how many bytes there were. Whoever
	// wants them finds the event by its source and id.
	attrLeftOut = "dataleftout"
)

// request is the wish that an event makes for a key.
func request(v *broker.View, recipe, key string, w config.RecipeWhen) runs.Request {
	correlation, _ := v.Attribute(tidemill.AttrCorrelationID)
	if correlation == "" {
		correlation = v.ID
	}
	trace, _ := v.Attribute(tidemill.AttrTraceParent)
	return runs.Request{Recipe: recipe, Key: key, Cause: tidemill.Cause{Source: v.Source, ID: v.ID},
		Events: []json.RawMessage{kept(v)}, Debounce: w.Debounce, MaxWait: w.MaxWait, Priority: w.Priority,
		Correlation: correlation, Trace: trace}
}

// kept is the event as the run will be shown it.
func kept(v *broker.View) json.RawMessage {
	if len(v.Data) <= maxData {
		return broker.MarshalStructured(v)
	}
	short := v.Clone()
	short.Data = nil
	short.Extensions = append(short.Extensions, broker.Attribute{Name: attrLeftOut, Value: strconv.Itoa(len(v.Data))})
	return broker.MarshalStructured(&short)
}
