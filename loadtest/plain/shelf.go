package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/loadtest/internal/task"
)

// model is a loaded model of either engine.
type model interface {
	Inputs() []tensor.Spec
	Outputs() []tensor.Spec
	Metadata() map[string]string
	Run(in, out []tensor.Tensor) error
}

// modelCache has the models that have been loaded.
type modelCache struct {
	task    task.Scoring
	runtime *ort.Runtime // nil for Go's engine
	models  sync.Map     // models by subject, as *labelledModel
}

// labelledModel is a model and the names of its classes.
type labelledModel struct {
	model
	labels []string
}

func openShelf(t task.Scoring) (*modelCache, error) {
	s := &modelCache{task: t}
	if t.Engine != "onnxruntime" {
		return s, nil
	}
	var err error
	s.runtime, err = ort.Open("")
	return s, err
}

// findModel returns a subject's model, and loads it the first time.
func (s *modelCache) findModel(subject string) (*labelledModel, error) {
	if m, ok := s.models.Load(subject); ok {
		return m.(*labelledModel), nil
	}
	data, err := os.ReadFile(filepath.Join(s.task.Models, subject+".onnx"))
	if err != nil {
		return nil, err
	}
	l := &labelledModel{}
	if s.runtime != nil {
		l.model, err = s.runtime.Load(data)
	} else {
		l.model, err = native.Load(data)
	}
	if err != nil {
		return nil, fmt.Errorf("load the model of %s: %w", subject, err)
	}
	if l.labels, err = labelsOf(l.Metadata()["labels"]); err != nil {
		return nil, fmt.Errorf("read the labels of the model of %s: %w", subject, err)
	}
	s.models.Store(subject, l)
	return l, nil
}

// labelsOf reads a list of labels in JSON or with commas.
func labelsOf(text string) (all []string, err error) {
	if strings.HasPrefix(text, "[") {
		err = json.Unmarshal([]byte(text), &all)
		return all, err
	}
	return strings.Split(text, ","), nil
}

// className returns the name of a class.
func (l *labelledModel) className(i int) string {
	if i < len(l.labels) {
		return l.labels[i]
	}
	return fmt.Sprint(i)
}
