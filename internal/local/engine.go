package local

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"tidemill.dev/internal/agent"
)

// cookieLabel is the label by which our containers are found.
const cookieLabel = "tidemill.cookie"

const askEngine = 20 * time.Second

// engine is docker or podman, as soon as one was asked for and answered.
type engine struct {
	mu   sync.Mutex
	path string
}

// find looks for one that answers: a docker without its daemon is there too, and
// is of no use. One that does not answer may do so later.
func (e *engine) find(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.path != "" {
		return e.path, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askEngine)
	defer cancel()
	var silent []string
	for _, name := range []string{"docker", "podman"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if err = quietly(ctx, path, "version"); err == nil {
			e.path = path
			return path, nil
		}
		silent = append(silent, fmt.Sprintf("%s is here and does not answer (%s version: %v)", name, name, err))
	}
	if len(silent) == 0 {
		return "", fmt.Errorf("an image needs docker or podman, and neither is here: install one, or give the recipe run.dir for run.image")
	}
	return "", fmt.Errorf("an image needs docker or podman: %s; start it (%w)", strings.Join(silent, ", and "), agent.ErrPassing)
}

// endContainers ends the containers that bear a cookie.
func endContainers(ctx context.Context, engine, cookie string) {
	if engine == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askEngine)
	defer cancel()
	out, err := exec.CommandContext(ctx, engine, "ps", "--all", "--quiet", "--filter", "label="+cookieLabel+"="+cookie).Output()
	ids := strings.Fields(string(out))
	if err != nil || len(ids) == 0 {
		return
	}
	_ = quietly(ctx, engine, append([]string{"kill"}, ids...)...) // one that has ended is an error
	_ = quietly(ctx, engine, append([]string{"rm", "--force"}, ids...)...)
}
