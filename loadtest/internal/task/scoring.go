package task

import (
	"encoding/json"
	"fmt"
)

// Scoring is the work of those who score beside ours: they read Topic and write
// Out.
type Scoring struct {
	Task
	Models string // folder with the file <subject>.onnx for each subject
	Engine string // onnxruntime, native
	Input  string // member of the data that has the model's input
}

// ParseScoring reads it from the only argument.
func ParseScoring(arg string) (Scoring, error) {
	var s Scoring
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return s, fmt.Errorf("read the task %q: %w", arg, err)
	}
	return s, nil
}
