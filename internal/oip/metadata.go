package oip

import (
	"strconv"

	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/infer/tensor"
)

type serverMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

type modelMetadata struct {
	Name     string           `json:"name"`
	Versions []string         `json:"versions"`
	Platform string           `json:"platform"`
	Inputs   []tensorMetadata `json:"inputs"`
	Outputs  []tensorMetadata `json:"outputs"`
}

type tensorMetadata struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"` // -1 is any size
}

// platform is the protocol's name for models in ONNX, whatever runs them.
const platform = "onnx_onnxv1"

// metadataOf tells of one version: the one that was asked for, or the champion.
func metadataOf(m *infer.Model) modelMetadata {
	return modelMetadata{Name: m.Ref().Model, Versions: []string{strconv.Itoa(m.Ref().Version)}, Platform: platform,
		Inputs: tensorsMetadata(m.Inputs()), Outputs: tensorsMetadata(m.Outputs())}
}

func tensorsMetadata(all []tensor.Spec) []tensorMetadata {
	told := make([]tensorMetadata, len(all))
	for i, s := range all {
		told[i] = tensorMetadata{s.Name, datatypeOf(s.Type), append([]int{}, s.Shape...)}
	}
	return told
}

func datatypeOf(t tensor.Type) string {
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
