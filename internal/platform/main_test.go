package platform

import (
	"fmt"
	"os"
	"testing"

	"tidemill.dev/internal/scoring/infer/sandbox"
)

// The test binary is ONNX Runtime's process too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == sandbox.Argument {
		if err := sandbox.Child(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv(sandbox.InTests, "yes")
	os.Exit(m.Run())
}
