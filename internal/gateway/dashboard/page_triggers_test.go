package dashboard

import (
	"encoding/json"
	"testing"

	"tidemill.dev/api"
)

// The page of a dead letter leads to the lineage of its event, by the event's source and id.
func TestLetterLeadsToTheLineageOfItsEvent(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/dead-letters/abc": api.WholeLetter{Letter: api.DeadLetter{ID: "abc"},
		Event: json.RawMessage(`{"specversion":"1.0","id":"order/17","source":"/shop#1","type":"order"}`)}})
	mustHave(t, fetch(d, "/ui/dead-letters/abc").Body.String(), `href="/ui/lineage?of=event%2F%2Fshop%25231%23order%2F17"`)
}
