package chaos

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"tidemill.dev/broker/embedded"
)

// serve runs the broker's process. It notes how long opening its folder took.
func (c *child) serve(ctx context.Context) error {
	data := filepath.Join(c.dir, "data")
	size := folderSize(data)
	began := time.Now()
	s, err := embedded.Start(ctx, embedded.Options{Dir: data, Kafka: c.addr,
		Logger: slog.New(slog.NewTextHandler(logFile{c}, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errEarly, err)
	}
	if err != nil {
		return err
	}
	c.j.note("open", time.Since(began).Microseconds(), size)
	<-ctx.Done()
	return s.Close()
}

// logFile writes the broker's log to the child's log.
type logFile struct{ c *child }

func (l logFile) Write(p []byte) (int, error) {
	l.c.log.Info(string(p))
	return len(p), nil
}

func folderSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
