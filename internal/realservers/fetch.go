package realservers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

const (
	tries    = 4 // that a registry is asked
	tryAgain = 20 * time.Second
)

// Fetch gets all that tests would else get when the first of them asks, so that
// none has to do so within its own patience. What fails is tried again, as
// registries have bad moments; what is there stays.
func Fetch(ctx context.Context) error {
	for _, get := range []func(context.Context) (string, error){
		gateway,
		kafkaJars,
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, pythonLibrary) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, onnxLibrary) },
		func(ctx context.Context) (string, error) { return pythonLibraries(ctx, onnxLibrary, onnxRuntime) },
		NodeModules,
	} {
		if err := insist(ctx, get); err != nil {
			return err
		}
	}
	return nil
}

func insist(ctx context.Context, get func(context.Context) (string, error)) error {
	for try := 1; ; try++ {
		_, err := get(ctx)
		if err == nil || try == tries || errors.Is(err, exec.ErrNotFound) {
			return err
		}
		fmt.Fprintf(os.Stderr, "in %v it is tried again to %v\n", tryAgain, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(tryAgain):
		}
	}
}
