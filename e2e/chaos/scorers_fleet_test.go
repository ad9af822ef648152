package chaos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// models are the models of a round. Only the test changes the models, so it knows their state.
type models struct {
	rnd    *rand.Rand
	store  *store.Store
	facts  *broker.Producer
	broken bool // some versions cannot be loaded
	keep   int
	all    map[string]*model
	n      int // number of facts so far
}

// model is one model, with its versions that were champions, in order.
type model struct {
	*fold.Model
	unfit  map[int]bool
	reigns []int // versions
}

func modelOf(key string) string { return "intent/" + key }

// begin makes the first champion of every key that has a champion from the beginning.
func (m *models) begin(ctx context.Context) error {
	for k := range scoredKeys {
		key := fmt.Sprint("bot-", k)
		if late, never := modelArrival(key); late || never {
			continue
		}
		if err := m.promoteNew(ctx, key, true); err != nil {
			return err
		}
	}
	return nil
}

// beginLate makes the first champion of a key whose model comes late.
func (m *models) beginLate(ctx context.Context) error {
	for k := range scoredKeys {
		key := fmt.Sprint("bot-", k)
		if late, _ := modelArrival(key); late && m.all[key] == nil {
			return m.promoteNew(ctx, key, true)
		}
	}
	return nil
}

// change changes a random champion, or tries to.
func (m *models) change(ctx context.Context) error {
	key := fmt.Sprint("bot-", m.rnd.IntN(scoredKeys))
	of := m.all[key]
	if of == nil {
		return m.beginLate(ctx)
	}
	switch n := m.rnd.IntN(20); {
	case n < 4 && len(of.reigns) > 1:
		return m.propose(ctx, key, tidemill.ActionRollback, m.formerChampion(of))
	case n == 4:
		return m.propose(ctx, key, tidemill.ActionPin, m.formerChampion(of))
	case n < 9 && of.Pin != nil:
		return m.propose(ctx, key, tidemill.ActionUnpin, 0)
	}
	return m.promoteNew(ctx, key, !m.broken || of.unfit[of.Champion] || m.rnd.IntN(12) > 0)
}

// formerChampion returns a loadable version that was champion before.
func (m *models) formerChampion(of *model) int {
	for {
		if v := of.reigns[m.rnd.IntN(len(of.reigns))]; !of.unfit[v] {
			return v
		}
	}
}

// promoteLoadable makes a loadable version the champion of every model, so that in the end each model
// answers by its champion.
func (m *models) promoteLoadable(ctx context.Context) error {
	for _, key := range m.keys() {
		of := m.all[key]
		if of.Pin != nil {
			if err := m.propose(ctx, key, tidemill.ActionUnpin, 0); err != nil {
				return err
			}
		}
		if of.unfit[of.Champion] {
			if err := m.promoteNew(ctx, key, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *models) keys() []string {
	var all []string
	for key := range m.all {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// promoteNew registers another version and makes it the champion, unless the champion is pinned.
func (m *models) promoteNew(ctx context.Context, key string, fit bool) error {
	of := m.all[key]
	number := 1
	if of != nil {
		number = of.Last + 1
	}
	files, err := m.storeVersion(ctx, modelOf(key), number, fit)
	if err != nil {
		return err
	}
	run := tidemill.ID("run", key, fmt.Sprint(number))
	began := time.Now().UTC()
	err = m.appendFact(ctx, key, run, tidemill.TypeModelRegistered, tidemill.ModelRegistered{Artifact: files.Tree, Bytes: files.Bytes, Files: files.Files,
		Judge: tidemill.Judge{Keep: m.keep}, Origin: tidemill.Origin{Run: run, Recipe: "chaos", Key: key, Began: began, Ended: began, Mark: tidemill.Mark{Offset: int64(number)}}})
	if err != nil {
		return err
	}
	if !fit {
		m.all[key].unfit[number] = true
	}
	return m.propose(ctx, key, tidemill.ActionPromote, number)
}

// storeVersion puts a version's files into the store.
func (m *models) storeVersion(ctx context.Context, name string, version int, fit bool) (api.TreeRef, error) {
	data := map[string][]byte{"model.onnx": modelFile(name, version), "model.yaml": modelCard(name, version)}
	if !fit {
		data["model.onnx"] = append([]byte("torn "), data["model.onnx"]...)
	}
	var files []api.File
	for _, path := range []string{"model.onnx", "model.yaml"} {
		sum := sha256.Sum256(data[path])
		f := api.File{Path: path, Digest: hex.EncodeToString(sum[:]), Size: int64(len(data[path]))}
		if err := m.store.PutObject(ctx, f.Digest, f.Size, bytes.NewReader(data[path])); err != nil {
			return api.TreeRef{}, err
		}
		files = append(files, f)
	}
	return m.store.Tree(ctx, files)
}

func (m *models) propose(ctx context.Context, key string, action tidemill.Action, version int) error {
	of := m.all[key]
	return m.appendFact(ctx, key, "", tidemill.TypeModelPromotionProposed, tidemill.PromotionProposed{Action: action, Version: version,
		Basis: of.Champion, Turn: of.Turn, Force: true})
}

// appendFact appends a fact to the log, and folds it.
func (m *models) appendFact(ctx context.Context, key, run, typ string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	m.n++
	v := &broker.View{ID: fmt.Sprint("fact-", m.n), Source: sourceHere, Type: typ, Subject: key, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", Data: text, Key: []byte(tidemill.ModelKey(modelOf(key))),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: modelOf(key)}, {Name: tidemill.AttrRun, Value: run}}}
	if _, err := m.facts.Publish(ctx, tidemill.StreamFacts, v); err != nil {
		return fmt.Errorf("tell of %s: %w", modelOf(key), err)
	}
	of := m.all[key]
	if of == nil {
		of = &model{Model: &fold.Model{}, unfit: map[int]bool{}}
		m.all[key] = of
	}
	turn := of.Turn
	before := of.Champion
	of.Apply(fold.Fact{Offset: int64(m.n), ID: v.ID, Type: typ, Model: modelOf(key), Key: key, Run: run, At: time.Now(), Data: text})
	if of.Turn != turn && of.Champion != before {
		of.reigns = append(of.reigns, of.Champion)
	}
	return nil
}
