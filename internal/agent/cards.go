package agent

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

// Card is a GPU.
type Card struct {
	Index           int
	Product, Driver string
}

const askCards = 20 * time.Second // a driver that was not used for long takes a while

// LookForCards asks nvidia-smi; a machine without it has none.
func LookForCards(ctx context.Context) ([]Card, error) {
	program, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askCards)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--query-gpu=index,name,driver_version", "--format=csv,noheader")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask nvidia-smi for the GPUs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return ReadCards(string(out))
}

// ReadCards reads a card a line: index, product, driver.
func ReadCards(text string) (all []Card, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ", ")
		if len(fields) == 1 && fields[0] == "" {
			continue
		}
		index, err := strconv.Atoi(fields[0])
		if err != nil || len(fields) != 3 {
			return nil, fmt.Errorf("read what nvidia-smi says of the GPUs: %q is no index, product and driver", line)
		}
		all = append(all, Card{index, fields[1], fields[2]})
	}
	return all, nil
}

// InPod is what a pod gives its attempt: the cards that it was given. What they
// are is worth knowing, and no reason to run nothing.
func InPod(ctx context.Context, p tidemill.Plan) (e Equipment, err error) {
	if p.GPUs == 0 {
		return e, nil
	}
	cards, err := LookForCards(ctx)
	for _, c := range cards {
		e.GPUs, e.Card, e.Driver = append(e.GPUs, c.Index), c.Product, c.Driver
	}
	if err != nil && ctx.Err() != nil {
		return e, err
	}
	return e, nil
}
