package embedded

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kfake"
)

// bridge hands kfake's log lines to slog.
type bridge struct{ log *slog.Logger }

var _ kfake.Logger = bridge{}

// Logf logs what kfake has to say. Its info is a line a request, which is our
// debug.
func (b bridge) Logf(l kfake.LogLevel, format string, args ...any) {
	level := slog.LevelDebug
	switch l {
	case kfake.LogLevelError:
		level = slog.LevelError
	case kfake.LogLevelWarn:
		level = slog.LevelWarn
	}
	if ctx := context.Background(); b.log.Enabled(ctx, level) {
		b.log.Log(ctx, level, fmt.Sprintf(format, args...))
	}
}
