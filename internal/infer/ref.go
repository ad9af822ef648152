package infer

import (
	"errors"
	"strconv"
)

// Ref names a version of a model and where its files are.
type Ref struct {
	Model    string // intent/bot-42
	Version  int
	Artifact string // tree in the store
	Engine   string // EngineAuto, EngineGo or EngineONNXRuntime; empty is EngineAuto
}

// The engines.
const (
	EngineAuto        = "auto" // Go's where it takes the graph, else ONNX Runtime
	EngineGo          = "go"
	EngineONNXRuntime = "onnxruntime"
)

// ErrUnfit says that a version cannot be loaded here or anywhere, so that trying
// again is of no use: the files are not a model that an engine takes, or its
// golden request fails.
var ErrUnfit = errors.New("cannot serve")

// ErrClosed says that the cache has been closed.
var ErrClosed = errors.New("the cache of models is closed")

func (r *Ref) String() string { return r.Model + " version " + strconv.Itoa(r.Version) }

// key is what is held once, however many versions and models it is of: a
// rollback, or a model that begins as another's copy, is the same files.
type key struct{ artifact, engine string }

func (r *Ref) key() key {
	if r.Engine == "" {
		return key{r.Artifact, EngineAuto}
	}
	return key{r.Artifact, r.Engine}
}

// popularity is what a use is counted under: the model, so that a new version is
// as welcome as the one before it has been.
func (r *Ref) popularity() uint64 {
	h := uint64(14695981039346656037)
	for i := range len(r.Model) {
		h = (h ^ uint64(r.Model[i])) * 1099511628211
	}
	return mix(h)
}

// mix spreads a hash over all of its bits.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
