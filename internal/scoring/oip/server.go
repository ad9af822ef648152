package oip

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tidemill.dev"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/serving"
)

// Options configure a Server.
type Options struct {
	// Models returns the models. The first call that needs them calls it.
	Models  func(context.Context) (*serving.Models, error)
	Ready   func(context.Context) bool
	Version string // program's version
}

// Server answers calls. The gateway has authorized the caller before. It is safe for concurrent use.
type Server struct {
	o     Options
	calls sync.Pool // values are *Call
	joins joins
}

// New makes a Server.
func New(o Options) *Server {
	return &Server{o: o, joins: joins{most: runtime.GOMAXPROCS(0), all: map[any]*line{}}}
}

// Ready reports whether the process can answer.
func (s *Server) Ready(ctx context.Context) bool { return s.o.Ready(ctx) }

// ModelReady loads a version, because only a loaded model can serve.
func (s *Server) ModelReady(ctx context.Context, name string, version int) (bool, error) {
	m, err := s.open(ctx, name, version)
	if err != nil && CodeOf(err) != Unavailable {
		return false, err
	}
	if err == nil {
		m.Release()
	}
	return err == nil, nil
}

// open returns a version, which the caller releases. Version 0 is the champion.
func (s *Server) open(ctx context.Context, name string, version int) (*infer.Model, error) {
	if err := tidemill.CheckDataset(name); err != nil {
		return nil, Errorf(NotFound, "%.100q names no model: %v", name, err)
	}
	models, err := s.o.Models(ctx)
	if err != nil {
		return nil, err
	}
	if version > 0 {
		return openVersion(ctx, models, name, version)
	}
	return openChampion(ctx, models, name)
}

// openVersion loads a version of a model that has or had a champion. Versions of other models must
// not be served.
func openVersion(ctx context.Context, models *serving.Models, name string, version int) (*infer.Model, error) {
	if !models.Known(name) {
		return nil, unknownModel(name)
	}
	m, err := models.At(ctx, name, version)
	switch {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, err
	case errors.Is(err, infer.ErrUnfit), errors.Is(err, infer.ErrNoRuntime):
		return nil, Errorf(Broken, "%v", err)
	case errors.Is(err, champions.ErrNoVersion):
		return nil, Errorf(NotFound, "%v", err)
	}
	return nil, err // a server below is away
}

func unknownModel(name string) error {
	return Errorf(NotFound, "model %q has no champion, or there is none: GET /api/v1/models lists the models", name)
}

// openChampion waits for a model that is being loaded, until the context ends.
func openChampion(ctx context.Context, models *serving.Models, name string) (*infer.Model, error) {
	if !models.Known(name) {
		return nil, unknownModel(name)
	}
	for slot := models.Slot(name); ; {
		m, state := slot.Use()
		switch state {
		case serving.Ready:
			return m, nil
		case serving.Missing:
			return nil, unknownModel(name)
		case serving.Broken:
			return nil, Errorf(Broken, "model %s cannot be loaded: %v", name, slot.Err())
		}
		if err := slot.Err(); errors.Is(err, infer.ErrNoRuntime) { // a person has to install it
			return nil, Errorf(Broken, "model %s cannot be loaded: %v", name, err)
		}
		select {
		case <-slot.Waiter():
		case <-ctx.Done():
			return nil, fmt.Errorf("model %s is not loaded yet: %w", name, errors.Join(context.Cause(ctx), slot.Err()))
		}
	}
}

// Entry is a model in the index of the repository.
type Entry struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	State   string `json:"state"` // READY if the model is in memory, else UNAVAILABLE
	Reason  string `json:"reason"`
}

// entryBytes is the memory of an Entry and of its JSON.
const entryBytes = 512

// Index lists the models that have a champion, by name; if onlyReady is set, only those in memory. A
// model that is not in memory is loaded by the first request that names it.
func (s *Server) Index(ctx context.Context, onlyReady bool) ([]Entry, error) {
	models, err := s.o.Models(ctx)
	if err != nil {
		return nil, err
	}
	all, budget := []Entry{}, infer.BudgetOf(ctx)
	models.Each(func(model string, version int, loaded bool) {
		if onlyReady && !loaded || err != nil {
			return
		}
		if budget != nil {
			err = budget.Take(entryBytes)
		}
		e := Entry{Name: model, Version: strconv.Itoa(version), State: "READY"}
		if !loaded {
			e.State, e.Reason = "UNAVAILABLE", "not in memory: the first request loads it"
		}
		all = append(all, e)
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Load loads the champion of a model.
func (s *Server) Load(ctx context.Context, name string) error {
	m, err := s.open(ctx, name, 0)
	if err == nil {
		m.Release()
	}
	return err
}

// Unload takes a model out of memory. The next request that names it loads it again.
func (s *Server) Unload(ctx context.Context, name string) error {
	models, err := s.o.Models(ctx)
	if err != nil {
		return err
	}
	if !models.Known(name) {
		return unknownModel(name)
	}
	models.Unload(name)
	return nil
}

// ServerMetadata describes the server.
type ServerMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

// Metadata describes the server.
func (s *Server) Metadata() ServerMetadata {
	return ServerMetadata{Name: "tidemill", Version: s.o.Version, Extensions: []string{"binary_tensor_data", "model_repository"}}
}

// ModelMetadata describes a version of a model.
type ModelMetadata struct {
	Name     string           `json:"name"`
	Versions []string         `json:"versions"`
	Platform string           `json:"platform"`
	Inputs   []TensorMetadata `json:"inputs"`
	Outputs  []TensorMetadata `json:"outputs"`
}

// TensorMetadata describes an input or an output.
type TensorMetadata struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"` // -1 is any size
}

// platform is the protocol's name for ONNX models, with every engine.
const platform = "onnx_onnxv1"

// ModelMetadata describes one version: the requested one, or the champion.
func (s *Server) ModelMetadata(ctx context.Context, name string, version int) (ModelMetadata, error) {
	m, err := s.open(ctx, name, version)
	if err != nil {
		return ModelMetadata{}, err
	}
	defer m.Release()
	return ModelMetadata{Name: m.Ref().Model, Versions: []string{strconv.Itoa(m.Ref().Version)}, Platform: platform,
		Inputs: tensorsMetadata(m.Inputs()), Outputs: tensorsMetadata(m.Outputs())}, nil
}

func tensorsMetadata(all []tensor.Spec) []TensorMetadata {
	told := make([]TensorMetadata, len(all))
	for i, s := range all {
		told[i] = TensorMetadata{s.Name, Datatype(s.Type), append([]int{}, s.Shape...)}
	}
	return told
}

// Datatype returns the protocol's name of a type.
func Datatype(t tensor.Type) string {
	switch t {
	case tensor.Float:
		return "FP32"
	case tensor.Double:
		return "FP64"
	case tensor.Int32:
		return "INT32"
	case tensor.Int64:
		return "INT64"
	case tensor.Bool:
		return "BOOL"
	}
	return "BYTES"
}
