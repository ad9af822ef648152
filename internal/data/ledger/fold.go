package ledger

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// changes are the changes that some facts of one partition make in Redis: the difference
// between the states before the first and after the last fact.
type changes struct {
	partition  int32
	from, next int64
	last       *lastFact           // last of the facts; nil if there are none
	states     map[place][]byte    // makings and models, as JSON
	records    map[string][]string // fields and their values, by hash; an empty value deletes the field
	rows       []runRow
	live       []string // id, value; see liveValue
	pending    []string // recipe/key, recipe, value; see pendingValue
	keys       []string // recipe, key, "1" if the key is one of the recipe's; see listsKey
	made       []string // run, version, "1" if the version is kept; see addMade
}

// runRow is the new value of a run; see runValue. An empty value deletes the run.
type runRow struct {
	asked             int64 // offset of the first fact that asked for the run
	id, recipe, value string
}

// runs returns the rows in the order in which the runs were asked for, because links list
// the newest run last.
func (c *changes) runs() []string {
	slices.SortStableFunc(c.rows, func(a, b runRow) int { return cmp.Compare(a.asked, b.asked) })
	all := make([]string, 0, 3*len(c.rows))
	for _, r := range c.rows {
		all = append(all, r.id, r.recipe, r.value)
	}
	return all
}

// record sets one field of a hash; an empty value deletes it.
func (c *changes) record(hash, field, value string) {
	c.records[hash] = append(c.records[hash], field, value)
}

// folding folds the facts of one making.
type folding struct {
	member string
	making *fold.Making
	before outline
	listed []string                 // ids of the runs that had ended before
	ended  map[string]*tidemill.Run // runs that have ended since, and that the making still names
	forgot map[string]bool          // ids that the making does not name any more
}

func foldingOf(member string, m *fold.Making) *folding {
	return &folding{member: member, making: m, before: outlineOf(m), listed: slices.Clone(m.Ended)}
}

func (f *folding) apply(fact fold.Fact) {
	v := f.making.Apply(fact)
	if v.Ended != nil {
		if f.ended == nil {
			f.ended = map[string]*tidemill.Run{}
		}
		f.ended[v.Ended.ID] = v.Ended
		delete(f.forgot, v.Ended.ID)
	}
	for _, id := range v.Forgotten {
		if f.forgot == nil {
			f.forgot = map[string]bool{}
		}
		f.forgot[id] = true
		delete(f.ended, id)
	}
}

// add adds the changes of a making.
func (c *changes) add(f *folding) error {
	m := f.making
	whole, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.states[place{hashMakings, f.member}] = whole
	after := outlineOf(m)
	if after.key != f.before.key {
		c.keys = append(c.keys, m.Recipe, m.Key, flag(after.key))
	}
	if after.entry != f.before.entry {
		c.record(hashKeyEntries+strconv.Itoa(int(c.partition)), f.member, after.entry)
	}
	if after.pending != f.before.pending {
		c.pending = append(c.pending, f.member, m.Recipe, after.pending)
	}
	c.addLive(&f.before, &after)
	for id := range f.forgot {
		if after.run(id) == nil && (f.before.run(id) != nil || slices.Contains(f.listed, id)) {
			c.rows = append(c.rows, runRow{0, id, m.Recipe, ""})
		}
	}
	for i := range after.runs {
		o := &after.runs[i]
		if was := f.before.run(o.id); was == nil || was.value != o.value {
			c.rows = append(c.rows, runRow{o.asked, o.id, m.Recipe, o.value})
		}
	}
	for id, r := range f.ended {
		v, err := endedValue(r)
		if err != nil {
			return err
		}
		c.rows = append(c.rows, runRow{r.Asked[0], id, m.Recipe, v})
	}
	return nil
}

func (c *changes) addLive(before, after *outline) {
	for _, o := range after.runs {
		if was := before.run(o.id); o.live != "" && (was == nil || was.live != o.live) {
			c.live = append(c.live, o.id, o.live)
		}
	}
	for _, o := range before.runs {
		if is := after.run(o.id); o.live != "" && (is == nil || is.live == "") {
			c.live = append(c.live, o.id, "")
		}
	}
}

// flag returns a boolean in the form that the scripts expect.
func flag(is bool) string {
	if is {
		return "1"
	}
	return ""
}

// The hashes of models and keys. The fold does not read them.
const (
	hashVersions   = "versions"    // model@number → JSON of the version
	hashJudgements = "judgements"  // model@number → JSON of the judgement, if it was judged
	hashOwed       = "owed"        // model → number of announcements due
	hashListed     = "listed"      // partition → next offset when its entries changed last
	hashEntries    = "entries:"    // prefix before the partition: model → entry
	hashKeyListed  = "keylisted"   // partition → next offset when its entries of keys changed last
	hashKeyEntries = "keyentries:" // prefix before the partition: recipe/key → entry
	hashLengths    = "lengths"     // entries:<partition>, keyentries:<partition> → number of its entries
)

// modelFolding folds the facts of one model.
type modelFolding struct {
	model      *fold.Model
	before     modelOutline
	registered map[int]*tidemill.Version   // versions that were registered and are kept
	judged     map[int]*tidemill.Judgement // judgements of versions that are kept
}

// modelOutline has the parts of a model that Redis lists.
type modelOutline struct {
	entry string         // entry in the list of models; empty if it is not listed
	runs  map[int]string // run of each version that is kept
	owed  int
}

func outlineOfModel(m *fold.Model) modelOutline {
	o := modelOutline{runs: make(map[int]string, len(m.Versions)), owed: len(m.Owed)}
	if e, ok := entryOf(m); ok {
		o.entry = e.value()
	}
	for _, h := range m.Versions {
		o.runs[h.Number] = h.Run
	}
	return o
}

func modelFoldingOf(_ string, m *fold.Model) *modelFolding {
	return &modelFolding{model: m, before: outlineOfModel(m), registered: map[int]*tidemill.Version{}, judged: map[int]*tidemill.Judgement{}}
}

func (f *modelFolding) apply(fact fold.Fact) {
	v := f.model.Apply(fact)
	if v.Registered != nil {
		f.registered[v.Registered.Number] = v.Registered
	}
	if v.Judgement != nil {
		f.judged[v.Judged] = v.Judgement
	}
	for _, number := range v.Dropped { // the version just registered may be among them
		delete(f.registered, number)
		delete(f.judged, number)
	}
}

// addModel adds the changes of a model.
func (c *changes) addModel(f *modelFolding) error {
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

// addMade links versions to their runs, and removes the records of versions that are not
// kept any more.
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
			c.made = append(c.made, linkEnd(kindRun, run), tidemill.VersionName(name, number), flag(true))
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

// stampEntries marks the partition's entries as changed, so that each process with a copy
// of the lists reads them again.
func (c *changes) stampEntries() {
	partition := strconv.Itoa(int(c.partition))
	for entries, stamps := range map[string]string{hashEntries: hashListed, hashKeyEntries: hashKeyListed} {
		if len(c.records[entries+partition]) > 0 {
			c.record(stamps, partition, strconv.FormatInt(c.next, 10))
		}
	}
}
