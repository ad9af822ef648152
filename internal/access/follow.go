package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"

	"tidemill.dev/config"
)

const (
	// lookEvery is short, because a token that is removed may be one that was
	// stolen.
	lookEvery = 400 * time.Millisecond
	// maxRead is more than an access file may have, which its reader refuses.
	maxRead = 2 << 20
)

// follow applies the file whenever it has changed, until the context ends. It
// looks instead of being told: that finds a mounted Secret's swapped link, an
// editor's renamed file and a change on a network file system alike.
//
// It deals with a change when it has seen it twice: a file that is being
// written may well be valid halfway, and lack half of its tokens.
func (g *Guard) follow(ctx context.Context, settled string) {
	last := settled
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		seen := look(g.path)
		still := seen.print == last
		last = seen.print
		if !still || seen.print == settled {
			continue
		}
		settled = seen.print
		g.settle(seen)
	}
}

// settle applies what was seen or keeps what was before, and says which.
func (g *Guard) settle(seen sight) {
	access, err := seen.parse(g.path)
	g.mu.Lock()
	g.refused = err
	g.mu.Unlock()
	if err != nil {
		g.log.Warn("access file refused; what it said before stays in force", "file", g.path, "reason", err)
		return
	}
	g.apply(access)
	g.log.Info("access file applied", "file", g.path, "tokens", len(access.Tokens))
}

// sight is one look at the file, and a print to know it again by.
type sight struct {
	data  []byte
	err   error
	print string
}

func look(path string) sight {
	data, err := read(path)
	if err != nil {
		return sight{err: fmt.Errorf("read access file: %w", err), print: "error: " + err.Error()}
	}
	sum := sha256.Sum256(data)
	return sight{data: data, print: string(sum[:])}
}

func (s sight) parse(path string) (*config.Access, error) {
	if s.err != nil {
		return nil, s.err
	}
	return config.ParseAccess(path, s.data)
}

// read refuses what is no file, because reading a pipe would never end.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}
