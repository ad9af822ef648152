package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"tidemill.dev/internal/data/ledger"
)

// A page has the newest runs of all lists together, even if each list has more of them.
func TestAPageIsTakenFromManyLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	var asked []string
	for i := range 60 {
		v, id := s.runRequest([]string{"intent", "fraud", "demand"}[i%3], fmt.Sprint("key-", i), "cause", nil)
		w.add(l, v)
		asked = append(asked, id)
	}
	for _, limit := range []int{1, 7, 20, 59, 60} {
		var listed []string
		for after, pages := "", 0; ; pages++ {
			page, err := l.Runs(t.Context(), ledger.Query{Limit: limit, After: after})
			must(t, err)
			for _, r := range page.Runs {
				listed = append(listed, r.ID)
			}
			if after = page.Next; after == "" {
				break
			}
			if len(page.Runs) != limit || pages > 60 {
				t.Fatalf("a page of %d has %d runs", limit, len(page.Runs))
			}
		}
		slices.Sort(listed)
		if want := slices.Sorted(slices.Values(asked)); !slices.Equal(listed, want) {
			t.Errorf("in pages of %d there are %d of %d runs", limit, len(listed), len(want))
		}
	}
}
