package ledger_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"testing"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// plainModel is a model, and all records that were ever kept of it.
type plainModel struct {
	fold.Model
	partition  int32
	versions   map[int]*tidemill.Version
	judgements map[int]*tidemill.Judgement
}

func (p *plainFold) foldModel(f fold.Fact) {
	m := p.models[f.Model]
	if m == nil {
		m = &plainModel{partition: f.Partition, versions: map[int]*tidemill.Version{}, judgements: map[int]*tidemill.Judgement{}}
		p.models[f.Model] = m
	}
	v := m.Apply(f)
	if v.Registered != nil {
		m.versions[v.Registered.Number] = v.Registered
	}
	if v.Judgement != nil {
		m.judgements[v.Judged] = v.Judgement
	}
	for _, n := range v.Dropped {
		delete(m.versions, n)
		delete(m.judgements, n)
	}
}

func asText(t testing.TB, v any) string {
	t.Helper()
	whole, err := json.Marshal(v)
	must(t, err)
	return string(whole)
}

func (m model) model(t testing.TB, name string, of *plainModel) {
	t.Helper()
	m.set("models", name, asText(t, of.Model))
	if len(of.Owed) > 0 {
		m.set("owed", name, strconv.Itoa(len(of.Owed)))
	}
	for n, v := range of.versions {
		m.set("versions", fmt.Sprint(name, "@", n), asText(t, v))
	}
	for n, v := range of.judgements {
		m.set("judgements", fmt.Sprint(name, "@", n), asText(t, v))
	}
	flags, began := "-", int64(0)
	for _, h := range of.Versions {
		m.link("run/"+h.Run, fmt.Sprint(name, "@", h.Number))
		if h.State == tidemill.VersionAwaiting && flags == "-" {
			flags += "a"
		}
		if h.Number == of.Champion {
			began = h.Began.UnixMilli()
		}
	}
	if of.Pin != nil {
		flags += "p"
	}
	if of.Unserved != nil {
		flags += "u"
	}
	if len(of.Drifts) > 0 {
		flags += "d"
	}
	touched := int64(0)
	for _, c := range of.Changes {
		if c.Action != tidemill.ActionJudge {
			touched = max(touched, c.At.UnixMilli())
		}
	}
	if of.Pin != nil {
		touched = max(touched, of.Pin.At.UnixMilli())
	}
	tried := int64(0)
	for _, end := range of.Trials {
		tried = max(tried, end.At.UnixMilli())
	}
	if n := len(of.Versions); n > 0 {
		newest := of.Versions[n-1]
		m.add("lengths", fmt.Sprint("entries:", of.partition), 1)
		m.set(fmt.Sprint("entries:", of.partition), name, fmt.Sprint(began, " ", flags, " ", newest.State, " ", of.Champion, " ", newest.Number, " ", newest.At.UnixMilli(), " ", touched, " ", tried, " ", url.QueryEscape(of.Recipe), " ", of.Key))
	}
}
