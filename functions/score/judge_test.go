package score

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"tidemill.dev"
)

// judge compares the outputs with the inputs: each event has one output, a key's outputs are in
// order, and versions never go back.
func (w *world) judge(n int) []scoredEvent {
	w.Helper()
	outputs := w.waitEvents(streamOut, n)
	inputs := map[string]scoredEvent{}
	for _, in := range w.outputs(streamIn) {
		inputs[fmt.Sprintf("%s/%d/%d", streamIn, in.at.Partition, in.at.Offset)] = in
	}
	if len(inputs) != n {
		w.Fatalf("%d events came, not %d", len(inputs), n)
	}
	seen, last, versions := map[string]bool{}, map[string]int64{}, map[string]int{}
	for _, out := range outputs {
		in, known := inputs[out.ID]
		if !known || seen[out.ID] {
			w.Errorf("output %s: of an event that came: %v; seen before: %v", out.ID, known, seen[out.ID])
			continue
		}
		seen[out.ID] = true
		w.checkInput(out, in)
		if at := offsetOf(out.ID); at <= last[in.Subject] && last[in.Subject] != 0 {
			w.Errorf("key %s: offset %d comes after %d", in.Subject, at, last[in.Subject])
		} else {
			last[in.Subject] = at
		}
		model, _ := out.Attribute(tidemill.AttrModel)
		text, _ := out.Attribute(tidemill.AttrModelVersion)
		version, err := strconv.Atoi(text)
		if err != nil || version < versions[model] {
			w.Errorf("model %s: version %q after version %d, at %s", model, text, versions[model], out.ID)
		}
		versions[model] = version
	}
	if len(seen) != n {
		w.Errorf("%d of %d events were scored", len(seen), n)
	}
	return outputs
}

func offsetOf(id string) int64 {
	at, err := strconv.ParseInt(id[strings.LastIndex(id, "/")+1:], 10, 64)
	if err != nil {
		return -1
	}
	return at
}

// checkInput checks that an output names its input.
func (w *world) checkInput(out, in scoredEvent) {
	w.Helper()
	id, _ := out.Attribute(tidemill.AttrCausationID)
	source, _ := out.Attribute(tidemill.AttrCausationSource)
	var data Scored
	err := json.Unmarshal(out.Data, &data)
	if id != in.ID || source != in.Source || out.Subject != in.Subject || out.Type != tidemill.TypeScored || string(out.Key) != string(in.Key) ||
		out.at.Partition != in.at.Partition || err != nil || data.Label == "" || len(data.Scores) != 3 {
		w.Errorf("output %+v of %+v, %v", out, in, err)
	}
}

// countByVersion returns the number of outputs of each version of a model.
func countByVersion(outputs []scoredEvent, model string) map[string]int {
	n := map[string]int{}
	for _, out := range outputs {
		if name, _ := out.Attribute(tidemill.AttrModel); name == model {
			version, _ := out.Attribute(tidemill.AttrModelVersion)
			n[version]++
		}
	}
	return n
}
