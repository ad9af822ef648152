//go:build real

package platform

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// The official clients of the Open Inference Protocol work with their defaults, over HTTP and over gRPC.
func TestRealInferenceClients(t *testing.T) {
	w := newRPCWorld(t)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	ctx := w.ctx()
	set, err := realservers.Protoc(ctx, t.TempDir(), "../scoring/oip/protobuf/inference.proto")
	w.must(err)
	page, err := os.ReadFile("../../docs/api.md")
	w.must(err)
	_, example, found := strings.Cut(string(page), "```python\n")
	example, _, _ = strings.Cut(example, "```\n")
	if !found || !strings.Contains(example, "tritonclient.grpc") {
		t.Fatal("docs/api.md has no example for gRPC")
	}
	for name, start := range map[string]func(context.Context) (*exec.Cmd, error){
		"triton": func(ctx context.Context) (*exec.Cmd, error) {
			return realservers.PythonInference(ctx, "testdata/inference/triton.py", w.http, w.rpc, set)
		},
		"kserve": func(ctx context.Context) (*exec.Cmd, error) {
			return realservers.PythonInference(ctx, "testdata/inference/kserve_client.py", "http://"+w.http, w.rpc)
		},
		"docs/api.md": func(ctx context.Context) (*exec.Cmd, error) {
			cmd, err := realservers.PythonInference(ctx, "-c", example)
			if err == nil {
				cmd.Env = append(cmd.Env, "TIDEMILL_GRPC="+w.rpc)
			}
			return cmd, err
		},
		"java": func(ctx context.Context) (*exec.Cmd, error) {
			return realservers.JavaInference(ctx, t.TempDir(), "testdata/inference/Ask.java", w.rpc)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, err := start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
