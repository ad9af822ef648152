package task

import (
	"encoding/json"
	"fmt"
)

// Scoring is the work of a scorer that is not ours. The scorer reads Topic and writes Out.
type Scoring struct {
	Task
	Models string // folder with the file <subject>.onnx for each subject
	Engine string // onnxruntime, native
	Input  string // member of the data that has the model's input
}

// ParseScoring reads the work from the only argument.
func ParseScoring(arg string) (Scoring, error) {
	var s Scoring
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return s, fmt.Errorf("read the task %q: %w", arg, err)
	}
	return s, nil
}
