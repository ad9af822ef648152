package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/fleet"
)

// modelFile is the path of the model in a version.
const modelFile = "model.onnx"

// registerAll puts the first version of every model into the store and makes it the champion.
func (w *scoreBench) registerAll(ctx context.Context) error {
	trees := make([]api.TreeRef, w.Models)
	err := forEachParallel(w.Models, func(key int) (err error) {
		trees[key], err = w.putVersion(ctx, key, 1)
		return err
	})
	if err != nil {
		return err
	}
	for key, tree := range trees {
		v := w.version(key, 1, tree)
		if err := w.writeFacts(ctx, v.registered(), v.proposed(tidemill.ActionJudge, 0), v.promoted(0)); err != nil {
			return err
		}
	}
	return w.facts.Flush(ctx)
}

// forEachParallel calls do for each number, on all cores.
func forEachParallel(n int, do func(i int) error) error {
	var next atomic.Int64
	var running sync.WaitGroup
	failed := make([]error, runtime.NumCPU())
	for i := range failed {
		running.Go(func() {
			for at := int(next.Add(1)) - 1; at < n && failed[i] == nil; at = int(next.Add(1)) - 1 {
				failed[i] = do(at)
			}
		})
	}
	running.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// putVersion puts a version's file into the store.
func (w *scoreBench) putVersion(ctx context.Context, key, version int) (api.TreeRef, error) {
	data, err := w.modelData(key, version)
	if err != nil {
		return api.TreeRef{}, err
	}
	files := []api.File{fileOf(modelFile, data)}
	err = w.store.PutObject(ctx, files[0].Digest, files[0].Size, bytes.NewReader(data))
	if w.model != "" && err == nil {
		if data, err = os.ReadFile(filepath.Join(filepath.Dir(w.model), cardFile)); err == nil {
			files = append(files, fileOf(cardFile, data))
			err = w.store.PutObject(ctx, files[1].Digest, files[1].Size, bytes.NewReader(data))
		}
	}
	if err != nil {
		return api.TreeRef{}, fmt.Errorf("put version %d of model %d: %w", version, key, err)
	}
	return w.store.Tree(ctx, files)
}

func fileOf(path string, data []byte) api.File {
	sum := sha256.Sum256(data)
	return api.File{Path: path, Digest: hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

func (w *scoreBench) modelData(key, version int) ([]byte, error) {
	if w.model != "" {
		return os.ReadFile(w.model)
	}
	return w.Network.File(fleet.Seed(key, version)), nil
}

// loadVersion is a version of a model. Its methods return the facts about it.
type loadVersion struct {
	names  tidemill.Names
	key    int
	number int
	tree   api.TreeRef
}

func (w *scoreBench) version(key, number int, tree api.TreeRef) loadVersion {
	return loadVersion{w.st.names, key, number, tree}
}

func (v loadVersion) run() string {
	return tidemill.ID("run", fleet.Model(v.key), fmt.Sprint(v.number))
}

func (v loadVersion) origin() tidemill.Origin {
	began := time.Now().UTC()
	return tidemill.Origin{Run: v.run(), Recipe: "load", Key: fleet.Key(v.key), Attempt: 1, Began: began, Ended: began, Causes: 1,
		Mark: tidemill.Mark{Partition: 0, Offset: int64(v.number)}}
}

func (v loadVersion) registered() broker.View {
	return v.fact(tidemill.TypeModelRegistered, tidemill.ModelRegistered{Artifact: v.tree.Tree, Bytes: v.tree.Bytes, Files: v.tree.Files, Report: v.tree.Tree,
		Judge: tidemill.Judge{On: tidemill.GateOnRecorded, Promote: tidemill.PromoteAuto, Keep: 1000}, Origin: v.origin()})
}

// proposed returns the proposal to replace the version basis. A version's turn is its number.
func (v loadVersion) proposed(action tidemill.Action, basis int) broker.View {
	origin := v.origin()
	d := tidemill.PromotionProposed{Action: action, Version: v.number, Run: v.run(), Basis: basis, Turn: int64(basis), Artifact: v.tree.Tree, Origin: &origin}
	if action == tidemill.ActionJudge {
		d.Judgement = &tidemill.Judgement{Passed: true, Sentence: "it is measured with"}
	} else {
		d.Force = true
	}
	return v.fact(tidemill.TypeModelPromotionProposed, d)
}

func (v loadVersion) promoted(before int) broker.View {
	return v.fact(tidemill.TypeModelPromoted, tidemill.ModelAnnounced{Proposal: v.id(tidemill.TypeModelPromotionProposed), Version: v.number, Champion: v.number,
		Artifact: v.tree.Tree, Before: before, Turn: int64(v.number)})
}

func (v loadVersion) id(typ string) string {
	return tidemill.ID(typ, fleet.Model(v.key), fmt.Sprint(v.number))
}

func (v loadVersion) fact(typ string, data any) broker.View {
	text, _ := json.Marshal(data) // marshalling texts and numbers cannot fail
	return broker.View{ID: v.id(typ), Source: v.names.Source("loadtest"), Type: typ, Subject: fleet.Key(v.key), Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(typ), DataContentType: "application/json", Data: text, Key: []byte(tidemill.ModelKey(fleet.Model(v.key))),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: fleet.Model(v.key)}, {Name: tidemill.AttrModelVersion, Value: fmt.Sprint(v.number)},
			{Name: tidemill.AttrRecipe, Value: "load"}, {Name: tidemill.AttrRun, Value: v.run()}}}
}

// writeFacts puts facts on the log.
func (w *scoreBench) writeFacts(ctx context.Context, facts ...broker.View) error {
	refused := make(chan error, 1)
	for i := range facts {
		w.facts.Send(ctx, tidemill.StreamFacts, &facts[i], func(_ broker.Receipt, err error) {
			if err != nil {
				select {
				case refused <- err:
				default:
				}
			}
		})
	}
	select {
	case err := <-refused:
		return fmt.Errorf("write a fact of a model: %w", err)
	default:
		return nil
	}
}

// The second file that the example's trainer writes.
const cardFile = "model.yaml"

// trainTexts runs examples/intents, which trains its model on one bot's messages. These messages
// are also the scenario's events.
func (w *scoreBench) trainTexts(ctx context.Context) (err error) {
	source := filepath.Join(sourceFolder(filepath.Join("..", "examples", "intents")), "data", "bot-shop")
	out := filepath.Join(w.folder, "intents")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, w.built.texts)
	c.Env = append(os.Environ(), "TIDEMILL_IN="+source, "TIDEMILL_OUT="+out)
	if said, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("train the model of examples/intents: %w: %s", err, said)
	}
	w.model = filepath.Join(out, modelFile)
	w.fleet.Texts, err = readTexts(source)
	return err
}

// readTexts reads the first column of all CSV files of a folder.
func readTexts(folder string) (all []string, err error) {
	err = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".csv") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		rows, err := csv.NewReader(f).ReadAll()
		for i, row := range rows {
			if i > 0 {
				all = append(all, row[0])
			}
		}
		return errors.Join(err, f.Close())
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there are no messages below %s; run this from the repository's root", folder)
	}
	return all, err
}
