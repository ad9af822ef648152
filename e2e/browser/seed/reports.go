package seed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/evaluate"
)

// A quality is an index of the accuracies that versions have, from 0.62 to 0.97.
const (
	best     = 14
	examples = 400
)

func accuracy(quality int) float64 { return 0.62 + 0.025*float64(quality) }

func intents() []string { return []string{"cancel", "greet", "order", "refund", "complain", "other"} }

// reports makes the reports of versions, from predictions that it makes up. Versions with the same
// qualities share a report.
type reports struct {
	store *store.Store
	mu    sync.Mutex
	made  map[[3]int]madeReport
}

type madeReport struct {
	report tidemill.Report
	tree   string
}

// claimed returns the metrics that a trainer writes.
func (r *reports) claimed(quality int) map[string]float64 {
	return map[string]float64{"accuracy": accuracy(quality), "loss": 1.2 - accuracy(quality), "epochs": 10, "examples": examples}
}

// of returns the report of a version next to its champion, and the tree with it. A champion of 0 is
// none.
func (r *reports) of(ctx context.Context, quality, champions, champion int) (*tidemill.Report, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := [3]int{quality, champions, champion}
	if m, ok := r.made[at]; ok {
		return &m.report, m.tree, nil
	}
	p, err := evaluate.Read(strings.NewReader(predictions(quality, champions, champion != 0)))
	if err != nil {
		return nil, "", fmt.Errorf("evaluate made-up predictions: %w", err)
	}
	m := madeReport{report: evaluate.Report(&p, nil, r.claimed(quality), champion)}
	text, err := json.Marshal(m.report)
	if err == nil {
		var ref api.TreeRef
		ref, err = putFiles(ctx, r.store, map[string][]byte{"report.json": text})
		m.tree = ref.Tree
	}
	if err != nil {
		return nil, "", fmt.Errorf("store a report: %w", err)
	}
	r.made[at] = m
	return &m.report, m.tree, nil
}

// predictions returns a predictions.csv. Most wrong answers are the next label, so that the confusion
// matrix has a shape. The accuracies are exact, so that the gate decides as the caller wants.
func predictions(quality, champions int, beside bool) string {
	r := rand.New(rand.NewPCG(uint64(quality), uint64(champions)))
	truth := make([]int, examples)
	for i := range truth {
		truth[i] = min(int(r.ExpFloat64()*2), len(intents())-1)
	}
	own, others := answers(r, truth, quality), answers(r, truth, champions)
	var b strings.Builder
	b.WriteString("truth,predicted")
	if beside {
		b.WriteString(",champion")
	}
	for i, of := range truth {
		fmt.Fprintf(&b, "\n%s,%s", intents()[of], intents()[own[i]])
		if beside {
			b.WriteString("," + intents()[others[i]])
		}
	}
	return b.String() + "\n"
}

// answers returns answers of which as many are wrong as the quality says.
func answers(r *rand.Rand, truth []int, quality int) []int {
	all := slices.Clone(truth)
	wrong := examples - int(math.Round(examples*accuracy(quality)))
	for _, i := range r.Perm(examples)[:wrong] {
		all[i] = (truth[i] + 1 + min(int(r.ExpFloat64()), len(intents())-2)) % len(intents())
	}
	return all
}

// putFiles stores files and returns their tree.
func putFiles(ctx context.Context, s *store.Store, files map[string][]byte) (api.TreeRef, error) {
	var all []api.File
	for path, data := range files {
		sum := sha256.Sum256(data)
		f := api.File{Path: path, Digest: hex.EncodeToString(sum[:]), Size: int64(len(data))}
		if err := s.PutObject(ctx, f.Digest, f.Size, bytes.NewReader(data)); err != nil {
			return api.TreeRef{}, err
		}
		all = append(all, f)
	}
	return s.Tree(ctx, all)
}
