package gateway

import (
	"encoding/json"
	"net/http"
	"reflect"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// The answers that are written by hand equal those of encoding/json.
func TestAnswersAreWrittenAsTheirTypeIs(t *testing.T) {
	t.Parallel()
	var items []*item
	want := api.Answers{Events: []api.Answer{}}
	for n, id := range []string{"1", "order-7", `a"b\c`, "größe 日本", "\u2028<&>\n\x7f", "x"} {
		i := &item{view: &broker.View{ID: id}, receipt: broker.Receipt{Stream: "messages", Partition: int32(n), Offset: int64(n)*1e12 - 1}, repeated: n == 3}
		items = append(items, i)
		want.Events = append(want.Events, i.batchEntry())
	}
	text, stored := appendAnswers(nil, items)
	var got api.Answers
	if err := json.Unmarshal(text, &got); err != nil || !stored || !reflect.DeepEqual(got, want) {
		t.Errorf("%s, %v\n%+v", text, err, want)
	}
	if text, stored := appendAnswers(nil, nil); !stored || string(text) != "{\"events\":[]}\n" {
		t.Errorf("an empty batch: %s", text)
	}
	items[2].problem = problem(api.InvalidEvent, http.StatusBadRequest, "", "")
	if _, stored := appendAnswers(nil, items); stored {
		t.Error("a refused event was answered as stored")
	}
}
