package main

import (
	"context"
	"encoding/json"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// readLetters returns an error for the scorer's first dead letter. There should be no dead letter,
// because every key has a model.
func (a *outputAudit) readLetters(ctx context.Context) error {
	from, err := a.w.st.b.Places(ctx, tidemill.StreamDeadLetters, broker.Earliest())
	if err != nil {
		return err
	}
	letters := 0
	var first broker.DeadLetter
	var torn error
	_, err = a.w.st.b.ReadBack(ctx, from, func(e *broker.Incoming) {
		if letters++; letters == 1 {
			torn = json.Unmarshal(e.Data, &first)
		}
	})
	if err == nil && torn == nil && letters > 0 {
		a.first = fmt.Errorf("%d dead letters, the first of %s/%d/%d: %s", letters, first.Stream, first.Partition, first.Offset, first.Reason)
	}
	if err == nil {
		err = torn
	}
	return err
}
