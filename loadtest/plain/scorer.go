package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/segmentio/kafka-go"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// scorer holds the tensors that one goroutine reuses.
type scorer struct{ in, out []tensor.Tensor }

// scoredData is the data of a scored event.
type scoredData struct {
	Label  string             `json:"label"`
	Score  float32            `json:"score"`
	Scores map[string]float32 `json:"scores"`
}

func (s *scorer) score(ctx context.Context, shelf *modelCache, m *kafka.Message) (kafka.Message, error) {
	in, err := decode(ctx, m)
	if err != nil {
		return kafka.Message{}, err
	}
	model, err := shelf.findModel(in.Subject())
	if err != nil {
		return kafka.Message{}, err
	}
	if err := s.fillInput(in.Data(), shelf.task.Input, model); err != nil {
		return kafka.Message{}, fmt.Errorf("event %s: %w", in.ID(), err)
	}
	if err := model.Run(s.in, s.out); err != nil {
		return kafka.Message{}, fmt.Errorf("event %s: %w", in.ID(), err)
	}
	return s.output(in, m, model)
}

// fillInput decodes the data and makes it the model's only input, a table of one row.
func (s *scorer) fillInput(data []byte, member string, model *labelledModel) error {
	if s.in == nil {
		s.in, s.out = make([]tensor.Tensor, 1), make([]tensor.Tensor, len(model.Outputs()))
	}
	spec := model.Inputs()[0]
	if spec.Type == tensor.String {
		var d map[string]string
		if err := json.Unmarshal(data, &d); err != nil {
			return err
		}
		s.in[0] = tensor.Tensor{Type: tensor.String, Shape: []int{1}, Strings: []string{d[member]}}
		return nil
	}
	var d struct {
		X []float32 `json:"x"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return err
	}
	s.in[0] = tensor.Tensor{Type: tensor.Float, Shape: []int{1, len(d.X)}, Floats: d.X}
	return nil
}

func (s *scorer) output(in *event.Event, m *kafka.Message, model *labelledModel) (kafka.Message, error) {
	scores := s.out[0].Floats
	a, best := scoredData{Scores: make(map[string]float32, len(scores))}, 0
	for i, v := range scores {
		a.Scores[model.className(i)] = v
		if v > scores[best] {
			best = i
		}
	}
	a.Label, a.Score = model.className(best), scores[best]
	out := event.New()
	out.SetID(fmt.Sprintf("%s/%d/%d", m.Topic, m.Partition, m.Offset))
	out.SetSource("/plain/scorer")
	out.SetType("com.example.scored")
	out.SetSubject(in.Subject())
	out.SetTime(in.Time())
	out.SetExtension("model", in.Subject())
	out.SetExtension("modelversion", "1")
	out.SetExtension("causationid", in.ID())
	out.SetExtension("causationsource", in.Source())
	if err := out.SetData(event.ApplicationJSON, a); err != nil {
		return kafka.Message{}, err
	}
	return encode(&out, m.Key)
}
