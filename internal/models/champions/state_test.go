package champions

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// The packed state between two facts has everything that the fold needs.
func TestThePackedFoldIsTheFold(t *testing.T) {
	for seed := range uint64(40) {
		c := newChance(seed)
		packed := map[string]*state{}
		for offset := range int64(400) {
			v := c.view()
			m := c.fold(v, broker.Position{Offset: offset})
			if m == nil {
				continue
			}
			if packed[m.Name] == nil {
				packed[m.Name] = &state{}
			}
			run, _ := v.Attribute(tidemill.AttrRun)
			at, _ := time.Parse(time.RFC3339Nano, v.Time)
			packed[m.Name].apply(m.Name, fold.Fact{Offset: offset, ID: v.ID, Type: v.Type, Model: m.Name, Key: v.Subject, Run: run, At: at, Data: v.Data})
			want := *m
			want.Changes, want.Asked, want.Owed, want.Recipe, want.Retired = nil, nil, nil, "", time.Time{}
			if want.Pin != nil {
				want.Pin = &fold.Pin{}
			}
			if want.Unserved != nil {
				want.Unserved = &fold.Unserved{Scorer: want.Unserved.Scorer}
			}
			if got := packed[m.Name].model(m.Name); !sameModel(got, &want) {
				t.Fatalf("seed %d, fact %d:\n got %+v\nwant %+v", seed, offset, got, &want)
			}
			for _, h := range m.Versions {
				if got := packed[m.Name].artifact(h.Number); got != h.Run+" of "+m.Name && (got != "" || h.Number > m.Last-2) {
					t.Fatalf("seed %d, fact %d: version %d, of %s, has the files %q", seed, offset, h.Number, h.Run, got)
				}
			}
		}
	}
}

// sameModel compares models; an empty list equals nil.
func sameModel(a, b *fold.Model) bool {
	x, y := *a, *b
	for _, m := range []*fold.Model{&x, &y} {
		if len(m.Versions) == 0 {
			m.Versions = nil
		}
		if len(m.Floors) == 0 {
			m.Floors = nil
		}
	}
	return reflect.DeepEqual(&x, &y)
}

func TestChampionAllocatesNothing(t *testing.T) {
	table := &Table{cells: newCells()}
	name := "intent/bot-1"
	table.cells.findOrCreate(name).show(&fold.Model{Champion: 3, Turn: 4})
	if n := testing.AllocsPerRun(100, func() {
		if c, ok := table.Champion(name); !ok || c.Version != 3 {
			t.Error("it is not there")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Any id of a run is the same after it was packed.
func TestIDsArePacked(t *testing.T) {
	ours := tidemill.ID("run", "1")
	for _, id := range []string{"", ours, "x", ours[:25], ours + "a", strings.ToUpper(ours), "\n" + ours[1:], ours[:25] + "\r", ours[:12] + "\n" + ours[13:], strings.Repeat("é", 13)} {
		var p packer
		p.id(id)
		p.text("next")
		u := unpacker(p)
		if got, next := u.id(), u.text(); got != id || next != "next" {
			t.Errorf("%q is %q, then %q", id, got, next)
		}
		if id == ours && len(p) != 1+17+5 {
			t.Errorf("an id takes %d bytes", len(p)-5)
		}
	}
}
