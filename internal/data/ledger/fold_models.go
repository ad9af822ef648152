package ledger

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"tidemill.dev"
)

// The hashes of models, besides what the fold reads again.
const (
	hashVersions   = "versions"   // model@number → JSON
	hashJudgements = "judgements" // the same, of those that were judged
	hashOwed       = "owed"       // models with announcements due → how many
	hashListed     = "listed"     // partition → behind which fact its entries have changed last
	hashEntries    = "entries:"   // and the partition: model → entry
)

// lineage folds the facts of one model.
type lineage struct {
	model      *tidemill.Model
	before     modelOutline
	registered map[int]*tidemill.Version   // that are kept
	judged     map[int]*tidemill.Judgement // of kept ones
}

// modelOutline is what Redis lists of a model.
type modelOutline struct {
	entry string         // empty if it is not listed
	runs  map[int]string // of the versions that are kept
	owed  int
}

func outlineOfModel(m *tidemill.Model) modelOutline {
	o := modelOutline{runs: make(map[int]string, len(m.Versions)), owed: len(m.Owed)}
	if e, ok := entryOf(m); ok {
		o.entry = e.value()
	}
	for _, h := range m.Versions {
		o.runs[h.Number] = h.Run
	}
	return o
}

func lineageOf(_ string, m *tidemill.Model) *lineage {
	return &lineage{model: m, before: outlineOfModel(m), registered: map[int]*tidemill.Version{}, judged: map[int]*tidemill.Judgement{}}
}

func (f *lineage) apply(fact tidemill.Fact) {
	v := f.model.Apply(fact)
	if v.Registered != nil {
		f.registered[v.Registered.Number] = v.Registered
	}
	if v.Judgement != nil {
		f.judged[v.Judged] = v.Judgement
	}
	for _, number := range v.Dropped { // perhaps the one just registered
		delete(f.registered, number)
		delete(f.judged, number)
	}
}

// addModel writes down what is different.
func (c *changes) addModel(f *lineage) error {
	m := f.model
	whole, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.states[place{hashModels, m.Name}] = whole
	after := outlineOfModel(m)
	if after.entry != f.before.entry {
		c.record(hashEntries+strconv.Itoa(int(c.partition)), m.Name, after.entry)
	}
	if after.owed != f.before.owed {
		owed := ""
		if after.owed > 0 {
			owed = strconv.Itoa(after.owed)
		}
		c.record(hashOwed, m.Name, owed)
	}
	c.addMade(m.Name, f.before.runs, after.runs)
	if err := addRecords(c, hashVersions, m.Name, f.registered); err != nil {
		return err
	}
	return addRecords(c, hashJudgements, m.Name, f.judged)
}

// addMade links versions to their runs, and lets go of what is not kept.
func (c *changes) addMade(name string, before, after map[int]string) {
	for number, run := range before {
		if _, kept := after[number]; !kept {
			version := tidemill.VersionName(name, number)
			c.made = append(c.made, linkEnd(kindRun, run), version, "")
			c.record(hashVersions, version, "")
			c.record(hashJudgements, version, "")
		}
	}
	for number, run := range after {
		if _, kept := before[number]; !kept {
			c.made = append(c.made, linkEnd(kindRun, run), tidemill.VersionName(name, number), yes(true))
		}
	}
}

func addRecords[T any](c *changes, hash, name string, all map[int]*T) error {
	for _, number := range slices.Sorted(maps.Keys(all)) {
		whole, err := json.Marshal(all[number])
		if err != nil {
			return err
		}
		c.record(hash, tidemill.VersionName(name, number), string(whole))
	}
	return nil
}

// stampEntries lets those who keep the list of models see that it is another.
func (c *changes) stampEntries() {
	if partition := strconv.Itoa(int(c.partition)); len(c.records[hashEntries+partition]) > 0 {
		c.record(hashListed, partition, strconv.FormatInt(c.next, 10))
	}
}
