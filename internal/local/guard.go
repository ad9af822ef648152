package local

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// GuardArgument is the one argument that a program is called with to be a guard.
const GuardArgument = "guard"

// Guard is what the guard's process does: it ends what is left of the commands
// when the process that started it is no more. What asks other programs to leave
// does not concern it: it leaves with the launcher, and not before.
func Guard(ctx context.Context) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	return guard(context.WithoutCancel(ctx), os.Stdin)
}

// guard reads what there is to end, to the end of what it is told.
func guard(ctx context.Context, from io.Reader) error {
	charge := newCharge()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		charge.hear(lines.Text())
	}
	charge.end(ctx)
	return lines.Err()
}

// charge is what a guard is to end.
type charge struct {
	legacy
	groups map[int]bool
}

func newCharge() *charge { return &charge{groups: map[int]bool{}} }

func (c *charge) hear(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case word == "cookie":
		c.Cookie = rest
	case word == "engine":
		c.Engine = rest
	case strings.HasPrefix(line, "+"):
		if pid, err := strconv.Atoi(line[1:]); err == nil && pid > 1 {
			c.groups[pid] = true
		}
	case strings.HasPrefix(line, "-"):
		if pid, err := strconv.Atoi(line[1:]); err == nil {
			delete(c.groups, pid)
		}
	}
}

func (c *charge) end(ctx context.Context) {
	for pid := range c.groups {
		killGroup(pid)
	}
	if c.Cookie != "" {
		endAll(ctx, c.legacy)
	}
}
